"""The storage of one pump: a data directory that keeps what was acked and knows how far it is complete.

The way of a binlog: budget -> group commit into the value log (fsync) -> ack -> follower (index, sorter, watermark).
A data directory belongs to one process (`.lock`), has a store uuid of its own (`.uuid`, hazards R-06) and remembers its
node id (`.node`) and cluster (`.cluster`, hazards R-09).
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import structlog
from google.protobuf.message import DecodeError

from binlake.errors import Permanent, WireError
from binlake.wire.binlog_pb2 import Binlog
from binlake.wire.build import emit_always
from pump_service.pump.follower import Counters, Follower, kind_of
from pump_service.pump.groupcommit import Budget, GroupCommit, Item
from pump_service.pump.index import Index
from pump_service.pump.record import Pointer
from pump_service.pump.sorter import Entry, Kind
from pump_service.pump.vlog import SEGMENT_BYTES, ValueLog, sync_directory

log = structlog.get_logger()

_PATIENCE_S = 10.0  # below the 15 s after which a writer gives up (tidb-binlog 4)


@dataclass(frozen=True)
class StorageOptions:
    """`memory_bytes`: what may be in flight between a call and the index; the others as in tidb-binlog 2.2, 2.12."""

    segment_bytes: int = SEGMENT_BYTES
    sync_log: bool = True
    memory_bytes: int = 256 << 20


class DataDirectory:
    """The directory with its lock and its small files. Raises Permanent when another process holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise Permanent(
                "another process holds the data directory", where={"data_dir": path}, hint="one pump per directory"
            ) from None
        self.store_uuid = self.remember("uuid", str(uuid.uuid4()))

    def recall(self, name: str) -> str:
        """The content of the small file `.name`; empty when there is none."""
        try:
            return (self.path / f".{name}").read_text().strip()
        except FileNotFoundError:
            return ""

    def remember(self, name: str, value: str) -> str:
        """The content of `.name`, written durably with `value` when there is none yet: the first value stays."""
        known = self.recall(name)
        if known:
            return known
        fresh = self.path / f".{name}.new"
        with fresh.open("w") as file:
            file.write(value)
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(self.path / f".{name}")
        sync_directory(self.path)
        return value

    def available_bytes(self) -> int:
        """Bytes of the file system that an ordinary user may still take."""
        stat = os.statvfs(self.path)
        return stat.f_bavail * stat.f_frsize

    def close(self) -> None:
        """Free the directory for another process."""
        os.close(self._lock)


class Storage:
    """Open with the recovery done; see the module. All methods may be called from any thread."""

    def __init__(self, directory: Path, options: StorageOptions = StorageOptions()) -> None:
        self.directory = DataDirectory(directory)
        try:
            self._log = ValueLog(directory / "value", segment_bytes=options.segment_bytes, sync=options.sync_log)
            self.index = Index(directory / "kv")
        except BaseException:
            self.directory.close()
            raise
        self._budget = Budget(options.memory_bytes, _PATIENCE_S)
        self._follower = Follower(self.index, self._budget.give_back)
        self._commit = GroupCommit(self._log, self._follower.put, self._budget.give_back)
        start = min(self.index.head, self.index.handle)
        records = self._follower.recover(self._log.scan_from(start))
        log.info("storage_opened", records=records, watermark=self.watermark, store_uuid=self.directory.store_uuid)
        self._follower.start()
        self._commit.start()

    def append(self, payload: bytes) -> Future[None]:
        """Store a serialised Binlog; the future is done after its fsync.

        Raises WireError for bytes that are no binlog or a P, C without its ts; Transient when too much is in flight.
        The future raises Transient (nothing was stored) or Permanent (the disk failed).
        """
        item = _item(payload)
        self._budget.take(item.memory)
        try:
            self._commit.put(item)
        except BaseException:
            self._budget.give_back(item.memory)
            raise
        return item.stored

    def read(self, pointer: Pointer) -> bytes:
        """The payload at `pointer`. Raises WireError, LostRange."""
        return self._log.read(pointer)

    @property
    def watermark(self) -> int:
        """Every transaction with commit_ts at or below it can be pulled, complete."""
        return self._follower.watermark

    @property
    def max_ts(self) -> int:
        """The greatest ts ever stored here: an oracle below it is not the one this data came from."""
        return max(self._log.max_ts, self.watermark)

    @property
    def counters(self) -> Counters:
        """Late, early and double commits seen by this process."""
        return self._follower.counters

    @property
    def error(self) -> str:
        """Why nothing can be stored or shown at the moment; empty = all is well."""
        return self._log.failed or self._follower.error

    def waiting(self, limit: int = 0) -> list[Entry]:
        """The P that block the watermark, in log order."""
        return self._follower.waiting(limit)

    def unmatched(self) -> tuple[int, int]:
        """How many P wait, and the least start_ts of them (0 = none)."""
        return self._follower.unmatched()

    def wait_above(self, ts: int, timeout_s: float, give_up: Callable[[], bool]) -> None:
        """Wait for a watermark above `ts`; see Follower."""
        self._follower.wait_above(ts, timeout_s, give_up)

    def wake(self) -> None:
        """Let every waiter look at its `give_up` again."""
        self._follower.wake()

    def close(self) -> None:
        """Store and index what is in flight, then close and free the directory."""
        self._commit.close()
        self._follower.close()
        self._log.close()
        self.index.close()
        self.directory.close()


def parse(payload: bytes) -> Binlog:
    """The binlog in `payload`. Raises WireError."""
    try:
        return Binlog.FromString(payload)
    except DecodeError as error:
        raise WireError("the payload is no binlog", where={"bytes": len(payload), "reason": error}) from None


def _item(payload: bytes) -> Item:
    binlog = parse(payload)
    kind = kind_of(binlog)
    if kind in (Kind.PREWRITE, Kind.COMMIT) and binlog.start_ts <= 0:
        raise WireError("a P or C needs its start_ts", where={"start_ts": binlog.start_ts})
    if kind is Kind.COMMIT and binlog.commit_ts <= 0:
        raise WireError("a C needs its commit_ts", where={"start_ts": binlog.start_ts})
    if emit_always(binlog):
        payload = binlog.SerializeToString()
    key = binlog.prewrite_key if kind is Kind.PREWRITE else b""
    return Item(payload, kind, binlog.start_ts, binlog.commit_ts, key)
