"""Outcomes of P that have none: the source is asked, or an operator decides; nothing is guessed (hazards R-07).

The source is asked about each P that got neither C nor R, and about each P that got an R, because TiDB also sends an R
after an undetermined commit. A committed or rolled-back transaction gets a C or a proven R in the value log, so the
proof outlives a restart and the source's own garbage collection. Any other answer, or a source that cannot be asked,
blocks the watermark and is shown. No P is discarded for its age: after the transaction timeout TiKV is asked to end the
transaction (see clients.py), and a prewrite that still waits is reported as a problem.

A rollback that TiKV does not protect leaves no record for long. So, if only a status port can be asked, there is a
second proof, only for a P that got an R: twice, a second apart, the source reports neither a lock nor a write record,
while the transaction is younger than the shortest time for which TiKV retains versions. Its lock was set before any
commit could be sent, and a commit record could not have been collected yet. So the transaction is not committed, and
without a lock it can no longer commit.

If no source knows, an operator decides by command: only a P that blocks the watermark, and never against what the
source knows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from binlake import tso
from binlake.cluster.source import Absent, Committed, Locked, RolledBack, Status, Unknown
from binlake.cluster.source.tikv import TikvStatus
from binlake.errors import ConfigError, Permanent, SourceUnavailable
from binlake.pump_service.pump.clients import StatusQueries, StatusSource
from binlake.pump_service.pump.config import TXN_TIMEOUT_S
from binlake.pump_service.pump.heads import Head, parse_head
from binlake.pump_service.pump.metrics import PumpMetrics
from binlake.pump_service.pump.sorter import EntryKind, SorterEntry
from binlake.pump_service.pump.storage import PumpStorage

log = structlog.get_logger()

_AT_ONCE = 64  # P asked about in one round
_DOUBTS_AT_ONCE = 4096  # an R is common: 1 to 15 % of transactions (tidb-binlog 1.14)
_ABSENT_S = 1.0  # between two answers that prove a rollback
_VERSIONS_LIVE_S = 600.0  # tidb_gc_life_time is at least 10 minutes
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 5.0  # pauses between two questions about one R; doubled each time
_HOW_TO_RESOLVE = (
    "reading its row in TiDB resolves a lock whose holder is gone; otherwise decide with `binlake txn resolve`"
)
_DESCRIBED = 10_000  # P shown in a list
_SHOWN_KEY = 64  # bytes of a key that are shown


@dataclass(slots=True)
class Resolutions:
    """Counts of what a resolver did so far. `contradicted`: R whose transaction was committed (a loss averted)."""

    queries: int = 0
    committed: int = 0
    rolled_back: int = 0
    contradicted: int = 0


@dataclass(slots=True)
class _Doubt:
    """When to ask again about a P with an R, and since when the source has had no record of it (0 = it has one)."""

    pause_s: float = _FIRST_PAUSE_S
    due: float = 0.0
    absent_since: float = 0.0


@dataclass
class Resolver:
    """Asks about each P that waits for two rounds in a row (a round a second: tidb-binlog 2.5) and about each R.

    `timeout_s`: the transaction timeout, measured on the timestamps of the log; a P that waits longer is `overdue`.
    `clock`: a fresh TSO, or SourceUnavailable; without it absence proves nothing and `tikv` is not asked.
    """

    storage: PumpStorage
    source: StatusSource
    timeout_s: float = TXN_TIMEOUT_S
    clock: Callable[[], int] | None = None
    tikv: TikvStatus | None = None
    blocked: str = ""
    overdue: int = 0
    counters: Resolutions = field(default_factory=Resolutions)
    _seen: set[int] = field(default_factory=set)
    # outcome stored, but still listed as waiting until the sorter has read it
    _ended: set[int] = field(default_factory=set)
    _doubts: dict[int, _Doubt] = field(default_factory=dict)
    _reasons: dict[int, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._asking = StatusQueries(self.source, self.tikv, clock=self.clock, timeout_s=self.timeout_s)

    @property
    def queries(self) -> int:
        """How often the source was asked."""
        return self.counters.queries

    def resolve_waiting(self) -> None:
        """Ask once about the waiting P; then `blocked` says why the first one still waits (empty: none waits)."""
        waiting = self.storage.list_waiting_prewrites(_AT_ONCE)
        doubted = {entry.start_ts for entry in self.storage.list_doubted_prewrites()}
        patient = [entry for entry in waiting if entry.start_ts in self._seen and entry.start_ts not in doubted]
        self._seen = {entry.start_ts for entry in waiting}
        with self._lock:
            self._ended &= self._seen | doubted
        self._asking.hold_gc(self.storage.count_unmatched()[1] if patient or doubted else 0)
        self._resolve(patient)
        self._describe_blocked(waiting)

    def verify_rollbacks(self) -> None:
        """Ask about each P that got an R, with growing pauses; nothing is asked when R are trusted."""
        doubted = self.storage.list_doubted_prewrites()
        now = time.monotonic()
        known = {entry.start_ts: self._doubts.get(entry.start_ts, _Doubt()) for entry in doubted}
        self._doubts = known
        due = [entry for entry in doubted if known[entry.start_ts].due <= now][:_DOUBTS_AT_ONCE]
        for entry in due:
            doubt = known[entry.start_ts]
            doubt.due, doubt.pause_s = now + doubt.pause_s, min(2 * doubt.pause_s, _LAST_PAUSE_S)
        if due:
            self._asking.hold_gc(self.storage.count_unmatched()[1])
            self._resolve(due)
            self._describe_blocked(self.storage.list_waiting_prewrites(_AT_ONCE))

    def describe(self) -> list[dict[str, Any]]:
        """The waiting P, in log order: start_ts (text), key, age in seconds, and the reason if they were asked
        about."""
        waiting = self.storage.list_waiting_prewrites(_DESCRIBED)
        now_ms = tso.extract_physical(self.storage.max_ts)
        with self._lock:
            return [
                {
                    "start_ts": str(entry.start_ts),
                    "key": _format_key(entry.key),
                    "age_s": max(0, now_ms - tso.extract_physical(entry.start_ts)) // 1000,
                    "reason": self._reasons.get(entry.start_ts, ""),
                }
                for entry in waiting
            ]

    def stop(self) -> None:
        """Stop asking; a running round ends soon."""
        self._stopped.set()
        self._asking.stop()

    def close(self) -> None:
        """Stop, then end the threads; no round may be running."""
        self.stop()
        self._asking.close()

    def _resolve(self, prewrites: Sequence[SorterEntry]) -> None:
        """Ask about all of them at once, and store the proved outcomes with few disk syncs."""
        with self._lock:
            prewrites = [entry for entry in prewrites if entry.start_ts not in self._ended]
        if not prewrites or self._stopped.is_set():
            return
        answers = self._asking.ask(prewrites, self._doubts)
        statuses = [self._prove(entry.start_ts, status) for entry, status in zip(prewrites, answers, strict=True)]
        reasons = [_explain_missing_proof(status) for status in statuses]
        proved = [place for place, reason in enumerate(reasons) if not reason]
        outcomes = [(prewrites[n].start_ts, _commit_ts(statuses[n]), prewrites[n].key) for n in proved]
        errors = self.storage.end_all(outcomes)
        for place, error in zip(proved, errors, strict=True):
            if error is not None:
                reasons[place] = f"its outcome cannot be stored: {error}"
        with self._lock:
            for entry, status, reason in zip(prewrites, statuses, reasons, strict=True):
                self._count(entry.start_ts, status, reason)
            self._ended |= {entry.start_ts for entry, reason in zip(prewrites, reasons, strict=True) if not reason}
        rolled_back = [prewrites[place].start_ts for place in proved if isinstance(statuses[place], RolledBack)]
        if rolled_back:
            log.info("prewrites_proved_rolled_back", count=len(rolled_back), first=rolled_back[0], last=rolled_back[-1])

    def _prove(self, start_ts: int, status: Status) -> Status:
        """`status`, or RolledBack if absence proves it (see the module)."""
        doubt = self._doubts.get(start_ts)
        if doubt is None or self.clock is None:
            return status
        now = time.monotonic()
        if not isinstance(status, Absent):
            doubt.absent_since = 0.0
        elif not doubt.absent_since:
            doubt.absent_since = now
        elif now - doubt.absent_since >= _ABSENT_S:
            try:
                # The clock is read after the answer, so the transaction was even younger when the source answered.
                age_ms = tso.extract_physical(self.clock()) - tso.extract_physical(start_ts)
            except SourceUnavailable as error:
                return Unknown(str(error))
            return RolledBack() if age_ms < _VERSIONS_LIVE_S * 1000 else status
        return status

    def _count(self, start_ts: int, status: Status, reason: str) -> None:
        self.counters.queries += 1
        if reason:
            self._reasons[start_ts] = reason
            return
        self._reasons.pop(start_ts, None)
        if isinstance(status, RolledBack):
            self.counters.rolled_back += 1
            return
        self.counters.committed += 1
        doubted = start_ts in self._doubts
        self.counters.contradicted += doubted
        self.storage.counters.contradicted += doubted
        commit_ts = status.commit_ts if isinstance(status, Committed) else 0
        if doubted:
            log.error("writer_said_rolled_back_but_it_is_committed", start_ts=start_ts, commit_ts=commit_ts)
        else:
            log.info("orphan_resolved", start_ts=start_ts, commit_ts=commit_ts)

    def _describe_blocked(self, waiting: Sequence[SorterEntry]) -> None:
        now_ms = tso.extract_physical(self.storage.max_ts)
        old = [entry for entry in waiting if now_ms - tso.extract_physical(entry.start_ts) > self.timeout_s * 1000]
        starts = {entry.start_ts for entry in waiting}
        with self._lock:
            self._reasons = {start: why for start, why in self._reasons.items() if start in starts}
            explained = [(entry, self._reasons[entry.start_ts]) for entry in waiting if entry.start_ts in self._reasons]
        self.overdue = len(old)
        self.blocked = ""
        if explained:
            entry, why = explained[0]
            late = f", beyond the transaction timeout of {self.timeout_s:g} s" if entry in old else ""
            advice = f"; {_HOW_TO_RESOLVE}" if entry in old else ""
            age = (now_ms - tso.extract_physical(entry.start_ts)) / 1000
            others = f", {len(waiting) - 1} more after it" if len(waiting) > 1 else ""
            self.blocked = (
                f"prewrite start_ts={entry.start_ts} key={_format_key(entry.key)} waits for its commit or rollback,"
                f" {age:.0f} s old{late}{others}: {why}{advice}"
            )


def _format_key(key: bytes) -> str:
    """The key in hex, with the table if it is the key of a row or an index entry (`t` + 8 bytes)."""
    text = key[:_SHOWN_KEY].hex() + ("..." if len(key) > _SHOWN_KEY else "")
    if len(key) >= 9 and key[:1] == b"t":
        return f"{text} (table {int.from_bytes(key[1:9], 'big') - (1 << 63)})"
    return text


def _commit_ts(status: Status) -> int | None:
    return status.commit_ts if isinstance(status, Committed) else None


def _explain_missing_proof(status: Status) -> str:
    """Why the status does not prove how the transaction ended; empty when it does."""
    match status:
        case Locked(ttl_ms):
            return f"its lock still exists (ttl {ttl_ms} ms)" if ttl_ms else "its lock still exists"
        case Unknown(reason):
            return reason
        case _:
            return ""


class PrewriteVerdict:
    """Stores the outcome of a P by command."""

    def __init__(self, storage: PumpStorage, source: StatusSource, metrics: PumpMetrics) -> None:
        self._storage = storage
        self._source = source
        self._metrics = metrics

    def decide(self, start_ts: int, commit_ts: int) -> None:
        """Record that transaction `start_ts` committed at `commit_ts`, or was rolled back when that is 0; durable on
        return.

        Raises Permanent when no P with this start_ts waits or the source contradicts, ConfigError for an impossible
        commit_ts, Transient when it cannot be stored now.
        """
        prewrite = self._find_waiting(start_ts)
        if commit_ts and commit_ts <= max(start_ts, self._storage.watermark):
            raise ConfigError(
                "this cannot be the commit_ts: it is not above the start_ts and the watermark",
                where={"start_ts": start_ts, "commit_ts": commit_ts, "watermark": self._storage.watermark},
                hint="binlogs at or below the watermark may have landed already",
            )
        answer = self._check_source(prewrite, commit_ts)
        self._storage.end(start_ts, commit_ts or None)
        self._metrics.forced.add()
        log.warning("outcome_forced_by_command", start_ts=start_ts, commit_ts=commit_ts, source_said=answer)

    def give_up(self, start_ts: int, commit_ts: int) -> None:
        """Give up the C at `commit_ts` of transaction `start_ts`, whose P is missing: pulls skip it; durable on return.

        Raises Permanent when this commit does not exist, or its prewrite is in this pump.
        """
        where = {"start_ts": start_ts, "commit_ts": commit_ts}
        commit = self._read_head(commit_ts)
        if commit is None or (commit.kind, commit.start_ts) != (EntryKind.COMMIT, start_ts):
            raise Permanent("this pump stores no commit of this transaction at this commit_ts", where=where)
        prewrite = self._read_head(start_ts)
        if prewrite is not None and prewrite.kind is EntryKind.PREWRITE:
            raise Permanent("its prewrite is stored here: the transaction is complete", where=where)
        self._storage.lost.add(start_ts, commit_ts)
        self._metrics.given_up.add()
        log.warning("commit_without_prewrite_given_up_by_command", **where)

    def _read_head(self, ts: int) -> Head | None:
        pointer = self._storage.index.find_pointer(ts)
        return None if pointer is None else parse_head(self._storage.read(pointer))

    def _find_waiting(self, start_ts: int) -> SorterEntry:
        for entry in self._storage.list_waiting_prewrites():
            if entry.start_ts == start_ts:
                return entry
        raise Permanent(
            "no prewrite with this start_ts waits in this pump",
            where={"start_ts": start_ts},
            hint="its commit or rollback has arrived since, or another pump has it",
        )

    def _check_source(self, prewrite: SorterEntry, commit_ts: int) -> str:
        """The source's answer, if it does not contradict."""
        try:
            status = self._source.fetch_transaction_status(prewrite.start_ts, prewrite.key)
        except SourceUnavailable as error:
            return f"no answer: {error.message}"
        match status:
            case Committed(known) if known != commit_ts:
                known_outcome = f"it committed at {known}"
            case RolledBack() if commit_ts:
                known_outcome = "it was rolled back"
            case Locked():
                known_outcome = "its lock still exists, so it may still commit"
            case Unknown(reason):
                return reason
            case _:
                return "the same"
        raise Permanent(
            f"the source reports another outcome: {known_outcome}",
            where={"start_ts": prewrite.start_ts, "asked_for": commit_ts or "rolled back"},
            hint="the pump itself resolves transactions whose outcome the source knows",
        )
