"""Temporary files of a run are in memory only where there is room for them, and nobody chose another place."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import memory_disk
from support.memory_disk import keep_temporary_files_in_memory

GIB = 1 << 30


@pytest.fixture(autouse=True)
def _place_again() -> Iterator[None]:
    place = tempfile.tempdir
    yield
    tempfile.tempdir = place


@pytest.mark.parametrize(
    ("chosen", "disk", "memory", "moved"),
    [
        (None, 17, 9, True),
        (None, 15, 9, False),
        (None, 17, 7, False),
        ("/elsewhere", 17, 9, False),
    ],
    ids=["room", "small disk", "little memory", "chosen"],
)
def test_temporary_files_are_in_memory_if_there_is_room(
    chosen: str | None, disk: int, memory: int, moved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", chosen or "")
    if chosen is None:
        monkeypatch.delenv("TMPDIR")
    monkeypatch.setattr(memory_disk, "_MEMORY", tmp_path)
    monkeypatch.setattr(memory_disk.shutil, "disk_usage", lambda _: SimpleNamespace(free=disk * GIB))
    monkeypatch.setattr(memory_disk.psutil, "virtual_memory", lambda: SimpleNamespace(available=memory * GIB))
    keep_temporary_files_in_memory()
    assert os.environ.get("TMPDIR") == (str(tmp_path) if moved else chosen)
    if moved:
        assert Path(tempfile.gettempdir()) == tmp_path
