"""Relay files in an object store: whole or refused, without locks, readable on a host that shares nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING
from urllib.parse import quote

import pytest
from support.windows import NAME, Window

from binlake.common.filestore import LocalStore, StoredFiles
from binlake.config import Replication
from binlake.errors import LostRange, Transient
from binlake.target.relay import RelayLog
from binlake.target.relay.files import BucketStorage

if TYPE_CHECKING:
    from deploy.local.s3 import S3

FOLDER = PurePosixPath("orders/target")


def relay(store: StoredFiles, limit: int = 1000) -> RelayLog:
    """The relay log as each process opens it."""
    return RelayLog(BucketStorage(store, FOLDER), limit)


def window(lo: int = 10, hi: int = 20, size: int = 1000) -> Window:
    found = Window(lo, hi)
    for _ in range(3):
        found.put((1, "x" * size))
    return found


def write(log: RelayLog, own: Window) -> None:
    log.write_ahead(own.manifest(), own, lambda: None)


def read(log: RelayLog, own: Window) -> list[object]:
    found = log.find_window((own.lo, own.hi), own.manifest().compute_digest())
    return [b for plan in found.list_segments() for phase in (1, 2, 3) for b in found.read_batches(plan.number, phase)]


class Broken(LocalStore):
    """A store that becomes unreachable before its `fails`-th write."""

    fails = 0

    def put_from(self, path: str, content: IO[bytes]) -> None:
        self.fails -= 1
        if self.fails == 0:
            raise Transient("an object store does not answer")
        super().put_from(path, content)


# S3-08, S3-09, S3-14
def test_another_host_reads_what_was_written(tmp_path: Path) -> None:
    own = window()
    write(relay(LocalStore(tmp_path)), own)
    log = relay(LocalStore(tmp_path))
    assert read(log, own) == own.written
    files = log.storage.list_finished_files()
    assert len(files) == 3
    write(log, own)
    assert log.storage.list_finished_files() == files


# S3-15, S3-16
def test_files_before_the_checkpoint_are_deleted_except_the_newest(tmp_path: Path) -> None:
    log = relay(LocalStore(tmp_path), 1 << 20)
    for number in range(4):
        write(log, window(number * 10, number * 10 + 10, 5))
    log.delete_applied(20)
    assert [(file.index, file.lo) for file in log.storage.list_finished_files()] == [(3, 20), (4, 30)]
    log.delete_applied(1 << 60)
    assert [file.index for file in log.storage.list_finished_files()] == [4]


# S3-13
def test_missing_or_truncated_files_are_named(tmp_path: Path) -> None:
    store, own = LocalStore(tmp_path), window()
    log = relay(store)
    write(log, own)
    paths = [str(file.path) for file in log.storage.list_finished_files()]
    for number, path in enumerate(paths):
        content = store.get(path) or b""
        store.put(path, content[:-1])
        with pytest.raises(LostRange, match="damaged"):
            read(relay(store), own)
        store.delete(path)
        with pytest.raises(LostRange, match="10-20") as caught:
            read(relay(store), own)
        # The missing file's object mark is that of its neighbours.
        assert PurePosixPath(path).name in str(caught.value) or number == len(paths) - 1
        store.put(path, content)
    assert read(relay(store), own) == own.written


# S3-08
@pytest.mark.parametrize("fails", [1, 2, 3])
def test_failed_writer_leaves_no_readable_window(tmp_path: Path, fails: int) -> None:
    store, own = Broken(tmp_path), window()
    store.fails = fails
    with pytest.raises(Transient, match="does not answer"):
        write(relay(store), own)
    with pytest.raises(LostRange):
        read(relay(store), own)
    log = relay(store)
    write(log, own)
    assert read(relay(store), own) == own.written
    # The files of the failed try are deleted.
    assert len(log.storage.list_finished_files()) == 3


class Overtaken(LocalStore):
    """A store in which another process writes the same window between two files of the first one."""

    def __init__(self, root: Path, other: Iterator[None]) -> None:
        super().__init__(root)
        self._other = other

    def put_from(self, path: str, content: IO[bytes]) -> None:
        super().put_from(path, content)
        next(self._other, None)


# S3-08, R-16
@pytest.mark.parametrize("same", [True, False])
def test_two_concurrent_writers_do_not_harm_each_other(tmp_path: Path, same: bool) -> None:
    """The first writer lost the target's fence and does not know it yet."""
    first = window()
    second = first if same else window(size=900)

    def overtake() -> Iterator[None]:
        write(relay(LocalStore(tmp_path)), second)
        yield

    write(relay(Overtaken(tmp_path, overtake())), first)
    for own in (first, second):
        assert read(relay(LocalStore(tmp_path)), own) == own.written


@pytest.mark.process
def test_relay_files_of_a_replication_may_be_in_a_bucket(s3: S3) -> None:
    s3.create_bucket("relay")
    access = f"endpoint={quote(s3.url, safe='')}&region=us-east-1&access-key=any&secret-access-key=Hidden"
    own = Replication.model_validate({
        "name": NAME, "lake": {"path": "/nowhere"}, "target": {"db-type": "mariadb"},
        "relay": {"log-dir": f"s3://relay/logs?{access}", "max-file-size": 1000},
    })  # fmt: skip
    assert "Hidden" not in repr(own)
    logs = [RelayLog.of(own), RelayLog.of(own)]
    written = window()
    for log in logs:
        assert log is not None
        assert log.storage.label == f"s3://relay/logs/{NAME}/127.0.0.1-3306-tidb_binlog"
    assert logs[0] is not None
    assert logs[1] is not None
    write(logs[0], written)
    assert read(logs[1], written) == written.written
    logs[1].delete_applied(1 << 60)
    assert len(logs[0].storage.list_finished_files()) == 1
