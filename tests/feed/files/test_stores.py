"""Whole files in a folder or a bucket: the same tests for each kind of store."""

from __future__ import annotations

import errno
import io
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from binlake.common.filestore import LocalStore, StoredFiles, open_store
from binlake.config.sinkuri import parse_sink_uri
from binlake.errors import Permanent, Transient

if TYPE_CHECKING:
    from deploy.local.s3 import S3

PIECE = 4 << 20


def open_uri(uri: str) -> StoredFiles:
    storage = parse_sink_uri(uri).storage
    assert storage is not None
    return open_store(storage)


def bucket(s3: S3, path: str, more: str = "") -> str:
    """The URI of a folder in a bucket of the session's store."""
    s3.create_bucket("feeds")
    access = f"endpoint={quote(s3.url, safe='')}&region=us-east-1&access-key=any&secret-access-key=any{more}"
    return f"s3://feeds/{path}?protocol=avro&{access}"


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.process)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> StoredFiles:
    if request.param == "file":
        return open_uri(f"file://{tmp_path}/new/folder?protocol=avro")
    return open_uri(bucket(request.getfixturevalue("s3"), tmp_path.name))


def test_file_is_read_as_it_was_written(store: StoredFiles) -> None:
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
    with store.open("a/b/one") as stream:
        assert [stream.read(3), stream.read(9)] == [b"sec", b"ond"]
    with pytest.raises(Permanent, match=r"a file does not exist .*nowhere"):
        store.open("a/nowhere")
    for _ in range(2):
        store.delete("a/b/one")
    assert store.list("") == ["a/two"]


class Interrupting(io.BytesIO):
    """A file that sends Ctrl-C to the main thread after the first piece of its `number`-th reading."""

    def __init__(self, content: bytes, number: int) -> None:
        super().__init__(content)
        self.left = number

    def read(self, size: int | None = -1, /) -> bytes:
        at, found = self.tell(), super().read(size)
        self.left -= not at
        if not at and not self.left:
            signal.raise_signal(signal.SIGINT)
        return found


def test_interrupted_write_leaves_the_whole_or_the_old_file(store: StoredFiles) -> None:
    # the object store's client reads the file twice: once before it sends anything
    for reading in (1,) if isinstance(store, LocalStore) else (1, 2):
        interrupt_writing(store, reading)


def interrupt_writing(store: StoredFiles, reading: int) -> None:
    # closing a stream of an object store publishes its content; it cannot be aborted otherwise
    old, new = b"old" * 9, os.urandom(4 * PIECE)
    store.put("one", old)
    # a background process ignores SIGINT
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            store.put_from("one", Interrupting(new, reading))
    finally:
        signal.signal(signal.SIGINT, before)
    assert store.get("one") in (old, new)


class Failing(io.BytesIO):
    """A local file that cannot be read completely; if `late`, only from the second reading on."""

    def __init__(self, content: bytes, *, late: bool) -> None:
        super().__init__(content)
        self.late = late

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell() >= PIECE and not self.late:
            raise OSError(errno.EIO, "the disk does not give it")
        found = super().read(size)
        if not found:
            self.late = False
        return found


class Shrinking(io.BytesIO):
    """A local file that is truncated after its first reading."""

    def seek(self, to: int, whence: int = 0, /) -> int:
        if to == 0:
            self.truncate(PIECE)
        return super().seek(to, whence)


def test_unreadable_file_leaves_the_old_one(store: StoredFiles) -> None:
    store.put("one", b"old")
    with pytest.raises(Transient, match=r"does not give it.*one"):
        store.put_from("one", Failing(os.urandom(3 * PIECE), late=False))
    assert store.get("one") == b"old"


@pytest.mark.process
@pytest.mark.parametrize("kind", ["late", "shorter"])
def test_object_whose_file_changes_while_it_is_sent_is_not_published(s3: S3, tmp_path: Path, kind: str) -> None:
    store, new = open_uri(bucket(s3, tmp_path.name)), os.urandom(3 * PIECE)
    with pytest.raises(Transient, match=r"does not give it|bytes shorter"):
        store.put_from("one", Shrinking(new) if kind == "shorter" else Failing(new, late=True))
    assert store.list("") == []


def test_refusing_or_unreachable_store_is_reported(s3: S3) -> None:
    bucket(s3, "x")
    for uri, kind, error in (
        (bucket(s3, "x").replace("s3://feeds/", "s3://other/"), Permanent, "object store refuses"),
        (bucket(s3, "x").replace(str(s3.port), "9"), Transient, "object store does not answer"),
    ):
        with pytest.raises(kind, match=error):
            open_uri(uri).put("one", b"content")


def test_incomplete_file_is_invisible(tmp_path: Path) -> None:
    store = open_uri(f"file://{tmp_path}?protocol=avro")
    # As a killed process leaves it.
    (tmp_path / "one.part").write_bytes(b"half")
    assert store.list("") == []
    assert store.get("one") is None
    store.put("one", b"whole")
    assert [at.name for at in tmp_path.iterdir()] == ["one"]


def test_unusable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = open_uri(f"file://{tmp_path}/file?protocol=avro")
    with pytest.raises(Transient, match="Not a directory"):
        store.put("one", b"")
