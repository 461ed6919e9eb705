"""Whole files in a folder or a bucket: one suite for each kind of store."""

from __future__ import annotations

from pathlib import Path

import pytest

from binlake.config.sinkuri import parse_sink_uri
from binlake.errors import Transient
from binlake.feed.files.store import Store, open_store


def opened(uri: str) -> Store:
    storage = parse_sink_uri(uri).storage
    assert storage is not None
    return open_store(storage)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return opened(f"file://{tmp_path}/new/folder?protocol=avro")


def test_a_file_is_there_as_it_was_put(store: Store) -> None:
    assert store.get("a/b/one") is None
    assert store.list("") == []
    store.put("a/b/one", b"first")
    store.put("a/b/one", b"second")
    store.put("a/two", b"")
    assert store.get("a/b/one") == b"second"
    assert store.get("a/two") == b""
    assert store.list("") == ["a/b/one", "a/two"]
    assert store.list("a/b") == ["a/b/one"]
    assert store.list("nowhere") == []


def test_what_is_not_whole_is_not_there(tmp_path: Path) -> None:
    store = opened(f"file://{tmp_path}?protocol=avro")
    # As a process that was killed leaves it.
    (tmp_path / "one.part").write_bytes(b"half")
    assert store.list("") == []
    assert store.get("one") is None
    store.put("one", b"whole")
    assert [at.name for at in tmp_path.iterdir()] == ["one"]


def test_a_folder_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = opened(f"file://{tmp_path}/file?protocol=avro")
    with pytest.raises(Transient, match="Not a directory"):
        store.put("one", b"")
