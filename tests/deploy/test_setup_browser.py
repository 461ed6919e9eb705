"""The browser and the accessibility checker are installed completely, or the error says how to get them."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from deploy.local.chromium import Chromium
from deploy.local.process import ProcessError
from deploy.setup import axe, chromium
from deploy.setup.common import SetupError


def archive(folder: Path, script: bytes) -> None:
    """The npm registry's archive, but with another script."""
    with tarfile.open(folder / axe._ARCHIVE, "w:gz") as files:
        for name, data in ((axe.SCRIPT, script), ("LICENSE", b"MPL-2.0")):
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(data)
            files.addfile(entry, io.BytesIO(data))


def test_script_other_than_the_pinned_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for way in ("_download_by_npm", "_download_by_https"):
        monkeypatch.setattr(axe, way, lambda tree: archive(tree, b"alert(1)"))
        getattr(axe, way).__name__ = way
    with pytest.raises(
        SetupError, match=r"npm: its checksum is not the expected one.*https: its checksum is not the expected one"
    ):
        axe.install(tmp_path / "axe")
    assert not (tmp_path / "axe").exists()


def test_pinned_script_is_unpacked_with_its_license(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (axe.ROOT / axe.SCRIPT).read_bytes()
    monkeypatch.setattr(axe, "_download_by_npm", lambda tree: archive(tree, script))
    assert axe.install(tmp_path / "axe") == tmp_path / "axe" / axe.SCRIPT
    assert sorted(file.name for file in (tmp_path / "axe").iterdir()) == ["LICENSE", axe.SCRIPT]


def test_missing_browser_is_reported_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chromium, "find_browser", lambda: None)
    with pytest.raises(ProcessError, match="make setup-tests"):
        Chromium(tmp_path)


def test_systems_browser_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        chromium, "find_program", lambda name: Path("/usr/bin/chromium") if name == "chromium" else None
    )
    assert chromium.install(tmp_path / "chromium") == Path("/usr/bin/chromium")
    assert chromium.build_environment(tmp_path / "chromium") == dict(os.environ)
