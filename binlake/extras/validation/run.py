"""One run of continuous validation: compares rows changed by windows since the last run, and pending rows.

The target is read in one snapshot at its checkpoint. The lake has the right row for that checkpoint, so a difference
from it is an error at once. A row that equals the lake's is also compared with the source's, if the source can be
queried. Rows that cannot be compared for a lasting reason are reported. For any other reason the run is postponed, and
the next run does its work too. Validation never fails a window, because the window is already applied.
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
from binlake.changes.net import encode_row_key
from binlake.common.redaction import redact_key
from binlake.config import Replication
from binlake.errors import BinlakeError, Transient
from binlake.extras.validation.keyedrows import (
    LakeRows,
    SourceReader,
    SourceRows,
    compute_row_digests,
    join_lake_rows,
    look_up_digest,
    open_source,
    read_lake_rows,
    read_rows_by_key,
)
from binlake.extras.validation.ledger import LOCK, Against, Status, ValidationEntry, ValidationLedger
from binlake.extras.validation.proof import Judgement, Proof, RowReading, judge
from binlake.lake.lock import hold_lake_lock
from binlake.lake.paths import LakePaths
from binlake.lake.sharedtargets import read_locks
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.repair.chunks import AnyKey
from binlake.repair.differences import Difference, Row, RowsOfTable
from binlake.repair.lakeside import Name, VerifiedTable, list_tables_at, read_cluster_id
from binlake.repair.rangerepair import compute_pseudo_random, find_touched_keys
from binlake.repair.serverside import TargetSnapshot, open_target_snapshot
from binlake.rows.codec import format_key_text
from binlake.rows.schema.forms import fold_pair
from binlake.rules import Rules
from binlake.target.claim.checkpoint import is_aside
from binlake.window.manifest import format_window_name

log = structlog.get_logger(__name__)

STAGE = "validate"
State = Literal["done", "postponed"]
MANUAL_STAGE = "validation"
"""The stage of events about manual changes of the ledger; their detail has the same counts as a run's."""
_LISTED = 20
_LOCK_S = 1.0
"""Seconds to wait for a manual command, which locks the ledger briefly."""
_KEYS_AT_ONCE = 20_000
"""Keys whose rows are in memory at a time; the windows' row changes are read once per this many."""
_OPEN: tuple[Status, ...] = ("pending", "new", "ignored")
_NOT_IN_DETAIL = ("lo", "hi", "state", "why", "seconds")
_NO_KEY = "it has no key"
_MOVED = "its rows have another key at the target, or had another key during the changes"


@dataclass
class ValidationResult:
    """The result of a run after (`lo`, `hi`]; `hi` is the target's checkpoint.

    `compared`: rows; `against_source`: rows also compared with the source; `found`, `settled`: new and resolved errors;
    `pending`, `errors`, `ignored`: now in the ledger; `dropped`: rows that did not fit into the ledger; `passed_over`:
    rows that changed too long ago were skipped; `tables`: why rows of some tables were not compared; `listed`: some of
    the errors, with masked keys; `why`: why the run was postponed, or the source was not queried.
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

    def build_detail(self) -> dict[str, Any]:
        """The detail for the lake's table `window`; without any values of rows."""
        detail = {name: value for name, value in vars(self).items() if name not in _NOT_IN_DETAIL}
        detail |= {"tables": dict(sorted(self.tables.items())[:_LISTED]), "tables_left_out": len(self.tables)}
        return detail | ({"reason": self.why} if self.why else {})


def validate(replication: Replication, lo: int, hi: int, run_id: str) -> ValidationResult:
    """Compare after the applied window (`lo`, `hi`]. Results are written to the ledger and the table `window`."""
    began = time.monotonic()
    windows = WindowLog(LakePaths.of(replication))
    try:
        done = _Run(replication, windows, lo, run_id).run()
    except BinlakeError as error:
        log.warning("validation_postponed", error=str(error))
        done = ValidationResult(lo, hi, "postponed", why=str(error))
    except Exception as error:
        # The window is done, so a failed comparison is reported and does not fail the run.
        log.exception("validation_failed")
        done = ValidationResult(lo, hi, "postponed", why=f"{type(error).__name__}: {error}")
    done.seconds = time.monotonic() - began
    windows.record(
        WindowEvent(
            STAGE, done.lo, done.hi, done.state, done.compared, done.seconds, run_id, "sql", detail=done.build_detail()
        )
    )
    return done


@dataclass(frozen=True)
class _TableWork:
    """Rows of one table: keys `chosen` among those that changed after `since`, and keys `in_ledger`."""

    table: VerifiedTable
    chosen: Sequence[AnyKey]
    in_ledger: Sequence[AnyKey]
    since: int
    ledger_since: int

    @property
    def keys(self) -> list[AnyKey]:
        """All keys."""
        return [*self.chosen, *self.in_ledger]


class _Run:
    def __init__(self, replication: Replication, windows: WindowLog, lo: int, run_id: str) -> None:
        self._replication, self._windows, self._lo, self._run_id = replication, windows, lo, run_id
        self._options = replication.validation
        self._paths = LakePaths.of(replication)

    def run(self) -> ValidationResult:
        target, cluster_id = self._replication.require_sql_target(), read_cluster_id(self._windows)
        with (
            hold_lake_lock(self._paths, LOCK, wait_s=_LOCK_S),
            open_target_snapshot(target, cluster_id, self._replication.name) as snapshot,
        ):
            ts = snapshot.checkpoint.commit_ts
            self._done = done = ValidationResult(self._compute_since(ts), ts)
            self._ledger = ValidationLedger(self._paths)
            self._audit = Audit(self._paths, Rules.of(self._replication), self._windows)
            self._snapshot = snapshot
            work = list(self._plan_work(snapshot, ts))
            with open_source(self._replication, ts) as source:
                if isinstance(source, str):
                    done.why = source
                for table_work in work:
                    self._compare(table_work, None if isinstance(source, str) else source)
            self._ledger.save()
        ledger = self._ledger
        done.pending, done.errors, done.ignored = ledger.count("pending"), ledger.count("new"), ledger.count("ignored")
        done.listed = list_errors(self._ledger)
        tell = log.error if done.found else log.info
        tell("validated", rows=done.compared, found=done.found, pending=done.pending, errors=done.errors)
        return done

    def _compute_since(self, ts: int) -> int:
        """The commit_ts after which changed rows are compared: the last run's, unless that is too long ago."""
        reached = self._windows.find_greatest_hi(STAGE)
        since = self._lo if reached is None else reached
        most = tso.compose(max(tso.extract_physical(ts) - 1000 * self._options.max_behind_s, 0))
        self._is_behind = since < most
        return min(max(since, most), ts)

    def _plan_work(self, snapshot: TargetSnapshot, ts: int) -> Iterator[_TableWork]:
        done, since = self._done, self._done.lo
        done.passed_over = self._is_behind
        tables = {verified.name: verified for verified in list_tables_at(self._replication, self._paths, ts)}
        least = min((entry.since for entry in self._ledger.list_entries(_OPEN)), default=since)
        locks = read_locks(self._windows, Rules.of(self._replication), min(least, since), ts)
        self._waiting = {fold_pair(hold.target) for hold in locks.holds}
        comparable = {name: verified for name, verified in tables.items() if self._is_comparable(verified, snapshot)}
        chosen = self._choose_keys(comparable, since, ts)
        open_entries = self._open_entries(comparable)
        for name in sorted({*chosen, *open_entries}):
            entries = open_entries.get(name, [])
            keys = [tuple(json.loads(entry.key)) for entry in entries]
            least = min((entry.since for entry in entries), default=since)
            known = set(keys)
            for batch in _split_keys([key for key in chosen.get(name, ()) if tuple(key) not in known]):
                yield _TableWork(comparable[name], batch, keys, since, least)
                keys = []

    def _is_comparable(self, verified: VerifiedTable, snapshot: TargetSnapshot) -> bool:
        if verified.table.find_identity().kind == "row":
            self._done.tables[".".join(verified.name)] = _NO_KEY
        elif is_aside(snapshot.aside, verified.name):
            self._done.tables[".".join(verified.name)] = "it is set aside"
        elif fold_pair(verified.name) in self._waiting:
            self._done.tables[".".join(verified.name)] = "rows of it waited for a DDL of other shards"
        else:
            return True
        return False

    def _choose_keys(self, tables: Mapping[Name, VerifiedTable], since: int, ts: int) -> dict[Name, list[AnyKey]]:
        """The changed keys: all, or a sample with a share of each table."""
        most = self._options.sample_rows if self._options.mode == "sample" else 0
        try:
            touched = find_touched_keys(self._replication, since, ts, ts, tables.values(), most=most)
        except TableNotFoundError:
            return {}
        self._done.tables |= {".".join(name): _MOVED for name in touched.whole}
        changed = touched.sort_keys()
        if not most or sum(map(len, changed.values())) <= most:
            return changed
        # If there are more tables than rows in a sample, each window takes different tables.
        tables_by_chance = sorted(changed, key=lambda name: (compute_pseudo_random(".".join(name), ts), name))
        shares = {name: _shuffle_keys(changed[name], ts) for name in tables_by_chance}
        rounds = itertools.zip_longest(*([(name, key) for key in keys] for name, keys in shares.items()))
        chosen: dict[Name, list[AnyKey]] = {}
        for name, key in itertools.islice((pair for round_ in rounds for pair in round_ if pair is not None), most):
            chosen.setdefault(name, []).append(key)
        return chosen

    def _open_entries(self, tables: Mapping[Name, VerifiedTable]) -> dict[Name, list[ValidationEntry]]:
        """The ledger's open entries by table. Entries of tables or keys that no longer exist are settled."""
        open_entries: dict[Name, list[ValidationEntry]] = {}
        for entry in self._ledger.list_entries(_OPEN):
            name = (entry.db, entry.table)
            if name not in tables:
                if ".".join(name) not in self._done.tables:
                    self._ledger.settle(entry.entry_key)
            elif len(json.loads(entry.key)) != len(tables[name].table.find_identity().columns):
                self._ledger.settle(entry.entry_key)
            else:
                open_entries.setdefault(name, []).append(entry)
        return open_entries

    def _compare(self, work: _TableWork, source: SourceReader | None) -> None:
        name = ".".join(work.table.name)
        try:
            target_rows, lake = self._read_target_rows(work), self._read_lake_rows(work)
            self._changed = lake.changed
            wrong = self._compare_with_lake(work, target_rows, lake)
        except Transient:
            # The target is unavailable, or a DDL waits for it: the next run does this run's work.
            raise
        except BinlakeError as error:
            self._done.tables[name] = error.message
            return
        keys = [key for key in work.keys if format_key_text(list(key)) not in wrong]
        if source is None or not keys:
            return
        try:
            source_rows = source.read_rows_by_key(work.table, keys)
            self._compare_with_source(work, keys, target_rows, source_rows, lake, source)
            self._done.against_source += len(keys)
        except BinlakeError as error:
            self._done.tables[name] = f"with the source: {error.message}"

    def _read_target_rows(self, work: _TableWork) -> list[Row]:
        target, verified = self._replication.require_sql_target(), work.table
        self._snapshot.require_no_waiting_ddl()
        return read_rows_by_key(self._snapshot.session, verified.expected, [verified.name], work.keys, target.db_type)

    def _read_lake_rows(self, work: _TableWork) -> LakeRows:
        """Read the lake's rows. The few keys in the ledger changed longer ago, so they are read separately."""
        mirrored, parts = self._replication.mirror.enabled, []
        for keys, since in ((work.in_ledger, work.ledger_since), (work.chosen, work.since)):
            if keys:
                parts.append(
                    read_lake_rows(self._audit, self._paths, work.table, keys, since, self._done.hi, mirrored=mirrored)
                )
        return join_lake_rows(parts)

    def _compare_with_lake(self, work: _TableWork, target_rows: list[Row], lake: LakeRows) -> set[str]:
        """Record rows that differ from the lake as errors. Returns their keys."""
        known = {format_key_text(list(key)): key for key in work.keys if format_key_text(list(key)) not in lake.unknown}
        rows = [row for row in target_rows if encode_row_key(row, work.table.expected.find_identity().columns) in known]
        differences = RowsOfTable(work.table.expected, lake.rows, rows).list_differences()
        wrong = {difference.key for difference in differences}
        for difference in differences:
            self._record_error("lake", difference, work)
        self._settle("lake", work, list(known.values()), wrong)
        self._done.compared += len(known)
        if lake.unknown:
            self._done.tables[".".join(work.table.name)] = f"{len(lake.unknown)} rows: {lake.why}"
        return wrong

    def _compare_with_source(
        self,
        work: _TableWork,
        keys: Sequence[AnyKey],
        target_rows: list[Row],
        source_rows: SourceRows,
        lake: LakeRows,
        source: SourceReader,
    ) -> None:
        expected, texts = work.table.expected, {format_key_text(list(key)) for key in keys}
        own = [row for row in target_rows if encode_row_key(row, expected.find_identity().columns) in texts]
        differences = RowsOfTable(expected, source_rows.rows, own).list_differences()
        wrong = {difference.key for difference in differences}
        self._settle("source", work, keys, wrong)
        if source.is_exact:
            for difference in differences:
                self._record_error("source", difference, work)
            return
        digests = compute_row_digests(expected, source_rows.rows)
        for difference in differences:
            reading = RowReading(
                self._done.hi, False, look_up_digest(digests, difference.key), lake.changed.get(difference.key, 0),
                source_rows.is_fresh, source_rows.positions,
            )  # fmt: skip
            entry = self._ledger.get(("source", *work.table.name, difference.key))
            if entry is not None and entry.status in ("new", "ignored"):
                self._record_error("source", difference, work)
                continue
            judged = judge(_find_proof(entry), reading, source.find_published_ts)
            self._record_judged(judged, difference, work)

    def _record_judged(self, judged: Judgement, difference: Difference, work: _TableWork) -> None:
        if judged.is_error:
            self._record_error("source", difference, work)
        elif judged.proof is not None:
            self._put(self._build_entry("pending", "source", difference, work, proof=judged.proof.to_json()))

    def _record_error(self, against: Against, difference: Difference, work: _TableWork) -> None:
        images = {name: "" if row is None else json.dumps(dict(row), ensure_ascii=False)
                  for name, row in (("expected", difference.expected), ("found", difference.found))}  # fmt: skip
        old = self._ledger.get((against, difference.db, difference.table, difference.key))
        entry = self._put(self._build_entry("new", against, difference, work, **images))
        if entry is not None and entry.status == "new" and (old is None or old.status != "new"):
            self._done.found += 1

    def _build_entry(
        self, status: Literal["pending", "new"], against: Against, difference: Difference, work: _TableWork, **more: str
    ) -> ValidationEntry:
        old = self._ledger.get((against, difference.db, difference.table, difference.key))
        since = (
            self._changed[difference.key] - 1
            if difference.key in self._changed
            else work.since
            if old is None
            else old.since
        )
        window = format_window_name(self._done.lo, self._done.hi)
        made = ValidationEntry(
            status,
            against, difference.db, difference.table, difference.key, difference.kind, difference.columns,
            window=window, since=since,
        )  # fmt: skip
        return replace(made, **more)  # type: ignore[arg-type]

    def _put(self, entry: ValidationEntry) -> ValidationEntry | None:
        """Put `entry` into the ledger; None if it is full."""
        most = self._options.max_pending_rows if entry.status == "pending" else self._options.max_errors
        if self._ledger.get(entry.entry_key) is None and self._ledger.count(entry.status) >= most:
            self._done.dropped += 1
            return None
        return self._ledger.put(entry)

    def _settle(self, against: Against, work: _TableWork, keys: Collection[AnyKey], wrong: Collection[str]) -> None:
        for key in keys:
            text = format_key_text(list(key))
            if text not in wrong:
                self._done.settled += self._ledger.settle((against, *work.table.name, text))


def _split_keys(keys: Sequence[AnyKey]) -> Iterator[Sequence[AnyKey]]:
    """`keys` in batches; at least one batch, which may be empty."""
    for start in range(0, max(len(keys), 1), _KEYS_AT_ONCE):
        yield keys[start : start + _KEYS_AT_ONCE]


def list_errors(ledger: ValidationLedger) -> list[dict[str, Any]]:
    """The first new errors, for logs and pages, with only the masked key of each row."""
    return [
        {"number": entry.number, "table": f"{entry.db}.{entry.table}", "key": redact_key(entry.key), "kind": entry.kind,
         "columns": list(entry.differing), "against": entry.against, "window": entry.window, "times": entry.times}
        for entry in ledger.list_new_errors()[:_LISTED]
    ]  # fmt: skip


def _find_proof(entry: ValidationEntry | None) -> Proof | None:
    return entry.known_proof if entry is not None and entry.status == "pending" else None


def _shuffle_keys(keys: Sequence[AnyKey], seed: int) -> list[AnyKey]:
    return sorted(keys, key=lambda key: compute_pseudo_random(format_key_text(list(key)), seed))
