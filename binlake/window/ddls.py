"""The DDL of a window in commit order: which apply, which are skipped by which rule, and the segment each opens.

What is applied opens a segment for the sinks, and so does what `filter.ignore-txn-commit-ts` leaves to the operator;
what is skipped still changes how later rows are decoded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from binlake.dialect.replacement import replaced_names
from binlake.errors import ConfigError, SchemaError
from binlake.rows.schema import Action, DdlJob, SchemaState, WindowDdl, WindowSchemas, place_ddls
from binlake.rows.schema.delta import Definitions, touched
from binlake.rows.schema.session import SourceSession
from binlake.rules import Rules
from binlake.window.definitions import FILTERED, by_hand
from binlake.window.judging import NO_CHANGE, Ddl, Judge, Judged
from binlake.window.spelling import Spelling
from binlake.window.targets import Naming, TargetTables


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

    `injected`: no DDL of the source, but a statement of an operator that runs before what `commit_ts` has.

    `query` is the source's text, `sql` the routed one; `db`, `table`, `before`, `after` are the target's. `alert`: what
    an operator must know of it, or empty. `since`: rows from this commit_ts on are behind it; below its own where rows
    may have run ahead of it.
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
    sql: str
    reason: str
    alert: str
    before: Definitions
    after: Definitions
    replaced: bool = False
    injected: bool = False
    refusal: str = ""

    @property
    def decision(self) -> str:
        """`apply`, `skip`, `refused` (by every target), or where the target runs an operator's `sql`: `replaced`,
        `injected`."""
        if self.injected:
            return "injected"
        if self.refusal:
            return "refused"
        return "skip" if self.reason else "replaced" if self.replaced else "apply"

    @property
    def opens_segment(self) -> bool:
        """The rows behind it have other definitions on the target; that of a LandedDdl."""
        return _opens_segment(self.reason)

    @property
    def tables(self) -> list[str]:
        """`db.table` of everything touched, sorted."""
        named = replaced_names(self.sql, self.db) if self.replaced or self.injected else ()
        touched = {(table.db, table.name) for table in (*self.before.tables, *self.after.tables)}
        return sorted(f"{db}.{table}" for db, table in touched | {name for name in named if name[1]})


def _opens_segment(reason: str) -> bool:
    return not reason or by_hand(reason)


def window_schemas(
    base: SchemaState,
    binlogs: Sequence[DdlBinlog],
    jobs: Sequence[tuple[int, DdlJob]],
    lo: int = 0,
) -> WindowSchemas:
    """The schemas of a window above `lo`: `jobs` are its (commit_ts, job) pairs, also those that left no binlog."""
    return WindowSchemas(base, [ddl for _, _, ddl in _in_order(binlogs, jobs)], lo)


def plan_ddls(
    base: SchemaState,
    binlogs: Sequence[DdlBinlog],
    jobs: Sequence[tuple[int, DdlJob]],
    rules: Rules,
    ignored: Collection[int] = (),
    lo: int = 0,
) -> list[PlannedDdl]:
    """The rows of `ddl` for a window whose schema at lo is `base`; `ignored` are commit_ts skipped by configuration.

    In the order in which sinks get them: those cut the window where the rows do. Raises SchemaError, ConfigError.
    """
    naming = Naming(rules)
    judge = Judge(naming, TargetTables(base, naming), ignored)
    state, segment, planned = base, 0, []
    ordered = _in_order(binlogs, jobs)
    for placed in place_ddls(lo, [ddl for _, _, ddl in ordered]):
        start_ts, logged, ddl = ordered[placed.number]
        job = ddl.job if ddl.kind == "ddl" else None
        after = state if job is None else state.follow(job, ddl.commit_ts, base.version)
        judged = _judged(ddl, logged, touched(state, after), Spelling(state, after, naming), judge)
        segment += 1 if _opens_segment(judged.reason) else 0
        job = ddl.job
        session = SourceSession.of(job, ddl.commit_ts, rules.zone) if job is not None else SourceSession()
        session = replace(session, guessed=rules.invalid_text == "latin1")
        planned.append(
            PlannedDdl(
                segment=segment,
                commit_ts=ddl.commit_ts,
                since=placed.since,
                start_ts=start_ts,
                schema_version=job.schema_version if job else 0,
                job_id=ddl.job_id,
                action=job.type if job else 0,
                db=judged.db,
                table=judged.table,
                query=ddl.query,
                sql=judged.sql,
                reason=judged.reason,
                alert=judged.alert,
                before=judged.before,
                after=replace(judged.after, session=session),
                replaced=judged.replaced,
                refusal=judged.refusal,
            )
        )
        state = after
    return planned


def require_met(planned: Iterable[PlannedDdl], replacements: Iterable[int], lo: int, hi: int) -> None:
    """Each replacement of the window (lo, hi] stands for a DDL that would have run. Raises ConfigError."""
    ddls = {ddl.commit_ts: ddl for ddl in planned}
    for commit_ts in replacements:
        found = ddls.get(commit_ts)
        if lo < commit_ts <= hi and (found is None or not found.replaced):
            raise ConfigError(
                "ddl-replacement names a commit_ts at which no DDL would run on the target",
                where={"commit_ts": commit_ts, "reason": found.reason if found else "there is no DDL"},
                hint="the table `ddl` has the commit_ts of each DDL",
            )


def _in_order(binlogs: Sequence[DdlBinlog], jobs: Sequence[tuple[int, DdlJob]]) -> list[tuple[int, bool, WindowDdl]]:
    for commit_ts, job in jobs:
        _refuse_flashback(commit_ts, job)
    by_id = {job.id: job for _, job in jobs}
    named = {binlog.job_id for binlog in binlogs}
    found = [(b.start_ts, True, WindowDdl(b.commit_ts, b.query, b.job_id, b.schema_state, by_id.get(b.job_id)))
             for b in binlogs]  # fmt: skip
    # A job without a binlog keeps the place that land gave it, behind the DDL of that commit_ts.
    found += [(0, False, WindowDdl(ts, job.query, job.id, 0, job)) for ts, job in jobs if job.id not in named]
    return sorted(found, key=lambda entry: (entry[2].commit_ts, not entry[1]))


def _refuse_flashback(commit_ts: int, job: DdlJob) -> None:
    if job.took_effect and job.type == Action.FLASHBACK_CLUSTER:
        raise SchemaError(
            "FLASHBACK CLUSTER took the source's rows back without a binlog",
            where={"commit_ts": commit_ts, "job_id": job.id, "query": job.query[:200]},
            hint="start a new replication from a fresh copy of the source, with initial-commit-ts at or above this",
        )


def _judged(
    ddl: WindowDdl, logged: bool, sides: tuple[Definitions, Definitions], names: Spelling, judge: Judge
) -> Judged:
    reason, job = _unfit(ddl), ddl.job
    if reason or job is None:
        db, table = names.source_table(job.schema_name, job.table_name) if job else ("", "")
        return Judged(reason, ddl.query, *(NO_CHANGE if job and not job.took_effect else sides), db, table)
    judged = judge.judge(Ddl(ddl.commit_ts, ddl.query, job, *sides, names))
    if not logged and judged.reason != FILTERED:
        return replace(judged, reason="the source logged no binlog for it", sql=ddl.query, replaced=False)
    return judged


def _unfit(ddl: WindowDdl) -> str:
    """Why a DDL never runs on any target; empty = it may."""
    job = ddl.job
    if ddl.kind == "setval":
        return "pseudo DDL of a sequence"
    if ddl.kind == "delete-only":
        return "delete-only step of DROP COLUMN"
    if job is None or not job.took_effect:
        return "the job was rolled back or cancelled"
    return "" if job.is_supported else f"{job.label} is not replicated"
