"""A disk that can lose, at any operation, everything not yet synced: `Files` and the index, recorded.

The model is harsh: any part of the unsynced data may survive: a file's tail sector by sector, a new name or its
absence, a removed file, any subset of the index's batches. Like LevelDB, the index switches to a new log file now and
then: a sync covers only the batches in the new file, and the batches in the previous file are safe only later, once
their table is written.
"""

from __future__ import annotations

import io
import random
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from binlake.pump_service.pump import storage as storage_module
from binlake.pump_service.pump.directory import Files
from binlake.pump_service.pump.index import PumpIndex
from binlake.pump_service.pump.record import Pointer

_SECTOR = 64  # smaller than a disk's sector, so that small records are torn too


@dataclass
class RecordedFile:
    """One file: its bytes, how many of them are synced, and whether its name is."""

    data: bytearray
    synced: int
    named: bool
    removed: bool = False


@dataclass
class Batch:
    """One write to the index."""

    apply: Callable[[PumpIndex], object]
    safe: bool = False


@dataclass
class Disk:
    """The disk under `folder`. Before operation `crash_at` it records what a crash leaves (by `chance`) and
    `facts()`."""

    folder: Path
    crash_at: int
    chance: random.Random
    facts: Callable[[], Any]
    operations: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)
    files: dict[Path, RecordedFile] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)
    log_start: int = 0
    flushing: bool = False
    left: tuple[dict[str, bytes], list[Callable[[PumpIndex], object]], Any] | None = None
    small: dict[str, bytes] = field(default_factory=dict)

    def operation(self) -> None:
        """Called, under the lock, before each operation."""
        if self.operations == self.crash_at:
            self.crash()
        self.operations += 1

    def crash(self) -> None:
        """Record what a crash at this point leaves; only the first call counts."""
        with self.lock:
            if self.left is None:
                files = {path.name: self._survivor(recorded_file) for path, recorded_file in self.files.items()}
                batches = [one.apply for one in self.batches if one.safe or self.chance.random() < 0.6]
                surviving = {name: data for name, data in files.items() if data is not None}
                self.small = {one.name: one.read_bytes() for one in self.folder.glob(".[a-km-z]*")}
                self.left = (surviving, batches, self.facts())

    def batch(self, apply: Callable[[PumpIndex], object], *, sync: bool) -> None:
        """Record that the index wrote a batch."""
        if not self.flushing and self.chance.random() < 0.15:
            self.log_start, self.flushing = len(self.batches), True
        elif self.flushing and self.chance.random() < 0.3:
            self.flushing = False
            for one in self.batches[: self.log_start]:
                one.safe = True
        self.batches.append(Batch(apply))
        if sync:
            for one in self.batches[self.log_start :]:
                one.safe = True

    def _survivor(self, recorded_file: RecordedFile) -> bytes | None:
        if (recorded_file.removed or not recorded_file.named) and self.chance.random() < 0.5:
            return None
        data = bytearray(recorded_file.data[: self.chance.randint(recorded_file.synced, len(recorded_file.data))])
        for at in range(recorded_file.synced, len(data), _SECTOR):
            if self.chance.random() < 0.3:
                end = min(at + _SECTOR, len(data))
                data[at:end] = bytes(end - at)
        return bytes(data)

    def restore(self, new: Path) -> Any:
        """Build the data directory that the crash left at `new`; return the facts recorded at the crash."""
        assert self.left is not None
        files, batches, facts = self.left
        (new / "value").mkdir(parents=True)
        for name, data in files.items():
            (new / "value" / name).write_bytes(data)
        for name, data in self.small.items():
            (new / name).write_bytes(data)
        index = PumpIndex(new / "kv")
        for batch in batches:
            batch(index)
        index.close()
        return facts


class DiskFiles(Files):
    """The value log's files on a `Disk`."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._paths: dict[int, Path] = {}

    def open(self, path: Path, *, create: bool = False) -> io.FileIO:
        with self._disk.lock:
            self._disk.operation()
            file = super().open(path, create=create)
            self._paths[file.fileno()] = path
            if create:
                self._disk.files[path] = RecordedFile(bytearray(), 0, named=False)
            return file

    def append(self, file: io.FileIO, data: bytes | memoryview) -> int:
        with self._disk.lock:
            self._disk.operation()
            taken = super().append(file, data)
            self._of(file).data += bytes(data[:taken])
            return taken

    def overwrite(self, path: Path, at: int, data: bytes) -> None:
        with self._disk.lock:
            self._disk.operation()
            super().overwrite(path, at, data)
            recorded_file = self._disk.files[path]
            recorded_file.data[at : at + len(data)] = data
            recorded_file.synced = min(
                recorded_file.synced, at
            )  # harsher than a disk: the old content may be lost until the next sync

    def truncate(self, file: io.FileIO, size: int) -> None:
        with self._disk.lock:
            self._disk.operation()
            super().truncate(file, size)
            del self._of(file).data[size:]

    def sync(self, file: io.FileIO) -> None:
        with self._disk.lock:
            self._disk.operation()
            recorded_file = self._of(file)
            recorded_file.synced = len(recorded_file.data)

    def remove(self, path: Path) -> None:
        with self._disk.lock:
            self._disk.operation()
            super().remove(path)
            self._disk.files[path].removed = True

    def sync_directory(self, directory: Path) -> None:
        del directory  # there is only one directory
        with self._disk.lock:
            self._disk.operation()
            for path, recorded_file in list(self._disk.files.items()):
                recorded_file.named = True
                if recorded_file.removed:
                    del self._disk.files[path]

    def _of(self, file: io.FileIO) -> RecordedFile:
        return self._disk.files[self._paths[file.fileno()]]


def recorded(disk: Disk) -> type[PumpIndex]:
    """An index class that records its batches on `disk`."""

    class RecordedIndex(PumpIndex):
        def write(self, puts: Iterable[tuple[int, Pointer]], **more: Any) -> None:
            entries = list(puts)
            with disk.lock:
                disk.operation()
                super().write(entries, **more)
                disk.batch(lambda index: PumpIndex.write(index, entries, **more), sync=bool(more.get("sync")))

        def is_durable(self) -> bool:
            with disk.lock:
                return not disk.flushing

        def set_gc_ts(self, ts: int) -> None:
            with disk.lock:
                disk.operation()
                super().set_gc_ts(ts)
                disk.batch(lambda index: PumpIndex.set_gc_ts(index, ts), sync=True)

        def _delete(self, keys: list[bytes]) -> int:
            deleted = list(keys)
            with disk.lock:
                disk.operation()
                disk.batch(lambda index: PumpIndex._delete(index, deleted), sync=False)
                return super()._delete(deleted)

    return RecordedIndex


def open_on(disk: Disk, *more: Any) -> storage_module.PumpStorage:
    """A storage on `disk`. Its index is the one already in the folder."""
    plain, path = storage_module.PumpIndex, disk.folder
    for file in path.glob("value/*"):
        data = bytearray(file.read_bytes())
        disk.files[file] = RecordedFile(data, len(data), named=True)
    if (path / "kv").exists():
        copy = PumpIndex(path / "kv")
        content = dict(copy._db.iterator())
        copy.close()

        def load(index: PumpIndex) -> None:
            for key, value in content.items():
                index._db.put(key, value)
            index._gc_ts = index._get_number(b"!binlog!gcts")

        disk.batches.append(Batch(load, safe=True))
    storage_module.PumpIndex = recorded(disk)  # type: ignore[misc]
    try:
        return storage_module.PumpStorage(path, *more, files=DiskFiles(disk))
    finally:
        storage_module.PumpIndex = plain  # type: ignore[misc]
