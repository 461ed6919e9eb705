"""The schema history in the lake: jobs by commit_ts in `schema_change`, complete states at times in `schema_snapshot`.

It is read only by range: the newest snapshot at or below a ts and the jobs after it (invariant 5, MISSION S0-60). A job
that a failed attempt of land appended twice is harmless: a fold skips versions that it already has. Jobs before the
lake's start are stored too, so the state at any ts since the source's first job can be read (MISSION S0-61).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow.dataset as ds

from binlake.common.lakecolumns import SchemaChange, SchemaSnapshot
from binlake.lake.control import ControlTable
from binlake.lake.controltables import SCHEMA_CHANGE, SCHEMA_SNAPSHOT
from binlake.lake.paths import LakePaths
from binlake.rows.schema import DdlJob, SchemaState
from binlake.rows.schema.state import JobSpool

SNAPSHOT_EVERY = 512
"""The number of jobs after which a new snapshot is written. It limits the jobs that one read folds."""

_PART_BYTES = 4 << 20
_PART_ROWS = 4096
"""Maximum JSON bytes and rows of one append, so a bootstrap needs only this much memory for a long history."""

_MOST_STATES = 16
"""The number of positions whose states a pinned history holds."""

_BEGUN = "begun"
"""The kind of the row of `schema_snapshot` that marks the history before the start as complete."""


class SchemaHistory:
    """Reads and extends the schema history of one lake.

    `pinned`: as of ControlTable; a state is then computed once for all positions without a job between them.
    """

    def __init__(self, paths: LakePaths, *, pinned: bool = False) -> None:
        self._changes = ControlTable(paths.locate_table(SCHEMA_CHANGE.name), SCHEMA_CHANGE, pinned=pinned)
        self._snapshots = ControlTable(paths.locate_table(SCHEMA_SNAPSHOT.name), SCHEMA_SNAPSHOT, pinned=pinned)
        self._is_pinned = pinned
        self._states: dict[int, SchemaState] = {}
        self._bases = StateCache()
        self._views = (0, 0)

    def refresh(self) -> None:
        """Let later reads of a pinned history find the present jobs."""
        self._changes.refresh()
        self._snapshots.refresh()

    def exists(self) -> bool:
        """True when the history before the start of the lake is completely written."""
        return bool(self._snapshots.read_rows((SchemaSnapshot.TS,), ds.field(SchemaSnapshot.KIND) == _BEGUN))

    def bootstrap(self, lo: int, jobs: Iterable[Mapping[str, Any]]) -> SchemaState:
        """Start the history with `jobs` (JSON, any order) committed at or before `lo`. Returns the state at `lo`.

        Only the live objects and one part of the history are in memory (S0-61). Raises SchemaError, Transient.
        """
        self._changes.clear()
        self._snapshots.clear()
        state, since, last = SchemaState(), 0, 0
        with JobSpool() as spool:
            spool.fill(jobs)
            for part in _split_jobs(spool.iterate_jobs(), lo):
                self._changes.append([_build_job_row(ts, job) for ts, job in part])
                state, since, last = state.fold(part), since + len(part), part[-1][0]
                if since > max(SNAPSHOT_EVERY, state.objects) and last < lo:
                    self._write_snapshot(last, state)
                    since = 0
        self.begin(lo, state)
        return state

    def begin(self, lo: int, state: SchemaState) -> None:
        """Start the history with `state` at `lo`."""
        self._snapshots.append([*_build_snapshot_rows(lo, state), _build_snapshot_row(lo, _BEGUN, 0, "{}")])

    def begin_base(self, lo: int, version: int) -> None:
        """Start the history at `lo` without objects, with a schema version below the full load's `version`."""
        self._changes.clear()
        self._snapshots.clear()
        self.begin(lo, SchemaState(version - 1))

    def append_base(self, hi: int, changes: Sequence[tuple[int, DdlJob]], state: SchemaState) -> None:
        """Add the objects that a full load creates, all with one version, and the resulting `state` at `hi`.

        The state is stored too, because it has more than these objects: recently dropped ones, and changes of ids.
        """
        self._changes.append([_build_job_row(commit_ts, job) for commit_ts, job in changes])
        self._write_snapshot(hi, state)

    def append(self, hi: int, changes: Sequence[tuple[int, DdlJob]]) -> None:
        """Add a window's (commit_ts, job) pairs in commit order; `hi` is its end."""
        self._changes.append([_build_job_row(commit_ts, job) for commit_ts, job in changes])
        at = self._find_snapshot_ts(hi)
        if (changes and self._count_jobs_since(at) > SNAPSHOT_EVERY) or (at is not None and not self._has_names(at)):
            self._write_snapshot(hi, self.read_state_at(hi))

    def tidy(self) -> dict[str, int]:
        """As ControlTable.tidy, for both tables."""
        changes, snapshots = self._changes.tidy(), self._snapshots.tidy()
        return {name: changes[name] + snapshots[name] for name in changes}

    def read_state_at(self, ts: int) -> SchemaState:
        """The schema after the last DDL at or before `ts`; that of a new cluster if nothing is known."""
        if not self._is_pinned:
            return self._compute_state_at(ts)
        views = self._changes.views, self._snapshots.views
        if views != self._views or len(self._states) > _MOST_STATES:
            self._states, self._views = {}, views
        if ts not in self._states:
            before = max((known for known in self._states if known < ts), default=None)
            if before is not None and not self._read_jobs(before, ts):
                self._states[ts] = self._states[before]
            else:
                self._states[ts] = self._compute_state_at(ts)
        return self._states[ts]

    def _compute_state_at(self, ts: int) -> SchemaState:
        at = self._find_snapshot_ts(ts)
        base = SchemaState() if at is None else self._read_snapshot(at)
        return base.fold(self._read_jobs(-1 if at is None else at, ts))

    def _read_snapshot(self, at: int) -> SchemaState:
        """The state at `at`, with one object for each table that is asked for."""
        key = self._snapshots.path, self._snapshots.read_id(), at
        own = self._bases.get(key)
        if own is None:
            own = self._bases.put(
                key, self._reopen_snapshot(key, at) if self._has_names(at) else self._load_snapshot(at)
            )
        return own

    def _load_snapshot(self, at: int) -> SchemaState:
        """The state of a snapshot of an older version of Binlake, which cannot be read table by table."""
        return SchemaState.from_rows(_read_snapshot_rows(self._snapshots, at, ds.field(SchemaSnapshot.KIND) != _BEGUN))

    def _reopen_snapshot(self, key: Hashable, at: int) -> SchemaState:
        known = _snapshots.get(key)
        if known is None:
            few = (ds.field(SchemaSnapshot.KIND) < "table") & ~ds.field(SchemaSnapshot.KIND).isin([_BEGUN, "names"])
            reader = _open_snapshot_tables(self._snapshots.path, at)
            rows = _read_snapshot_rows(self._snapshots, at, few)
            known = _snapshots.put(key, SchemaState.from_rows(rows, reader))
        return known.forget_tables()

    def _has_names(self, at: int) -> bool:
        where = (ds.field(SchemaSnapshot.TS) == at) & (ds.field(SchemaSnapshot.KIND) == "names")
        return bool(self._snapshots.read_arrow((SchemaSnapshot.OBJECT_ID,), where).num_rows)

    def compute_state_key(self, ts: int) -> tuple[Hashable, ...]:
        """A key of the state at `ts`: equal keys mean equal states."""
        at, last = (
            self._find_snapshot_ts(ts),
            self._changes.find_greatest(SchemaChange.COMMIT_TS, ds.field(SchemaChange.COMMIT_TS) <= ts),
        )
        return self._changes.path, self._changes.read_state(), self._snapshots.read_state(), at, last

    def read_changes(self, lo: int, hi: int) -> list[tuple[int, DdlJob]]:
        """(commit_ts, job) with lo < commit_ts <= hi, in commit order, each job once."""
        once = {job.id: (commit_ts, job) for commit_ts, job in self._read_jobs(lo, hi)}
        return sorted(once.values(), key=lambda change: (change[0], change[1].schema_version))

    def find_last_ddls(self, table_ids: Collection[int], ts: int) -> dict[int, tuple[int, str]]:
        """By table id, (commit_ts, text) of the last DDL at or before `ts`; missing if the history begins later."""
        where = ds.field(SchemaChange.TABLE_ID).isin(list(table_ids)) & (ds.field(SchemaChange.COMMIT_TS) <= ts)
        rows = self._changes.read_rows((SchemaChange.TABLE_ID, SchemaChange.COMMIT_TS, SchemaChange.QUERY), where)
        rows.sort(key=lambda row: int(row[SchemaChange.COMMIT_TS]))
        return {row[SchemaChange.TABLE_ID]: (row[SchemaChange.COMMIT_TS], str(row[SchemaChange.QUERY])) for row in rows}

    def _read_jobs(self, lo: int, hi: int) -> list[tuple[int, DdlJob]]:
        where = (ds.field(SchemaChange.COMMIT_TS) > lo) & (ds.field(SchemaChange.COMMIT_TS) <= hi)
        rows = self._changes.read_rows((SchemaChange.SCHEMA_VERSION, SchemaChange.COMMIT_TS, SchemaChange.JOB), where)
        rows.sort(key=lambda row: (row[SchemaChange.SCHEMA_VERSION], row[SchemaChange.COMMIT_TS]))
        return [(row[SchemaChange.COMMIT_TS], DdlJob.parse(row[SchemaChange.JOB])) for row in rows]

    def _find_snapshot_ts(self, ts: int) -> int | None:
        where = (ds.field(SchemaSnapshot.TS) <= ts) & (ds.field(SchemaSnapshot.KIND) == "state")
        return max(
            (row[SchemaSnapshot.TS] for row in self._snapshots.read_rows((SchemaSnapshot.TS,), where)), default=None
        )

    def _count_jobs_since(self, at: int | None) -> int:
        return len(
            self._changes.read_rows(
                (SchemaChange.JOB_ID,), ds.field(SchemaChange.COMMIT_TS) > (-1 if at is None else at)
            )
        )

    def _write_snapshot(self, ts: int, state: SchemaState) -> None:
        self._snapshots.append(_build_snapshot_rows(ts, state))


@dataclass(frozen=True)
class SnapshotTables:
    """The tables of the snapshot at `at`. Implements `binlake.rows.schema.tables.StoredSnapshotReader`."""

    snapshots: ControlTable
    at: int

    def read_names(self) -> list[str]:
        """As SnapshotReader."""
        rows = _read_snapshot_rows(self.snapshots, self.at, ds.field(SchemaSnapshot.KIND) == "names")
        return [text for _, _, text in rows]

    def read_tables(self, first: int, last: int) -> dict[int, str]:
        """As SnapshotReader."""
        key = ds.field(SchemaSnapshot.OBJECT_ID)
        where = (ds.field(SchemaSnapshot.KIND) == "table") & (key >= first) & (key <= last)
        return {table_id: text for _, table_id, text in _read_snapshot_rows(self.snapshots, self.at, where)}

    def __reduce__(self) -> tuple[object, ...]:
        return _open_snapshot_tables, (self.snapshots.path, self.at)


def _open_snapshot_tables(path: str, at: int) -> SnapshotTables:
    # Not pinned: a state may be asked for long after the files of its time were joined and deleted.
    return SnapshotTables(ControlTable(path, SCHEMA_SNAPSHOT), at)


def _read_snapshot_rows(snapshots: ControlTable, at: int, where: ds.Expression) -> list[tuple[str, int, str]]:
    """(kind, id, text) of the rows of the snapshot at `at` that match `where`, each once: a run that died before its
    window was sealed may have written some already."""
    columns = (SchemaSnapshot.KIND, SchemaSnapshot.OBJECT_ID, SchemaSnapshot.DEFINITION)
    rows = snapshots.read_arrow(columns, (ds.field(SchemaSnapshot.TS) == at) & where)
    kinds, keys, texts = (rows.column(name).to_pylist() for name in columns)
    return list({(kind, key): (kind, key, text) for kind, key, text in zip(kinds, keys, texts, strict=True)}.values())


class StateCache:
    """The last used states. Safe to share among threads."""

    def __init__(self, most: int = 4) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._states: OrderedDict[Hashable, SchemaState] = OrderedDict()

    def get(self, key: Hashable) -> SchemaState | None:
        """The state that was put with `key`, if it is still here."""
        with self._lock:
            if key in self._states:
                self._states.move_to_end(key)
            return self._states.get(key)

    def put(self, key: Hashable, state: SchemaState) -> SchemaState:
        """Keep `state`, and return the one that others have put with `key` in the meantime, else `state`."""
        with self._lock:
            kept = self._states.setdefault(key, state)
            self._states.move_to_end(key)
            while len(self._states) > self._most:
                self._states.popitem(last=False)
            return kept

    def read_state_at(self, paths: LakePaths, ts: int) -> SchemaState:
        """As `SchemaHistory.read_state_at`, for a process with many queries."""
        history = SchemaHistory(paths)
        key = history.compute_state_key(ts)
        known = self.get(key)
        return self.put(key, history.read_state_at(ts)) if known is None else known


_snapshots = StateCache()
"""The last used snapshots, which never change: else each window would read the names of all tables again."""


def _split_jobs(jobs: Iterable[tuple[int, DdlJob]], lo: int) -> Iterator[list[tuple[int, DdlJob]]]:
    """Split jobs with ts <= `lo` into parts of limited size; jobs with the same ts stay in one part."""
    part: list[tuple[int, DdlJob]] = []
    size = 0
    for ts, group in groupby(jobs, key=lambda placed: placed[0]):
        if ts > lo:
            break
        if part and (size > _PART_BYTES or len(part) >= _PART_ROWS):
            yield part
            part, size = [], 0
        together = list(group)
        part += together
        size += sum(len(job.text) for _, job in together)
    if part:
        yield part


def _build_snapshot_rows(ts: int, state: SchemaState) -> list[dict[str, object]]:
    return [_build_snapshot_row(ts, kind, key, text) for kind, key, text in state.to_rows()]


def _build_snapshot_row(ts: int, kind: str, key: int, text: str) -> dict[str, object]:
    return {
        SchemaSnapshot.TS: ts,
        SchemaSnapshot.KIND: kind,
        SchemaSnapshot.OBJECT_ID: key,
        SchemaSnapshot.DEFINITION: text,
    }


def _build_job_row(commit_ts: int, job: DdlJob) -> dict[str, object]:
    return {
        SchemaChange.SCHEMA_VERSION: job.schema_version,
        SchemaChange.COMMIT_TS: commit_ts,
        SchemaChange.JOB_ID: job.id,
        SchemaChange.ACTION: job.type,
        SchemaChange.KIND: job.label,
        SchemaChange.DB: job.schema_name,
        SchemaChange.TABLE: job.table_name,
        SchemaChange.TABLE_ID: job.table_id,
        SchemaChange.QUERY: job.query,
        SchemaChange.JOB: job.text,
    }
