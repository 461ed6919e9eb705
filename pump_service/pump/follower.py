"""The follower of the value log: indexes what is durable, sorts it, and only then shows the watermark.

One thread owns the index's writes and the sorter. A watermark is shown after the batch that carries it is in the index,
so a reader who sees W finds every transaction up to W there. The head pointer names only what was synced to the disk,
once a second: after a power failure, too, everything behind it is fed again from the value log.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import plyvel
import structlog

from binlake.wire.binlog_pb2 import Binlog, Commit, Prewrite, Rollback
from pump_service.pump.index import Index
from pump_service.pump.record import Pointer
from pump_service.pump.sorter import Entry, Kind, Outcome, Sorter

log = structlog.get_logger()

_PUTS = 1024  # entries of one LevelDB batch
_RETRY_S = 1.0  # tidb-binlog 2.4
_SYNC_S = 1.0
_KINDS = {Prewrite: Kind.PREWRITE, Commit: Kind.COMMIT, Rollback: Kind.ROLLBACK}


@dataclass(slots=True)
class Counters:
    """What went wrong so far in this process, shown by Info.

    late_commits: C that no pull can have shown in its place (hazards R-08). early_commits: C whose commit_ts was
    fetched before the ack of its P (hazards R-09). duplicates: the same C again (harmless).
    """

    late_commits: int = 0
    early_commits: int = 0
    duplicates: int = 0


def kind_of(binlog: Binlog) -> Kind:
    """What `binlog` is to the sorter; a fake is known by start_ts == commit_ts (tidb-binlog 2.7)."""
    if binlog.start_ts == binlog.commit_ts and binlog.start_ts:
        return Kind.FAKE
    return _KINDS.get(binlog.tp, Kind.OTHER)


def entry_of(pointer: Pointer, payload: bytes) -> Entry:
    """The entry of a record read back from the value log."""
    binlog = Binlog.FromString(payload)
    kind = kind_of(binlog)
    key = binlog.prewrite_key if kind is Kind.PREWRITE else b""
    return Entry(kind, binlog.start_ts, binlog.commit_ts, pointer, key)


class Follower:
    """Feeds index and sorter; `released(bytes)` is told what left the memory."""

    def __init__(self, index: Index, released: Callable[[int], None]) -> None:
        self._index = index
        self._released = released
        self._sorter = Sorter(index.max_ts, index.handle)
        self._sorter_lock = threading.Lock()
        self._watermark = index.max_ts
        self._last = self._synced_head = index.head
        self._synced_at = time.monotonic()
        self._moved = threading.Condition()
        self._batches: queue.SimpleQueue[tuple[list[Entry], int] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pump-index", daemon=True)
        self.counters = Counters()
        self.error = ""

    def recover(self, records: Iterable[tuple[Pointer, bytes]]) -> int:
        """Feed again what the last run may not have indexed, before `start`; how many records that were."""
        count, batch = 0, []
        for pointer, payload in records:
            batch.append(entry_of(pointer, payload))
            count += 1
            if len(batch) == _PUTS:
                self._take(batch)
                batch = []
        self._take(batch, sync=True)
        self.counters.duplicates = 0  # what is fed again is no double
        return count

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def put(self, entries: list[Entry], memory: int) -> None:
        """Hand over durable entries in log order, which hold `memory` bytes; never blocks."""
        self._batches.put((entries, memory))

    def close(self) -> None:
        """Index what was handed over (unless the index fails), then end and wake every waiter."""
        self._stopping.set()
        self._batches.put(None)
        if self._thread.ident is not None:
            self._thread.join()
        self.wake()

    @property
    def watermark(self) -> int:
        """Every transaction with commit_ts at or below it is in the index, complete."""
        return self._watermark

    def wait_above(self, ts: int, timeout_s: float, give_up: Callable[[], bool]) -> None:
        """Wait until the watermark is above `ts`, `give_up()` says so after a wake, or the time is over."""
        with self._moved:
            self._moved.wait_for(lambda: self._watermark > ts or give_up(), timeout_s)

    def wake(self) -> None:
        """Let every waiter look at its `give_up` again."""
        with self._moved:
            self._moved.notify_all()

    def waiting(self, limit: int = 0) -> list[Entry]:
        """The P that block, in log order."""
        with self._sorter_lock:
            return self._sorter.waiting(limit)

    def unmatched(self) -> tuple[int, int]:
        """How many P wait, and the least start_ts of them (0 = none)."""
        with self._sorter_lock:
            return len(self._sorter), self._sorter.oldest_waiting()

    def _run(self) -> None:
        ended = False
        while not ended:
            entries, memory, ended = self._gather()
            self._take(entries, sync=ended or time.monotonic() - self._synced_at > _SYNC_S)
            self._released(memory)
        self._synced_head = self._last
        self._write([], self._sorter.max_ts, self._sorter.handle, sync=True)

    def _gather(self) -> tuple[list[Entry], int, bool]:
        gathered: list[Entry] = []
        memory = 0
        batch = self._batches.get()
        while batch is not None:
            gathered += batch[0]
            memory += batch[1]
            if len(gathered) >= _PUTS or self._batches.empty():
                return gathered, memory, False
            batch = self._batches.get()
        return gathered, memory, True

    def _take(self, batch: list[Entry], *, sync: bool = False) -> None:
        if not batch:
            return
        with self._sorter_lock:
            self._sort(batch)
            max_ts, handle = self._sorter.max_ts, self._sorter.handle
        puts = [(entry.start_ts if entry.kind is Kind.PREWRITE else entry.commit_ts, entry.pointer) for entry in batch]
        if not self._write(puts, max_ts, handle, sync):
            return
        self._last = batch[-1].pointer
        if sync:
            self._synced_head, self._synced_at = self._last, time.monotonic()
        if max_ts > self._watermark:
            with self._moved:
                self._watermark = max_ts
                self._moved.notify_all()

    def _write(self, puts: list[tuple[int, Pointer]], max_ts: int, handle: Pointer, sync: bool) -> bool:
        while True:
            try:
                self._index.write(puts, head=self._synced_head, max_ts=max_ts, handle=handle, sync=sync)
            except plyvel.Error as error:
                self.error = f"the index cannot be written: {error}"
                log.error("index_write_failed", error=str(error))
                if self._stopping.wait(_RETRY_S):
                    return False
            else:
                self.error = ""
                return True

    def _sort(self, batch: list[Entry]) -> None:
        fresh: set[int] = set()
        for entry in batch:
            outcome = self._sorter.push(entry)
            if entry.kind is Kind.COMMIT:
                self._judge(entry, outcome, fresh)
                fresh.add(entry.commit_ts)

    def _judge(self, commit: Entry, outcome: Outcome, fresh: set[int]) -> None:
        where = {"start_ts": commit.start_ts, "commit_ts": commit.commit_ts, "watermark": self._watermark}
        if outcome is Outcome.TOO_EARLY:
            self.counters.early_commits += 1
            log.error("commit_ts_fetched_before_prewrite_was_stored", **where)
        elif outcome is Outcome.UNMATCHED:
            if commit.commit_ts in fresh or self._index.pointer(commit.commit_ts) is not None:
                self.counters.duplicates += 1
            else:
                self.counters.late_commits += 1
                log.error("late_commit", **where)
