"""One run of continuous validation: rows that windows changed since the last run, and those that still wait.

The target is read in one snapshot at its checkpoint. The lake knows what a row must be there, so a difference from it
is an error at once; a row that equals the lake's is compared with the source's, too, where the source can be asked.
What cannot be compared for a reason that lasts is named; for any other one the run is postponed, and the next one does
its work, too. No window fails by it: it is applied.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import structlog
from deltalake.exceptions import TableNotFoundError

from binlake import tso
from binlake.audit.audit import Audit
from binlake.base.redaction import key_in_log
from binlake.changes.net import row_key
from binlake.config import Replication
from binlake.errors import BinlakeError, Transient
from binlake.lake.lock import lake_lock
from binlake.lake.paths import LakePaths
from binlake.lake.shardlocks import read_locks
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.repair.backfill.touched import chance_of_key, find_touched_keys
from binlake.repair.validation.lakerows import LakeRows, join_lake_rows, read_lake_rows
from binlake.repair.validation.ledger import LOCK, Against, Entry, Ledger, Status
from binlake.repair.validation.proof import Judged, Proof, Reading, judge
from binlake.repair.validation.sources import (
    SourceReader,
    SourceRows,
    digest_of,
    open_source,
    row_digests,
    rows_of_keys,
)
from binlake.repair.verify.differences import Difference, Row, RowsOfTable
from binlake.repair.verify.keyorder import AnyKey
from binlake.repair.verify.snapshot import Snapshot, target_snapshot
from binlake.repair.verify.tables import Name, VerifiedTable, cluster_of, tables_at
from binlake.rows.codec import key_text
from binlake.rows.schema.names import fold_pair
from binlake.rules import Rules
from binlake.target.claim.aside import is_aside
from binlake.window.manifest import window_name

log = structlog.get_logger(__name__)

STAGE = "validate"
State = Literal["done", "postponed"]
SPOKEN = "validation"
"""The stage of events in which a person changed the ledger; their detail has the counts that a run's has."""
_LISTED = 20
_LOCK_S = 1.0
"""Seconds to wait for a person's command, which holds the ledger for a moment."""
_KEYS_AT_ONCE = 20_000
"""Keys whose rows are in memory at a time; for each so many the window's row changes are read once."""
_OPEN: tuple[Status, ...] = ("pending", "new", "ignored")
_NO_KEY = "it has no key"
_MOVED = "its rows have another key at the target, or had among the changes"


@dataclass
class Validated:
    """What a run compared behind (`lo`, `hi`]: `hi` is the target's checkpoint.

    `compared`: rows; `against_source`: those of them that were compared with the source, too; `found`, `settled`:
    errors that are new, and that are over; `pending`, `errors`, `ignored`: in the ledger now; `dropped`: rows that it
    had no room for; `tables`: why rows of some were not compared; `listed`: some of the errors, by marks of their keys;
    `why`: why it was postponed, or the source not asked.
    """

    lo: int
    hi: int
    state: State = "done"
    compared: int = 0
    against_source: int = 0
    found: int = 0
    settled: int = 0
    pending: int = 0
    errors: int = 0
    ignored: int = 0
    dropped: int = 0
    passed_over: bool = False
    tables: dict[str, str] = field(default_factory=dict)
    listed: list[dict[str, Any]] = field(default_factory=list)
    why: str = ""
    seconds: float = 0.0

    def detail(self) -> dict[str, Any]:
        """For the lake's table `window`; nothing of a row."""
        own = {name: value for name, value in vars(self).items() if name not in ("lo", "hi", "state", "why", "seconds")}
        own["tables"] = dict(sorted(self.tables.items())[:_LISTED])
        own["tables_left_out"] = len(self.tables)
        return own | ({"reason": self.why} if self.why else {})


def validate(replication: Replication, lo: int, hi: int, run_id: str) -> Validated:
    """Compare behind the applied window (`lo`, `hi`]; what was found is in the ledger and in the table `window`."""
    began = time.monotonic()
    windows = WindowLog(LakePaths.of(replication))
    try:
        done = _Run(replication, windows, lo, run_id).run()
    except BinlakeError as error:
        log.warning("validation_postponed", error=str(error))
        done = Validated(lo, hi, "postponed", why=str(error))
    except Exception as error:
        # The window is done: a comparison that fails is reported, and does not fail the run.
        log.exception("validation_failed")
        done = Validated(lo, hi, "postponed", why=f"{type(error).__name__}: {error}")
    done.seconds = time.monotonic() - began
    windows.record(
        WindowEvent(
            STAGE, done.lo, done.hi, done.state, done.compared, done.seconds, run_id, "sql", detail=done.detail()
        )
    )
    return done


@dataclass(frozen=True)
class _Work:
    """Rows of one table: keys that were `chosen` among what changed after `since`, and those `held` in the ledger."""

    table: VerifiedTable
    chosen: Sequence[AnyKey]
    held: Sequence[AnyKey]
    since: int
    held_since: int

    @property
    def keys(self) -> list[AnyKey]:
        """All of them."""
        return [*self.chosen, *self.held]


class _Run:
    def __init__(self, replication: Replication, windows: WindowLog, lo: int, run_id: str) -> None:
        self._replication, self._windows, self._lo, self._run_id = replication, windows, lo, run_id
        self._options = replication.validation
        self._paths = LakePaths.of(replication)

    def run(self) -> Validated:
        target, cluster_id = self._replication.sql_target(), cluster_of(self._windows)
        with (
            lake_lock(self._paths, LOCK, wait_s=_LOCK_S),
            target_snapshot(target, cluster_id, self._replication.name) as snapshot,
        ):
            ts = snapshot.checkpoint.commit_ts
            self._done = done = Validated(self._since(ts), ts)
            self._ledger = Ledger(self._paths)
            self._audit = Audit(self._paths, Rules.of(self._replication), self._windows)
            self._snapshot = snapshot
            work = list(self._work(snapshot, ts))
            with open_source(self._replication, ts) as source:
                if isinstance(source, str):
                    done.why = source
                for one in work:
                    self._compare(one, None if isinstance(source, str) else source)
            self._ledger.save()
        ledger = self._ledger
        done.pending, done.errors, done.ignored = ledger.count("pending"), ledger.count("new"), ledger.count("ignored")
        done.listed = list_errors(self._ledger)
        tell = log.error if done.found else log.info
        tell("validated", rows=done.compared, found=done.found, pending=done.pending, errors=done.errors)
        return done

    def _since(self, ts: int) -> int:
        """The commit_ts after which changed rows are compared: that of the last run, unless it is long ago."""
        reached = self._windows.greatest_hi(STAGE)
        since = self._lo if reached is None else reached
        most = tso.compose(max(tso.physical(ts) - 1000 * self._options.max_behind_s, 0))
        self._is_behind = since < most
        return min(max(since, most), ts)

    def _work(self, snapshot: Snapshot, ts: int) -> Iterator[_Work]:
        done, since = self._done, self._done.lo
        done.passed_over = self._is_behind
        tables = {one.name: one for one in tables_at(self._replication, self._paths, ts)}
        least = min((entry.since for entry in self._ledger.entries(_OPEN)), default=since)
        locks = read_locks(self._windows, Rules.of(self._replication), min(least, since), ts)
        self._waiting = {fold_pair(hold.target) for hold in locks.holds}
        comparable = {name: one for name, one in tables.items() if self._is_comparable(one, snapshot)}
        chosen = self._choose(comparable, since, ts)
        held = self._held(comparable)
        for name in sorted({*chosen, *held}):
            entries = held.get(name, [])
            keys = [tuple(json.loads(entry.key)) for entry in entries]
            least = min((entry.since for entry in entries), default=since)
            known = set(keys)
            for some in _stretches([key for key in chosen.get(name, ()) if tuple(key) not in known]):
                yield _Work(comparable[name], some, keys, since, least)
                keys = []

    def _is_comparable(self, one: VerifiedTable, snapshot: Snapshot) -> bool:
        if one.table.identity().kind == "row":
            self._done.tables[".".join(one.name)] = _NO_KEY
        elif is_aside(snapshot.aside, one.name):
            self._done.tables[".".join(one.name)] = "it is set aside"
        elif fold_pair(one.name) in self._waiting:
            self._done.tables[".".join(one.name)] = "rows of it waited for a DDL of other shards"
        else:
            return True
        return False

    def _choose(self, tables: Mapping[Name, VerifiedTable], since: int, ts: int) -> dict[Name, list[AnyKey]]:
        """Keys that changed: all, or as many as a sample has, of which each table has its share."""
        most = self._options.sample_rows if self._options.mode == "sample" else 0
        try:
            touched = find_touched_keys(self._replication, since, ts, ts, tables.values(), most=most)
        except TableNotFoundError:
            return {}
        self._done.tables |= {".".join(name): _MOVED for name in touched.whole}
        found = touched.sorted_keys()
        if not most or sum(map(len, found.values())) <= most:
            return found
        # Of more tables than rows each window has other ones.
        tables_by_chance = sorted(found, key=lambda name: (chance_of_key(".".join(name), ts), name))
        shares = {name: _shuffled(found[name], ts) for name in tables_by_chance}
        rounds = itertools.zip_longest(*([(name, key) for key in keys] for name, keys in shares.items()))
        chosen: dict[Name, list[AnyKey]] = {}
        for name, key in itertools.islice((one for round_ in rounds for one in round_ if one is not None), most):
            chosen.setdefault(name, []).append(key)
        return chosen

    def _held(self, tables: Mapping[Name, VerifiedTable]) -> dict[Name, list[Entry]]:
        """What waits in the ledger, by table; what is about a table or a key that is no more is over."""
        held: dict[Name, list[Entry]] = {}
        for entry in self._ledger.entries(_OPEN):
            name = (entry.db, entry.table)
            if name not in tables:
                if ".".join(name) not in self._done.tables:
                    self._ledger.settle(entry.place)
            elif len(json.loads(entry.key)) != len(tables[name].table.identity().columns):
                self._ledger.settle(entry.place)
            else:
                held.setdefault(name, []).append(entry)
        return held

    def _compare(self, work: _Work, source: SourceReader | None) -> None:
        name = ".".join(work.table.name)
        try:
            there, lake = self._rows_of_target(work), self._rows_of_lake(work)
            self._changed = lake.changed
            wrong = self._compare_with_lake(work, there, lake)
        except Transient:
            # The target is away, or a DDL waits for it: the next run compares what this one was to compare.
            raise
        except BinlakeError as error:
            self._done.tables[name] = error.message
            return
        keys = [key for key in work.keys if key_text(list(key)) not in wrong]
        if source is None or not keys:
            return
        try:
            found = source.rows_of_keys(work.table, keys)
            self._compare_with_source(work, keys, there, found, lake, source)
            self._done.against_source += len(keys)
        except BinlakeError as error:
            self._done.tables[name] = f"with the source: {error.message}"

    def _rows_of_target(self, work: _Work) -> list[Row]:
        target, one = self._replication.sql_target(), work.table
        self._snapshot.require_no_waiting_ddl()
        return rows_of_keys(self._snapshot.session, one.expected, [one.name], work.keys, target.db_type)

    def _rows_of_lake(self, work: _Work) -> LakeRows:
        """Those held changed longer ago than those that were chosen: they are few."""
        mirrored, parts = self._replication.mirror.enabled, []
        for keys, since in ((work.held, work.held_since), (work.chosen, work.since)):
            if keys:
                parts.append(
                    read_lake_rows(self._audit, self._paths, work.table, keys, since, self._done.hi, mirrored=mirrored)
                )
        return join_lake_rows(parts)

    def _compare_with_lake(self, work: _Work, there: list[Row], lake: LakeRows) -> set[str]:
        """The keys that differ from the lake: errors."""
        known = {key_text(list(key)): key for key in work.keys if key_text(list(key)) not in lake.unknown}
        found = [row for row in there if row_key(row, work.table.expected.identity().columns) in known]
        differences = RowsOfTable(work.table.expected, lake.rows, found).differences()
        wrong = {one.key for one in differences}
        for one in differences:
            self._record_error("lake", one, work)
        self._settle("lake", work, list(known.values()), wrong)
        self._done.compared += len(known)
        if lake.unknown:
            self._done.tables[".".join(work.table.name)] = f"{len(lake.unknown)} rows: {lake.why}"
        return wrong

    def _compare_with_source(
        self,
        work: _Work,
        keys: Sequence[AnyKey],
        there: list[Row],
        source_rows: SourceRows,
        lake: LakeRows,
        source: SourceReader,
    ) -> None:
        expected, texts = work.table.expected, {key_text(list(key)) for key in keys}
        own = [row for row in there if row_key(row, expected.identity().columns) in texts]
        differences = RowsOfTable(expected, source_rows.rows, own).differences()
        wrong = {one.key for one in differences}
        self._settle("source", work, keys, wrong)
        if source.is_exact:
            for one in differences:
                self._record_error("source", one, work)
            return
        digests = row_digests(expected, source_rows.rows)
        for one in differences:
            reading = Reading(
                self._done.hi, False, digest_of(digests, one.key), lake.changed.get(one.key, 0), source_rows.is_fresh,
                source_rows.places,
            )  # fmt: skip
            entry = self._ledger.get(("source", *work.table.name, one.key))
            if entry is not None and entry.status in ("new", "ignored"):
                self._record_error("source", one, work)
                continue
            judged = judge(_proof_of(entry), reading, source.published)
            self._record_judged(judged, one, work)

    def _record_judged(self, judged: Judged, one: Difference, work: _Work) -> None:
        if judged.is_error:
            self._record_error("source", one, work)
        elif judged.proof is not None:
            self._put(self._entry("pending", "source", one, work, proof=judged.proof.to_json()))

    def _record_error(self, against: Against, one: Difference, work: _Work) -> None:
        images = {name: "" if row is None else json.dumps(dict(row), ensure_ascii=False)
                  for name, row in (("expected", one.expected), ("found", one.found))}  # fmt: skip
        old = self._ledger.get((against, one.db, one.table, one.key))
        entry = self._put(self._entry("new", against, one, work, **images))
        if entry is not None and entry.status == "new" and (old is None or old.status != "new"):
            self._done.found += 1

    def _entry(
        self, status: Literal["pending", "new"], against: Against, one: Difference, work: _Work, **more: str
    ) -> Entry:
        old = self._ledger.get((against, one.db, one.table, one.key))
        since = self._changed[one.key] - 1 if one.key in self._changed else work.since if old is None else old.since
        window = window_name(self._done.lo, self._done.hi)
        made = Entry(status, against, one.db, one.table, one.key, one.kind, one.columns, window=window, since=since)
        return replace(made, **more)  # type: ignore[arg-type]

    def _put(self, entry: Entry) -> Entry | None:
        """None where the ledger has no room."""
        most = self._options.max_pending_rows if entry.status == "pending" else self._options.max_errors
        if self._ledger.get(entry.place) is None and self._ledger.count(entry.status) >= most:
            self._done.dropped += 1
            return None
        return self._ledger.put(entry)

    def _settle(self, against: Against, work: _Work, keys: Collection[AnyKey], wrong: Collection[str]) -> None:
        for key in keys:
            text = key_text(list(key))
            if text not in wrong:
                self._done.settled += self._ledger.settle((against, *work.table.name, text))


def _stretches(keys: Sequence[AnyKey]) -> Iterator[Sequence[AnyKey]]:
    """At least one, which may be empty."""
    for start in range(0, max(len(keys), 1), _KEYS_AT_ONCE):
        yield keys[start : start + _KEYS_AT_ONCE]


def list_errors(ledger: Ledger) -> list[dict[str, Any]]:
    """The first errors that are new, for logs and pages: nothing of a row but a mark of its key."""
    return [
        {"number": one.number, "table": f"{one.db}.{one.table}", "key": key_in_log(one.key), "kind": one.kind,
         "columns": list(one.differing), "against": one.against, "window": one.window, "times": one.times}
        for one in ledger.new_errors()[:_LISTED]
    ]  # fmt: skip


def _proof_of(entry: Entry | None) -> Proof | None:
    return entry.known_proof if entry is not None and entry.status == "pending" else None


def _shuffled(keys: Sequence[AnyKey], seed: int) -> list[AnyKey]:
    return sorted(keys, key=lambda key: chance_of_key(key_text(list(key)), seed))
