"""The follower of the value log: indexes durable records, sorts them, and only then shows the new watermark.

One thread owns the index's writes and the sorter. A watermark is shown after the batch that carries it is in the index,
so a reader that sees W finds every transaction up to W in the index. The head pointer covers only records whose index
entries are on disk (checked once a second), and the sorter's state is saved with it. So after a power failure, too,
everything after the head is indexed again.

A failing index is retried for half a minute; then the thread dies, and the pump with it (LevelDB keeps some errors
until it is opened again). If the pump is stopped during such a failure, the follower writes nothing more, so that the
head never skips the failed entries.

Memory is bounded however slow the index is: entries that do not fit into the queue are read back from the value log
later (tidb-binlog 2.4, the slow chaser).
"""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import plyvel
import structlog

from binlake.errors import Permanent
from binlake.pump_service.pump.heads import parse_entries
from binlake.pump_service.pump.index import PumpIndex
from binlake.pump_service.pump.record import Pointer
from binlake.pump_service.pump.recovery import KnownSynced, StartStopped, StopAsked, never_stop
from binlake.pump_service.pump.sorter import EntryKind, PushOutcome, Sorter, SorterEntry
from binlake.pump_service.pump.vlog import ValueLog

log = structlog.get_logger()

_PUTS = 1024  # entries of one LevelDB batch
_PACE_S = 0.01  # seconds between two batches that are not full: entries that arrive meanwhile share one batch
_RETRY_S = 1.0  # tidb-binlog 2.4
_PATIENCE_S = 30.0  # seconds between tries to write to a failing index
_SYNC_S = 1.0
_DUMP_SHARE = 20  # saving the state may take a twentieth of the time
_QUEUE = 1 << 18  # entries in memory, some 300 bytes each
# Looking up an Enum member costs a call.
_PREWRITE, _COMMIT, _TAKEN = EntryKind.PREWRITE, EntryKind.COMMIT, PushOutcome.TAKEN
_FILE_MAX = struct.Struct("<q")


@dataclass(slots=True)
class Counters:
    """Counts of this process, shown by Info.

    late_commits: C that arrived too late for a pull to show them in commit order (hazards R-08). early_commits: C whose
    commit_ts was fetched before the ack of its P (hazards R-09). duplicates: the same C again (harmless). slow_chases:
    how often the index fell so far behind that the log had to be read back. contradicted: R from a writer although the
    transaction was committed (hazards R-07). collected_files, collected_keys, done_gc_ts: what GC removed, and the gcTS
    of the last finished GC.
    """

    late_commits: int = 0
    early_commits: int = 0
    duplicates: int = 0
    slow_chases: int = 0
    contradicted: int = 0
    collected_files: int = 0
    collected_keys: int = 0
    done_gc_ts: int = 0


class Backlog:
    """What the follower still has to process: entries in log order, or a stretch of the log to read back."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: deque[list[SorterEntry] | Pointer] = deque()
        self._count = 0
        self._changed = threading.Condition()
        self._closed = False
        self.stretches = 0

    def put(self, entries: list[SorterEntry], end: Pointer) -> None:
        """Add entries that end at `end`. If they do not fit, only `end` is remembered. Never blocks."""
        with self._changed:
            if self._parts and isinstance(self._parts[-1], Pointer):
                self._parts[-1] = end
            elif self._count + len(entries) > self._limit and self._count:
                self._parts.append(end)
                self.stretches += 1
            else:
                self._parts.append(entries)
                self._count += len(entries)
            self._changed.notify()

    def close(self) -> None:
        """Make `take` return None once everything is taken."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def take(self) -> list[SorterEntry] | Pointer | None:
        """Wait for the next entries (several parts at once) or for the end of a stretch to read back; None = closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._parts or self._closed)
            if not self._parts:
                return None
            first = self._parts.popleft()
            if isinstance(first, Pointer):
                return first
            taken = list(first)
            while self._parts and len(taken) < _PUTS and not isinstance(self._parts[0], Pointer):
                taken += self._parts.popleft()  # type: ignore[arg-type]  # the type of parts[0] was just seen
            self._count -= len(taken)
            return taken

    def __len__(self) -> int:
        """Entries in memory."""
        return self._count


class LogFollower:
    """Feeds index and sorter from `put` and, after the queue overflowed, from the log. See the module."""

    def __init__(
        self, index: PumpIndex, values: ValueLog, *, trust_rollbacks: bool = True, queue_limit: int = _QUEUE
    ) -> None:
        self._index = index
        self._values = values
        state = index.checkpoint
        if state:
            self._sorter = Sorter.load(state[_FILE_MAX.size :], trust_rollbacks=trust_rollbacks)
            self._next = index.head
            self._last_indexed: Pointer | None = index.head
        else:
            self._sorter = Sorter(index.max_ts, index.handle, trust_rollbacks=trust_rollbacks)
            self._next, self._last_indexed = min(index.head, index.handle), None
        self._sorter_lock = threading.Lock()
        self._watermark = max(
            index.max_ts, self._sorter.max_ts
        )  # everything after the head is indexed before readers are served
        self._synced_head = index.head
        self._state = b""
        self._synced_at, self._sync_s = time.monotonic(), _SYNC_S
        self._moved = threading.Condition()
        self._backlog = Backlog(queue_limit)
        self._stopping = threading.Event()
        self._stop: StopAsked = never_stop
        self._broken = False  # entries were taken from the queue but not indexed: no later ones may be written
        self._thread = threading.Thread(target=self._run, name="pump-index", daemon=True)
        self.counters = Counters()
        self.error = ""

    def recover(self, stop: StopAsked = never_stop) -> int:
        """Before `start`, index again what the last run may not have indexed; return the number of records.

        Raises Permanent when the index cannot be written, StartStopped once `stop` returns True: the next start
        continues from that point.
        """
        self._stop = stop
        count = self._read_back(self._values.end)
        if stop():
            self._save_state()
            raise StartStopped
        self._stop = never_stop
        if count:
            self._sync()
        self.counters.duplicates = 0  # a record that is indexed a second time is not a duplicate
        return count

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, entries: list[SorterEntry], end: Pointer) -> None:
        """Hand over durable entries in log order; `end`: the position after them. Never blocks."""
        self._backlog.put(entries, end)

    def close(self) -> None:
        """Index what was handed over (unless the index fails), then stop and wake all waiting threads."""
        self._stopping.set()
        self._backlog.close()
        if self._thread.ident is not None:
            self._thread.join()
        self.wake()

    @property
    def watermark(self) -> int:
        """Every transaction with commit_ts at or below it is complete in the index."""
        return self._watermark

    @property
    def indexed(self) -> Pointer:
        """The position up to which every record, including the one at this position, is in the index."""
        return self._next

    @property
    def backlog(self) -> Backlog:
        """The number of entries still to be indexed."""
        return self._backlog

    def wait_above(self, ts: int, timeout_s: float, give_up: Callable[[], bool]) -> None:
        """Wait until the watermark is above `ts`, until `give_up()` after a `wake`, or for `timeout_s`."""
        with self._moved:
            self._moved.wait_for(lambda: self._watermark > ts or give_up(), timeout_s)

    def wake(self) -> None:
        """Make all waiting threads check their `give_up`."""
        with self._moved:
            self._moved.notify_all()

    def list_waiting_prewrites(self, limit: int = 0) -> list[SorterEntry]:
        """The P that block the watermark, in log order."""
        with self._sorter_lock:
            return self._sorter.list_waiting_prewrites(limit)

    def list_doubted_prewrites(self, limit: int = 0) -> list[SorterEntry]:
        """The P whose writer reported a rollback that is not proved so far."""
        with self._sorter_lock:
            return self._sorter.list_doubted_prewrites(limit)

    def count_unmatched(self) -> tuple[int, int]:
        """How many P wait, and their least start_ts (0 = none)."""
        with self._sorter_lock:
            return len(self._sorter), self._sorter.find_oldest_waiting()

    def find_needed_by_files(self, fids: Iterable[int]) -> dict[int, int]:
        """For each file the greatest commit_ts whose P is in it (0 = none is known), without files with a waiting P."""
        with self._sorter_lock:
            blocking = self._sorter.list_blocking_files()
            return {fid: self._sorter.look_up_needed_ts(fid) for fid in fids if fid not in blocking}

    def forget(self, fids: Iterable[int]) -> None:
        """Forget these files, which were removed."""
        with self._sorter_lock:
            for fid in fids:
                self._sorter.forget(fid)

    def _run(self) -> None:
        while self._process_next():
            if len(self._backlog) < _PUTS:
                self._stopping.wait(_PACE_S)
        if not self._broken:
            self._index.flush()  # so that the next start replays neither LevelDB's log nor the value log
        self._save_state()

    def _save_state(self) -> None:
        """Save the state, so that the next start need not read the log again, unless the index failed."""
        if self._broken:
            log.warning("stopped_behind", error=self.error)  # the next start reads it back
            return
        self._sync()
        self._write((), sync=True)

    def _process_next(self) -> bool:
        part = self._backlog.take()
        if isinstance(part, Pointer):
            self._catch_up(part)
        elif part is not None:
            self._index_batch(part)
        return part is not None and not self._broken

    def _catch_up(self, end: Pointer) -> None:
        self.counters.slow_chases += 1
        begun = time.monotonic()
        count = self._read_back(end)
        log.warning("index_was_behind", records=count, seconds=round(time.monotonic() - begun, 1))

    def _read_back(self, end: Pointer) -> int:
        count = 0
        for entries in self._read_entries(end):
            for at in range(0, len(entries), _PUTS):
                if self._stop() or not self._index_batch(entries[at : at + _PUTS]):
                    return count
            count += len(entries)
        self._next = max(self._next, end)
        return count

    def _read_entries(self, end: Pointer) -> Iterator[list[SorterEntry]]:
        """The entries in the log from the next position to before `end`."""
        taken = self._last_indexed
        for fid, stretch in self._values.scan_stretches(self._next, end):
            entries = parse_entries(fid, stretch)
            if taken is not None and entries[0].pointer == taken:
                del entries[0]
            yield entries

    def _index_batch(self, batch: list[SorterEntry]) -> bool:
        """Sort and index entries; False when the pump is stopped while the index fails."""
        if not batch:
            return True
        with self._sorter_lock:
            self._sort(batch)
            max_ts = self._sorter.max_ts
        puts = [(entry[1] if entry[0] is _PREWRITE else entry[2], entry[3]) for entry in batch]
        due = time.monotonic() - self._synced_at > self._sync_s
        if not self._write(puts, sync=due):
            self._broken = True
            return False
        self._last_indexed = self._next = batch[-1].pointer
        if due:
            self._save_checkpoint()
        if max_ts > self._watermark:
            with self._moved:
                self._watermark = max_ts
                self._moved.notify_all()
        return True

    def _sync(self) -> None:
        if self._write((), sync=True):
            self._save_checkpoint()

    def _save_checkpoint(self) -> None:
        """All indexed entries are written and synced. Once they are on disk, the next batch moves the head to them."""
        begun = self._synced_at = time.monotonic()
        if self._last_indexed is None or not self._index.is_durable():
            return
        with self._sorter_lock:
            state = self._sorter.dump()
        self._synced_head = self._last_indexed
        self._state = _FILE_MAX.pack(self._values.look_up_max_ts(self._last_indexed.fid)) + state
        self._synced_at = time.monotonic()
        self._sync_s = max(_SYNC_S, (self._synced_at - begun) * _DUMP_SHARE)

    def _write(self, puts: Sequence[tuple[int, Pointer]], *, sync: bool) -> bool:
        max_ts, handle = self._sorter.max_ts, self._sorter.handle
        sync = sync or bool(self._state)  # a later batch with this head must not reach the disk without its state
        give_up_at = time.monotonic() + _PATIENCE_S
        while True:
            try:
                self._index.write(
                    puts, head=self._synced_head, max_ts=max_ts, handle=handle, state=self._state, sync=sync
                )
            except plyvel.Error as error:
                self.error = f"the index cannot be written: {error}"
                log.error("index_write_failed", error=str(error))
                if time.monotonic() > give_up_at:
                    hint = "acked binlogs are safe in the value log; start the pump again when the disk of kv/ works"
                    raise Permanent(self.error, hint=hint) from error
                if self._stop() or self._stopping.wait(_RETRY_S):
                    return False
            else:
                self.error, self._state = "", b""
                return True

    def _sort(self, batch: list[SorterEntry]) -> None:
        fresh: set[int] = set()
        push = self._sorter.push
        for entry in batch:
            outcome = push(entry)
            if entry[0] is _COMMIT:
                if outcome is not _TAKEN:
                    self._count_odd_commit(entry, outcome, fresh)
                fresh.add(entry[2])

    def _count_odd_commit(self, commit: SorterEntry, outcome: PushOutcome, fresh: set[int]) -> None:
        where = {"start_ts": commit.start_ts, "commit_ts": commit.commit_ts, "watermark": self._watermark}
        if outcome is PushOutcome.TOO_EARLY:
            self.counters.early_commits += 1
            log.error("commit_ts_fetched_before_prewrite_was_stored", **where)
            return
        if commit.commit_ts in fresh or self._index.find_pointer(commit.commit_ts) is not None:
            self.counters.duplicates += 1
            return
        if commit.commit_ts <= self._index.gc_ts:
            return  # the index is being rebuilt, and the P was collected
        self.counters.late_commits += 1
        log.error("late_commit", **where)
        prewrite = self._index.find_pointer(commit.start_ts)
        if prewrite is not None:
            self._sorter.need(prewrite.fid, commit.commit_ts)


def read_known_synced(index: PumpIndex) -> KnownSynced | None:
    """The last record that the checkpoint covers; None if there is no checkpoint."""
    state = index.checkpoint
    return KnownSynced(index.head, _FILE_MAX.unpack_from(state)[0]) if state else None
