"""A failing index: no acked binlog is skipped, whatever fails, and whenever the pump stops or the disk recovers."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import plyvel
import pytest
from pump_helpers import commit, prewrite, reach, settled, store, until

from binlake.errors import Permanent, Transient
from binlake.pump_service.pump import index as index_module
from binlake.pump_service.pump.index import PumpIndex
from binlake.pump_service.pump.record import Pointer
from binlake.pump_service.pump.storage import PumpStorage, StorageOptions
from binlake.wire import build

AT = Pointer(0, 0)


def put(index: PumpIndex, ts: int, count: int = 1, *, sync: bool = False) -> None:
    index.write([(ts + n, AT) for n in range(count)], head=AT, max_ts=0, handle=AT, sync=sync)


@contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """Limit files of this process to `size` bytes, which acts like a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("chased", [False, True])
def test_a_stop_while_the_index_fails_writes_nothing_after_the_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chased: bool
) -> None:
    # S0-48: space becomes free while the pump stops. If the head moved past the failed entries, they would be lost.
    monkeypatch.setattr("binlake.pump_service.pump.follower._PUTS", 1)
    monkeypatch.setattr("binlake.pump_service.pump.follower._SYNC_S", 3600.0)
    storage = PumpStorage(tmp_path, StorageOptions(index_queue=2 if chased else 100))
    store(storage, prewrite(10), commit(10, 11))
    reach(storage, 11)
    write = storage.index.write

    def failing(*args: Any, **more: Any) -> None:
        if not storage._follower._stopping.is_set():
            raise plyvel.IOError("no space")
        write(*args, **more)

    monkeypatch.setattr(storage.index, "write", failing)
    store(storage, prewrite(20), commit(20, 21))
    until(lambda: "no space" in storage.error, "the follower waits for the index")
    store(storage, prewrite(30), commit(30, 31), prewrite(40), commit(40, 41))
    storage.close()
    storage = PumpStorage(tmp_path)
    assert [ts for _, ts, _ in settled(storage)] == [11, 21, 31, 41]
    assert (storage.counters.late_commits, storage.count_unmatched()) == (0, (0, 0))
    storage.close()


def test_a_sync_does_not_prove_that_an_older_log_file_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # S0-48: LevelDB switches to a new log file without syncing the old one.
    monkeypatch.setitem(index_module._OPTIONS, "write_buffer_size", 1 << 16)
    index = PumpIndex(tmp_path / "kv")
    put(index, 1, sync=True)
    assert index.is_durable()
    (older,) = (tmp_path / "kv").glob("*.log")
    kept = older.with_name("999999.log")
    kept.write_bytes(b"")  # as if the table of an older file were still being written
    put(index, 2, sync=True)
    assert not index.is_durable()
    kept.unlink()
    assert index.is_durable()
    for ts in range(10, 20_000, 100):
        put(index, ts, 100)
    put(index, 3, sync=True)
    until(index.is_durable, "the table is written")
    assert older not in (tmp_path / "kv").glob("*.log")
    index.close()


def test_the_head_does_not_move_until_everything_before_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # S0-48: every batch is synced here, and still an older log file may be lost.
    monkeypatch.setattr("binlake.pump_service.pump.follower._SYNC_S", 0.0)
    monkeypatch.setattr("binlake.pump_service.pump.follower._DUMP_SHARE", 0)
    written = False
    monkeypatch.setattr(PumpIndex, "is_durable", lambda _: written)
    storage = PumpStorage(tmp_path)
    for ts in range(1, 6):
        store(storage, build.build_fake(ts))
        reach(storage, ts)
    assert storage.index.head == AT
    written = True
    for ts in range(6, 9):
        store(storage, build.build_fake(ts))
        reach(storage, ts)
    assert storage.index.head > AT
    storage.close()


def test_entries_after_a_torn_write_in_a_log_file_do_not_count_as_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # S0-48: the disk was full for a short time. At the next start LevelDB cannot read what it writes and syncs after
    # that.
    monkeypatch.setitem(index_module._OPTIONS, "write_buffer_size", 1 << 18)
    index = PumpIndex(tmp_path / "kv")
    put(index, 1, 100, sync=True)
    assert index.is_durable()
    with files_end_at(20 << 10), pytest.raises(plyvel.Error):
        put(index, 1000, 10_000)
    put(index, 500_000, 10, sync=True)  # the index reports that it works again
    assert index.find_pointer(500_000) == AT
    assert not index.is_durable()
    for ts in range(600_000, 700_000, 1000):
        put(index, ts, 1000)
    put(index, 2, sync=True)
    until(index.is_durable, "the table is written, and the log file with the hole is removed")
    index.close()


def test_a_restart_after_a_briefly_full_disk_skips_no_binlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # S0-48: as above, observed from outside.
    monkeypatch.setattr("binlake.pump_service.pump.follower._RETRY_S", 0.01)
    monkeypatch.setattr("binlake.pump_service.pump.follower._SYNC_S", 0.0)
    storage = PumpStorage(tmp_path)
    store(storage, *(build.build_fake(ts) for ts in range(1, 100)))
    reach(storage, 99)
    (log,) = (tmp_path / "kv").glob("*.log")
    with files_end_at(log.stat().st_size + 20):
        with pytest.raises(Transient):
            store(storage, prewrite(100, b"x" * (1 << 20)))  # the value log has no space either
        put_until_torn(storage.index)
    store(storage, *(build.build_fake(ts) for ts in range(101, 400)))
    reach(storage, 399)
    storage.close()
    storage = PumpStorage(tmp_path)
    assert [ts for _, ts, _ in settled(storage)] == [*range(1, 100), *range(101, 400)]
    storage.close()


def put_until_torn(index: PumpIndex) -> None:
    batch = index._write_batch()
    batch.__enter__().put(b"torn", b"x" * 1000)
    with pytest.raises(plyvel.Error):
        batch.__exit__(None, None, None)


def test_a_permanently_failing_index_ends_the_index_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # LevelDB keeps a failed flush until it is opened again. Only a new process repairs it, and it finds all acked
    # binlogs.
    monkeypatch.setattr("binlake.pump_service.pump.follower._RETRY_S", 0.01)
    monkeypatch.setattr("binlake.pump_service.pump.follower._PATIENCE_S", 0.1)
    died: list[threading.ExceptHookArgs] = []
    # Only this storage's thread: any other thread that dies in this process belongs to another test.
    monkeypatch.setattr(threading, "excepthook", lambda args: args.thread is follower() and died.append(args))

    def follower() -> threading.Thread:
        return storage._follower._thread

    storage = PumpStorage(tmp_path)
    with monkeypatch.context() as broken:

        def fail(*_: object, **__: object) -> None:
            raise plyvel.IOError("no space")

        broken.setattr(storage.index, "write", fail)
        store(storage, build.build_fake(10))
        until(lambda: bool(died), "the follower gives up")
    assert died[0].thread is not None
    assert died[0].thread.name == "pump-index"  # a thread whose death ends the process
    assert isinstance(died[0].exc_value, Permanent)
    assert "acked binlogs are safe" in str(died[0].exc_value)
    storage.close()
    storage = PumpStorage(tmp_path)
    assert [ts for _, ts, _ in settled(storage)] == [10]
    storage.close()


def test_the_index_is_not_closed_under_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_CLOSE_S", 0.05)
    index = PumpIndex(tmp_path / "kv")
    put(index, 1)
    with index._use() as db:
        index.close()
        assert not db.closed
        with pytest.raises(Transient, match="stopping"):
            index.find_pointer(1)
    index.close()
    assert index._db.closed
