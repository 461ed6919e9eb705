"""Storage on a slow or full disk: acked binlogs stay, memory is bounded, and writes beyond the bound are refused."""

from __future__ import annotations

import io
import os
import threading
import time
from pathlib import Path

import pytest
from pump_helpers import commit, prewrite, reach, settled, store, until

from binlake.errors import Transient
from binlake.pump_service.pump.directory import Files
from binlake.pump_service.pump.storage import PumpStorage, StorageOptions
from binlake.wire import build

FIXTURE = Path(__file__).parents[2] / "fixtures" / "wire" / "pump-data.tar.gz"


class GatedFiles(Files):
    """A disk whose sync waits until the gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()

    def sync(self, file: io.FileIO) -> None:
        assert self.gate.wait(120)
        super().sync(file)


def test_bytes_in_flight_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # U-06
    monkeypatch.setattr("binlake.pump_service.pump.storage._PATIENCE_S", 0.05)
    files = GatedFiles()
    storage = PumpStorage(tmp_path, StorageOptions(memory_bytes=200), files=files)
    files.gate.clear()
    with pytest.raises(Transient, match="behind"):
        store(storage, *(build.build_fake(ts) for ts in range(1, 20)))
    with pytest.raises(Transient, match="behind"):
        storage.submit(build.build_fake(30).SerializeToString(), lambda _: None)  # at once
    files.gate.set()
    until(lambda: storage.in_flight_bytes == 0, "the disk caught up")
    store(storage, prewrite(100, b"x" * 5000))  # larger than the bound, so it is admitted alone
    until(lambda: storage.in_flight_bytes == 0, "written")
    store(storage, commit(100, 101))
    reach(storage, 101)
    storage.close()


def test_a_slow_index_does_not_fill_memory_or_block_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # tidb-binlog 2.4, slow chaser: acks continue; entries that do not fit into memory are read back from the log on
    # disk.
    storage = PumpStorage(tmp_path, StorageOptions(segment_bytes=4000, index_queue=20))
    gate, write = threading.Event(), storage.index.write
    monkeypatch.setattr(storage.index, "write", lambda *a, **k: (gate.wait(500), write(*a, **k)))
    for start in range(10, 2000, 10):
        store(storage, prewrite(start), commit(start, start + 1))
        assert storage.index_lag <= 22
    assert storage.watermark == 0
    gate.set()
    reach(storage, 1991)
    assert storage.counters.slow_chases >= 1
    for start in range(2000, 2300, 10):  # and entries come from memory again
        store(storage, prewrite(start), commit(start, start + 1))
    reach(storage, 2291)
    assert [ts for _, ts, _ in settled(storage)] == list(range(11, 2300, 10))
    assert (storage.counters.late_commits, storage.counters.duplicates, storage.count_unmatched()) == (0, 0, (0, 0))
    storage.close()


def test_writes_are_refused_while_the_disk_is_full(tmp_path: Path) -> None:
    files = SmallDisk()
    storage = PumpStorage(tmp_path, files=files)
    store(storage, prewrite(10), commit(10, 11))
    files.room = 30
    for _ in range(3):
        with pytest.raises(Transient, match="No space left"):
            store(storage, prewrite(20, b"x" * 100))
    files.room = 1 << 20
    store(storage, prewrite(30), commit(30, 31), build.build_fake(40))
    reach(storage, 40)
    assert [ts for _, ts, _ in settled(storage)] == [11, 31, 40]
    storage.close()
    storage = PumpStorage(tmp_path)
    assert [ts for _, ts, _ in settled(storage)] == [11, 31, 40]
    storage.close()


class SmallDisk(Files):
    """A disk with `room` bytes left."""

    room = 1 << 20

    def append(self, file: io.FileIO, data: bytes | memoryview) -> int:
        if not self.room:
            raise OSError(28, "No space left on device")
        taken = super().append(file, bytes(data[: self.room]))
        self.room -= taken
        return taken

    def truncate(self, file: io.FileIO, size: int) -> None:
        self.room += os.fstat(file.fileno()).st_size - size
        super().truncate(file, size)


def test_a_slow_disk_makes_batches_larger_not_fewer_acks(tmp_path: Path) -> None:
    files = SlowDisk()
    storage = PumpStorage(tmp_path, files=files)
    store(storage, *(build.build_fake(ts) for ts in range(1, 400)))
    assert files.syncs < 40
    reach(storage, 399)
    storage.close()


class SlowDisk(Files):
    """A disk whose sync takes 20 ms."""

    syncs = 0

    def sync(self, file: io.FileIO) -> None:
        self.syncs += 1
        time.sleep(0.02)
        super().sync(file)
