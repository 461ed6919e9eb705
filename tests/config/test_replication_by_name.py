"""One replication is read by its name from the folder; a name from a request reads nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from binlake.config import load as folders

TEXT = 'name = "{}"\n[lake]\npath = "/lake"\n'


@pytest.mark.parametrize("name", ["../outside", "sub/inside", "own\0", "", ".", "gone"])
def test_names_of_requests_read_no_file_of_another_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / "replications"
    (folder / "sub").mkdir(parents=True)
    for place, own in (("replications/own", "own"), ("outside", "outside"), ("replications/sub/inside", "inside")):
        (tmp_path / f"{place}.toml").write_text(TEXT.format(own))
    read: list[Path] = []
    load = folders.load_replication
    monkeypatch.setattr(folders, "load_replication", lambda path, **how: read.append(path) or load(path, **how))
    found = folders.find_replication_of(name, folder)
    assert {item.name for item in found.good.values()} == {"own"}
    assert all(path.parent.resolve() == folder for path in read), read
    assert folders.find_replication_of("own", folder).good[folder / "own.toml"].name == "own"
