"""The storage of one pump: a data directory that stores acked binlogs and knows up to where it is complete.

The path of a binlog: budget -> group commit into the value log (fsync) -> ack -> follower (index, sorter, watermark).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import structlog

from binlake.errors import BinlakeError, LostRange, Transient, WireError
from binlake.pump_service.pump.directory import DataDirectory, Files, LostCommits
from binlake.pump_service.pump.follower import Counters, LogFollower, read_known_synced
from binlake.pump_service.pump.future_timestamps import Ceiling
from binlake.pump_service.pump.groupcommit import BytesInFlight, Done, GroupCommit, Item, TimestampClaims
from binlake.pump_service.pump.heads import PROOF, Head, normalise
from binlake.pump_service.pump.index import PumpIndex
from binlake.pump_service.pump.record import Pointer
from binlake.pump_service.pump.recovery import StopAsked, build_lost_end_error, never_stop
from binlake.pump_service.pump.sorter import EntryKind, SorterEntry
from binlake.pump_service.pump.vlog import SEGMENT_BYTES, LogOptions, ValueLog
from binlake.wire.binlog_pb2 import Binlog, Commit, Rollback

log = structlog.get_logger()

_PREWRITE, _COMMIT = (
    EntryKind.PREWRITE,
    EntryKind.COMMIT,
)  # read for each write, and looking up an Enum member costs a call
_PATIENCE_S = 10.0  # below the 15 s after which a writer gives up (tidb-binlog 4)


@dataclass(frozen=True)
class StorageOptions:
    """`segment_bytes`, `sync_log`: tidb-binlog 2.2, 2.12. `memory_bytes`: what may be in flight between a call and its
    fsync. `index_queue`: entries that may wait for the index in memory. `trust_rollbacks`: an R ends its P without
    proof (hazards R-07); False when there is a source to ask. `accepted_damage`: positions in the value log whose loss
    an operator accepted."""

    segment_bytes: int = SEGMENT_BYTES
    sync_log: bool = True
    memory_bytes: int = 256 << 20
    index_queue: int = 1 << 18
    trust_rollbacks: bool = True
    accepted_damage: frozenset[Pointer] = frozenset()


class Removed(NamedTuple):
    """What a collection removed."""

    files: int
    keys: int


class PullFault:
    """The error with which pulls end at present. `text` is empty if they do not fail, or have passed that point."""

    def __init__(self) -> None:
        self.text = ""
        self._after = 0

    def record(self, after_ts: int, error: BinlakeError) -> None:
        """A pull failed after `after_ts`. A collected range is the caller's fault and is not recorded."""
        if not isinstance(error, LostRange):
            self._after, self.text = after_ts, str(error)

    def clear_below(self, commit_ts: int) -> None:
        """A pull delivered everything up to `commit_ts`, so clear an earlier fault."""
        if self.text and commit_ts > self._after:
            self.text = ""


class PumpStorage:
    """An open storage with its recovery done; see the module. All methods may be called from any thread.

    `recovered`: how many records the start had to read again. `files`, `open_index`: access to the disk. `ceiling`:
    checks the timestamps of everything that is stored (None: no check, as without PD). `recover` False: the storage is
    only opened, and `recover` is called later. `stop`: returns whether to abandon opening and recovery (StartStopped).
    """

    def __init__(
        self,
        directory: Path,
        options: StorageOptions = StorageOptions(),
        *,
        files: Files | None = None,
        open_index: Callable[[Path], PumpIndex] | None = None,
        ceiling: Ceiling | None = None,
        recover: bool = True,
        stop: StopAsked = never_stop,
    ) -> None:
        self._ceiling = ceiling
        self._stop = stop
        self.directory = DataDirectory(directory, files)
        with ExitStack() as undo:
            undo.callback(self.directory.close)
            self.lost = LostCommits(self.directory)
            self.pull_fault = PullFault()
            self.index = (open_index or PumpIndex)(directory / "kv")
            undo.callback(self.index.close)
            self._log = self._open_log(options, files)
            self._tell_batch: Callable[[], None] = lambda: None
            self._budget = BytesInFlight(options.memory_bytes, _PATIENCE_S)
            self._follower = LogFollower(
                self.index, self._log, trust_rollbacks=options.trust_rollbacks, queue_limit=options.index_queue
            )
            self._commit: GroupCommit | None = None
            self.recovered = 0
            undo.pop_all()
        if recover:
            with ExitStack() as undo:
                undo.callback(self.close)
                self.recover()
                undo.pop_all()

    def recover(self) -> None:
        """Index what the last run may not have indexed, then begin to store. Call it once. Raises Permanent, LostRange,
        StartStopped.

        Takes minutes if the index was lost. Until it returns, nothing can be stored, pulled or collected, and `error`
        shows the progress.
        """
        begun = time.monotonic()
        self.recovered = self._follower.recover(self._stop)
        took = round(time.monotonic() - begun, 2)
        log.info("storage_opened", records=self.recovered, seconds=took, watermark=self.watermark)
        self._follower.start()
        taken = TimestampClaims(self.index, self._log, lambda: self._follower.indexed)
        commit = GroupCommit(self._log, taken, self._follower.put, self._budget.give_back, lambda: self._tell_batch())
        commit.start()
        self._commit = commit

    def check_recovered(self) -> None:
        """Raise Transient while the index is being built."""
        if self._commit is None:
            raise _build_starting_error(self.error)

    def append(self, payload: bytes) -> Future[None]:
        """Store a serialised Binlog; the future is done after its fsync.

        Raises WireError for bytes that are not a binlog or for a P or C without its ts; Transient when too much is in
        flight. The future raises Transient (nothing was stored) or Permanent (the disk failed).
        """
        stored: Future[None] = Future()
        # reserved before the hand-over, because a failing disk may answer at once
        stored.set_running_or_notify_cancel()

        def set_outcome(error: BinlakeError | None) -> None:
            if error is None:
                stored.set_result(None)
            else:
                stored.set_exception(error)

        self.submit(payload, set_outcome, wait=True)
        return stored

    def submit(self, payload: bytes, done: Done, *, wait: bool = False) -> None:
        """Like `append`, for a caller that must not block: `done` gets the outcome on the log's thread.

        `wait`: block for a while when too much is in flight, instead of being refused at once. Raises as `append`. A
        timestamp above PD's clock as known here waits for a fresh one; then `done` is called on the ceiling's thread.
        """
        payload, head = _check_payload(payload)
        item = Item(payload, head, done)
        if self._ceiling is not None:
            ts = max(head.start_ts, head.commit_ts)
            if not self._ceiling.admits(ts):
                self._ceiling.ask(ts, partial(self._on_judged, item))
                return
        self._put(item, wait=wait)

    def _on_judged(self, item: Item, refused: BinlakeError | None) -> None:
        if refused is None:
            try:
                self._put(item, wait=True)
            except BinlakeError as error:
                refused = error
        if refused is not None:
            item.done(refused)

    def _put(self, item: Item, *, wait: bool) -> None:
        commit = self._commit
        if commit is None:
            raise _build_starting_error(self.error)
        self._budget.take(item.size, wait=wait)
        try:
            commit.put(item)
        except BaseException:
            self._budget.give_back(item.size)
            raise

    def on_batch(self, tell: Callable[[], None]) -> None:
        """Call `tell` after each batch, once all its writes are answered; on the log's thread: it must not block."""
        self._tell_batch = tell

    def end(self, start_ts: int, commit_ts: int | None) -> None:
        """Durably store the outcome of the P `start_ts` that was proved or that an operator decided: committed at
        `commit_ts`, or None = rolled back. Raises as `append` and its future."""
        self.append(_encode_end(start_ts, commit_ts)).result()

    def end_all(self, outcomes: Sequence[tuple[int, int | None, bytes]]) -> list[BinlakeError | None]:
        """Like `end` for each (start_ts, commit_ts, prewrite_key), with one wait for all; returns each one's error, or
        None once it is stored. A commit carries the key of its prewrite, as the writer's own would: it may identify the
        transaction."""
        begun: list[Future[None] | BinlakeError] = []
        for start_ts, commit_ts, key in outcomes:
            try:
                begun.append(self.append(_encode_end(start_ts, commit_ts, key)))
            except BinlakeError as error:
                begun.append(error)
        return [one if isinstance(one, BinlakeError) else _find_error(one) for one in begun]

    def read(self, pointer: Pointer) -> bytes:
        """The payload at `pointer`. Raises WireError, LostRange."""
        return self._log.read(pointer)

    @property
    def records(self) -> ValueLog:
        """The value log, for reading stretches of it."""
        return self._log

    @property
    def watermark(self) -> int:
        """Every transaction with commit_ts at or below it can be pulled, complete."""
        return self._follower.watermark

    @property
    def max_ts(self) -> int:
        """The greatest ts ever stored here. An oracle whose timestamps are below it is not the one of this data."""
        return max(self._log.max_ts, self.watermark)

    @property
    def counters(self) -> Counters:
        """Counts of this process, such as late, early and duplicate commits."""
        return self._follower.counters

    @property
    def refused_future(self) -> int:
        """How many binlogs were refused because their timestamp lies above PD's clock."""
        return self._ceiling.refused if self._ceiling is not None else 0

    @property
    def error(self) -> str:
        """Why nothing can be stored or shown at present; empty = no problem."""
        if self._commit is None:
            at, end = self._follower.indexed.fid, self._log.end.fid
            return f"the index is being rebuilt from the value log: file {at:06d}.vlog of {end:06d}.vlog"
        return self._log.error or self._follower.error

    @property
    def log_failure(self) -> str:
        """Why the value log takes nothing until the next start; empty = it does."""
        return self._log.failed

    @property
    def given_up(self) -> int:
        """How many damaged stretches of the value log were skipped, as configured (`accept-damage`)."""
        return self._log.given_up

    @property
    def in_flight_bytes(self) -> int:
        """Bytes accepted from writers and not yet durable."""
        return self._budget.used

    @property
    def index_lag(self) -> int:
        """Entries in memory that are durable but not indexed yet."""
        return len(self._follower.backlog)

    def list_waiting_prewrites(self, limit: int = 0) -> list[SorterEntry]:
        """The P that block the watermark, in log order."""
        return self._follower.list_waiting_prewrites(limit)

    def list_doubted_prewrites(self, limit: int = 0) -> list[SorterEntry]:
        """The P whose writer reported a rollback that is not proved so far (empty with `trust_rollbacks`)."""
        return self._follower.list_doubted_prewrites(limit)

    def count_unmatched(self) -> tuple[int, int]:
        """How many P wait, and their least start_ts (0 = none)."""
        return self._follower.count_unmatched()

    def wait_above(self, ts: int, timeout_s: float, give_up: Callable[[], bool]) -> None:
        """Wait for a watermark above `ts`; see Follower."""
        self._follower.wait_above(ts, timeout_s, give_up)

    def wake(self) -> None:
        """Make all waiting threads check their `give_up`."""
        self._follower.wake()

    def collect(self, gc_ts: int, bound: int) -> Removed:
        """Remove what is no longer needed once everything up to `gc_ts` may go.

        That is: the oldest files that end at or below `bound` and hold no P of a later C, and the keys of their
        records.

        `gc_ts` is durable before the first deletion. Raises OSError, plyvel.Error; then the next call continues.
        """
        self.check_recovered()
        if gc_ts > self.index.gc_ts:
            self.directory.replace("gcts", str(gc_ts))
            self.index.set_gc_ts(gc_ts)
        # Never remove a file after one that stays: a P would lose its C.
        files = self._log.list_old_files()
        needed = self._follower.find_needed_by_files(fid for fid, _ in files)
        over = takewhile(lambda one: one[1] <= bound and needed.get(one[0], gc_ts + 1) <= gc_ts, files)
        fids = [fid for fid, _ in over]
        keys = self.index.remove_below(gc_ts, fids) if fids else 0
        self._log.remove(fids)
        self._follower.forget(fids)
        self.counters.collected_files += len(fids)
        self.counters.collected_keys += keys
        self.counters.done_gc_ts = gc_ts
        return Removed(len(fids), keys)

    def close(self) -> None:
        """Store and index what is in flight, then close everything and unlock the directory, even if a step fails."""
        with ExitStack() as steps:  # the last one first
            steps.callback(self.directory.close)
            steps.callback(self.index.close)
            steps.callback(self._log.close)
            steps.callback(self._follower.close)
            if self._commit is not None:
                steps.callback(self._commit.close)

    def _open_log(self, options: StorageOptions, files: Files | None) -> ValueLog:
        recorded = int(self.directory.recall("gcts") or 0)
        if recorded > self.index.gc_ts:  # the index was lost and is being rebuilt: collected binlogs stay collected
            self.index.set_gc_ts(recorded)
        values = ValueLog(
            self.directory.path / "value",
            LogOptions(options.segment_bytes, options.sync_log, options.accepted_damage),
            files=files,
            known=read_known_synced(self.index),
            stop=self._stop,
        )
        head = self.index.head
        if self.index.checkpoint and not values.holds(head):
            raise build_lost_end_error(head, values.end)
        return values


def _find_error(stored: Future[None]) -> BinlakeError | None:
    error = stored.exception()
    if error is None or isinstance(error, BinlakeError):
        return error
    raise error


def _build_starting_error(how_far: str) -> Transient:
    return Transient("the pump is starting", where={"state": how_far})


def _encode_end(start_ts: int, commit_ts: int | None, key: bytes = b"") -> bytes:
    if commit_ts is None:
        rollback = Binlog(tp=Rollback, start_ts=start_ts, commit_ts=0, ddl_job_id=0, ddl_schema_state=0)
        return rollback.SerializeToString() + PROOF
    commit = Binlog(tp=Commit, start_ts=start_ts, commit_ts=commit_ts, ddl_job_id=0, ddl_schema_state=0)
    if key:
        commit.prewrite_key = key
    return commit.SerializeToString()


def _check_payload(payload: bytes) -> tuple[bytes, Head]:
    head, payload = normalise(payload)
    kind, start_ts, commit_ts, _ = head
    if start_ts <= 0 and (kind is _PREWRITE or kind is _COMMIT):
        raise WireError("a prewrite or commit needs a start_ts", where={"start_ts": start_ts})
    if commit_ts <= 0 and kind is _COMMIT:
        raise WireError("a commit needs a commit_ts", where={"start_ts": start_ts})
    return payload, head
