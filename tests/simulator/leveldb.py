"""LevelDB as far as the index needs it: batches in log files, tables written later, and what a crash leaves.

LevelDB switches from a log file to the next one without syncing it; its batches are safe only later, once its table is
written. Batches that follow a torn write in a log file may be unreadable at the next start.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import plyvel

from simulator.disk import Disk
from simulator.scheduler import Process, Scheduler

Operations = list[tuple[bytes, bytes | None]]
_ROLL, _FLUSH = 0.05, 0.3


@dataclass
class LogFile:
    """Batches in order; the first `synced` are on the platter. `hole`: how many come before a torn write."""

    number: int
    batches: list[Operations] = field(default_factory=list)
    synced: int = 0
    hole: int | None = None

    def readable(self, random: Random) -> list[Operations]:
        """The batches that a start can read from it."""
        if self.hole is None or random.random() < 0.3:
            return self.batches
        return self.batches[: self.hole]


class Level:
    """The files of one database, which survive processes."""

    def __init__(self, disk: Disk, random: Random) -> None:
        self.disk = disk
        self.random = random
        self.tables: dict[bytes, bytes] = {}
        self.logs = [LogFile(1)]
        self.process: Process | None = None

    def names(self) -> list[str]:
        """The names of its files, as in a directory listing."""
        return ["CURRENT", "LOCK", *(f"{one.number:06d}.log" for one in self.logs)]

    def open(self, process: Process | None) -> dict[bytes, bytes]:
        """The content, which is in tables from now on."""
        for one in self.logs:
            for batch in one.readable(self.random):
                _apply(self.tables, batch)
        self.logs = [LogFile(self.logs[-1].number + 1)]
        self.process = process
        return dict(self.tables)

    def append(self, batch: Operations, *, sync: bool) -> None:
        """Write a batch. Raises plyvel.IOError on a full disk."""
        if self.disk.full:
            if self.logs[-1].hole is None:
                self.logs[-1].hole = len(self.logs[-1].batches)
            raise plyvel.IOError("No space left on device (simulated)")
        if len(self.logs) == 1 and self.random.random() < _ROLL:
            self.logs.append(LogFile(self.logs[-1].number + 1))
        elif len(self.logs) > 1 and self.random.random() < _FLUSH:
            for done in self.logs.pop(0).batches:
                _apply(self.tables, done)
        current = self.logs[-1]
        current.batches.append(batch)
        if sync:
            current.synced = len(current.batches)

    def lose_power(self, random: Random) -> None:
        """Lose any subset of the unsynced batches."""
        for one in self.logs:
            surviving = [batch for n, batch in enumerate(one.batches) if n < one.synced or random.random() < 0.6]
            one.batches, one.synced, one.hole = (
                surviving,
                len(surviving),
                None if one.hole is None else min(one.hole, len(surviving)),
            )


def _apply(content: dict[bytes, bytes], batch: Operations) -> None:
    for key, value in batch:
        if value is None:
            content.pop(key, None)
        else:
            content[key] = value


class Plyvel:
    """The module `plyvel` of the index."""

    Error = plyvel.Error
    IOError = plyvel.IOError
    CorruptionError = plyvel.CorruptionError

    def __init__(self, scheduler: Scheduler, disk_of: Callable[[Path], Disk | None]) -> None:
        self._scheduler = scheduler
        self._disk_of = disk_of

    def DB(self, name: str, create_if_missing: bool = False, **_: Any) -> Database:
        """Open a database. Raises plyvel.IOError when another process holds it."""
        del create_if_missing
        disk = self._disk_of(Path(name))
        assert disk is not None
        process = self._scheduler.current.process if self._scheduler.current else None
        level = disk.level.get(name)
        if level is None:
            Path(name).mkdir(exist_ok=True)
            level = disk.level[name] = Level(disk, self._scheduler.random)
        if level.process is not None and not level.process.dead:
            raise plyvel.IOError("the lock is held by another process")
        return Database(level, level.open(process), self._scheduler)


class Database:
    """An open database."""

    def __init__(self, level: Level, content: dict[bytes, bytes], scheduler: Scheduler) -> None:
        self._level = level
        self._content = content
        self._keys = sorted(content)
        self._scheduler = scheduler
        self.closed = False

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        return self._content.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """Write one key."""
        with self.write_batch() as batch:
            batch.put(key, value)

    @contextmanager
    def write_batch(self, *, sync: bool = False, transaction: bool = False) -> Iterator[Batch]:
        """Collect a batch and write it at the end."""
        del transaction
        batch = Batch()
        yield batch
        self._write(batch.operations, sync=sync)

    def _write(self, operations: Operations, *, sync: bool) -> None:
        task = self._scheduler.current
        if sync:
            self._scheduler.sleep(self._level.disk.slow_s or self._scheduler.random.random() * 0.002)
        if task is not None and task.dead:
            self._scheduler.wait()
        self._level.append(operations, sync=sync)
        for key, value in operations:
            if value is None:
                if self._content.pop(key, None) is not None:
                    del self._keys[bisect.bisect_left(self._keys, key)]
            else:
                if key not in self._content:
                    bisect.insort(self._keys, key)
                self._content[key] = value

    @contextmanager
    def iterator(
        self, *, start: bytes = b"", stop: bytes | None = None, include_start: bool = True, include_stop: bool = False,
        reverse: bool = False, include_value: bool = True,
    ) -> Iterator[Iterator[Any]]:  # fmt: skip
        """Keys and values of a range, as they are now."""
        left, right = bisect.bisect_left, bisect.bisect_right
        first = left(self._keys, start) if include_start else right(self._keys, start)
        end = len(self._keys) if stop is None else (right if include_stop else left)(self._keys, stop)
        keys = self._keys[first:end]
        if reverse:
            keys.reverse()
        content = self._content
        yield iter([(key, content[key]) for key in keys]) if include_value else iter(keys)

    def compact_range(self, **_: Any) -> None:
        """Nothing to compact."""

    def close(self) -> None:
        """Unlock it for another process."""
        self.closed = True
        self._level.process = None


class Batch:
    """Puts and deletes that are written together."""

    def __init__(self) -> None:
        self.operations: Operations = []

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key."""
        self.operations.append((key, bytes(value)))

    def delete(self, key: bytes) -> None:
        """Remove a key."""
        self.operations.append((key, None))
