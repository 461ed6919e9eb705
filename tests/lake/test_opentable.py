"""A cached open table shows later commits, and is never mistaken for a new table at the same path."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError

from binlake.lake import opentable as module
from binlake.lake.opentable import open_table


def _write(path: Path, *numbers: int) -> None:
    write_deltalake(str(path), pa.table({"n": list(numbers)}), mode="append")


def _rows(path: Path) -> list[int]:
    found: list[int] = sorted(open_table(str(path)).to_pyarrow_table()["n"].to_pylist())
    return found


def test_commits_of_others_are_seen_and_the_log_is_replayed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path / "t", 1)
    assert _rows(tmp_path / "t") == [1]
    monkeypatch.setattr(module, "DeltaTable", lambda _: pytest.fail("the open table must be reused"))
    for number in (2, 3):
        _write(tmp_path / "t", number)
        assert _rows(tmp_path / "t") == list(range(1, number + 1))


def test_recreated_table_at_the_same_path_is_another_one(tmp_path: Path) -> None:
    for number in range(20):
        # A disk reuses the inode numbers of removed files.
        _write(tmp_path / "t", number)
        assert _rows(tmp_path / "t") == [number]
        shutil.rmtree(tmp_path / "t")
    with pytest.raises(TableNotFoundError):
        open_table(str(tmp_path / "t"))


def test_table_whose_known_commits_left_the_log_is_reopened(tmp_path: Path) -> None:
    # From the rest of the log, it would look as if nothing had been committed since.
    _write(tmp_path / "t", 1)
    assert _rows(tmp_path / "t") == [1]
    _write(tmp_path / "t", 2)
    _write(tmp_path / "t", 3)
    DeltaTable(str(tmp_path / "t")).create_checkpoint()
    for version in (0, 1):
        (tmp_path / "t" / "_delta_log" / f"{version:020}.json").unlink()
    assert _rows(tmp_path / "t") == [1, 2, 3]


def test_delta_rs_is_not_called_without_new_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path / "t", 1)
    write_deltalake(open_table(str(tmp_path / "t")), pa.table({"n": [2]}), mode="append")
    assert _rows(tmp_path / "t") == [1, 2]
    for question in ("update_incremental", "__init__"):
        monkeypatch.setattr(
            DeltaTable, question, lambda *_: pytest.fail("delta-rs must not be called, because the log has nothing new")
        )
    assert _rows(tmp_path / "t") == [1, 2]


def test_old_commit_file_alone_does_not_prove_that_it_is_the_newest(tmp_path: Path) -> None:
    _write(tmp_path / "t", 1)
    log = tmp_path / "t" / "_delta_log"
    two_hours_ago = time.time() - 7200
    os.utime(log / f"{0:020}.json", (two_hours_ago, two_hours_ago))
    assert _rows(tmp_path / "t") == [1]
    _write(tmp_path / "t", 2)
    _write(tmp_path / "t", 3)
    DeltaTable(str(tmp_path / "t")).create_checkpoint()
    # A clean-up of the log is running.
    (log / f"{1:020}.json").unlink()
    assert _rows(tmp_path / "t") == [1, 2, 3]


def test_tables_not_used_for_long_are_evicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_TABLES", 2)
    monkeypatch.setattr(module, "_tables", {})
    opened: list[str] = []

    def opening(path: str, **options: Any) -> DeltaTable:
        opened.append(Path(path).name)
        return DeltaTable(path, **options)

    monkeypatch.setattr(module, "DeltaTable", opening)
    for name in ("a", "b", "c"):
        _write(tmp_path / name, 1)
    for name in ("a", "b", "a", "c", "a", "b"):
        assert _rows(tmp_path / name) == [1]
    assert opened == ["a", "b", "c", "b"]


def test_commit_through_an_open_table_is_visible_to_all(tmp_path: Path) -> None:
    _write(tmp_path / "t", 1)
    write_deltalake(open_table(str(tmp_path / "t")), pa.table({"n": [2]}), mode="append")
    assert _rows(tmp_path / "t") == [1, 2]
    assert DeltaTable(str(tmp_path / "t")).version() == open_table(str(tmp_path / "t")).version() == 1
