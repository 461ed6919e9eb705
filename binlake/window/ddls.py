"""The DDL of a window in commit order: which apply, which are skipped by which rule, and the segment each opens.

What is applied opens a segment for the sinks, and so does what `filter.ignore-txn-commit-ts` leaves to the operator;
what is skipped still changes how later rows are decoded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from binlake.filter import TableFilter
from binlake.schema import DdlJob, SchemaState, WindowDdl, WindowSchemas, segment_start
from binlake.schema.delta import Definitions, touched
from binlake.window.definitions import IGNORED


@dataclass(frozen=True)
class DdlBinlog:
    """A DDL binlog as landed; `query` is its own text, `schema_state` 1 marks the delete-only step of DROP COLUMN."""

    commit_ts: int
    start_ts: int
    job_id: int
    schema_state: int
    query: str


@dataclass(frozen=True)
class PlannedDdl:
    """One row of the lake table `ddl`; `reason` says which rule skipped it, empty when it applies.

    `since`: the least commit_ts of rows behind it, below its own where rows ran ahead of it.
    """

    segment: int
    commit_ts: int
    since: int
    start_ts: int
    schema_version: int
    job_id: int
    action: int
    db: str
    table: str
    query: str
    reason: str
    before: Definitions
    after: Definitions

    @property
    def decision(self) -> str:
        """`apply` or `skip`."""
        return "skip" if self.reason else "apply"

    @property
    def tables(self) -> list[str]:
        """`db.table` of everything touched, sorted."""
        return sorted({f"{table.db}.{table.name}" for table in (*self.before.tables, *self.after.tables)})


def window_schemas(
    base: SchemaState,
    binlogs: Sequence[DdlBinlog],
    jobs: Sequence[tuple[int, DdlJob]],
    first_seen: Mapping[int, int],
) -> WindowSchemas:
    """The schemas of a window: `jobs` are its (commit_ts, job) pairs, also those that left no binlog.

    `first_seen`: least commit_ts of the window's row changes by schema version.
    """
    return WindowSchemas(base, [ddl for _, _, ddl in _in_order(binlogs, jobs)], first_seen)


def plan_ddls(
    base: SchemaState,
    binlogs: Sequence[DdlBinlog],
    jobs: Sequence[tuple[int, DdlJob]],
    tables: TableFilter,
    ignored: Collection[int] = (),
    first_seen: Mapping[int, int] = MappingProxyType({}),
) -> list[PlannedDdl]:
    """The rows of `ddl` for a window whose schema at lo is `base`; `ignored` are commit_ts skipped by configuration.

    `first_seen` as for window_schemas: sinks cut the window where the rows do.
    """
    state, segment, planned = base, 0, []
    for start_ts, logged, ddl in _in_order(binlogs, jobs):
        after = state.apply(ddl.job, ddl.commit_ts) if ddl.job is not None and ddl.kind == "ddl" else state
        before_defs, after_defs = touched(state, after)
        reason = _reason(ddl, logged, before_defs, after_defs, tables, ignored)
        segment += 1 if reason in ("", IGNORED) else 0
        job = ddl.job
        planned.append(
            PlannedDdl(
                segment=segment,
                commit_ts=ddl.commit_ts,
                since=segment_start(ddl, first_seen),
                start_ts=start_ts,
                schema_version=job.schema_version if job else 0,
                job_id=ddl.job_id,
                action=job.type if job else 0,
                db=job.schema_name if job else "",
                table=job.table_name if job else "",
                query=ddl.query,
                reason=reason,
                before=before_defs,
                after=after_defs,
            )
        )
        state = after
    return planned


def _in_order(binlogs: Sequence[DdlBinlog], jobs: Sequence[tuple[int, DdlJob]]) -> list[tuple[int, bool, WindowDdl]]:
    by_id = {job.id: job for _, job in jobs}
    named = {binlog.job_id for binlog in binlogs}
    found = [(b.start_ts, True, WindowDdl(b.commit_ts, b.query, b.job_id, b.schema_state, by_id.get(b.job_id)))
             for b in binlogs]  # fmt: skip
    # A job without a binlog keeps the place that land gave it, behind the DDL of that commit_ts.
    found += [(0, False, WindowDdl(ts, job.query, job.id, 0, job)) for ts, job in jobs if job.id not in named]
    return sorted(found, key=lambda entry: (entry[2].commit_ts, not entry[1]))


def _reason(
    ddl: WindowDdl, logged: bool, before: Definitions, after: Definitions, tables: TableFilter, ignored: Collection[int]
) -> str:
    job = ddl.job
    if ddl.kind == "setval":
        return "pseudo DDL of a sequence"
    if ddl.kind == "delete-only":
        return "delete-only step of DROP COLUMN"
    if job is None or not job.took_effect:
        return "the job was rolled back or cancelled"
    if not job.is_supported:
        return f"{job.label} is not replicated"
    if not logged:
        return "the source logged no binlog for it"
    if not _kept(job, before, after, tables):
        return "filtered"
    return IGNORED if ddl.commit_ts in ignored else ""


def _kept(job: DdlJob, before: Definitions, after: Definitions, tables: TableFilter) -> bool:
    names = [(table.db, table.name) for table in (*before.tables, *after.tables)]
    # A DDL on a database, or one that changed no definition, is judged by the job's own names.
    names = names or [(job.schema_name, job.table_name)]
    return any(tables.keeps(db, table) for db, table in names)
