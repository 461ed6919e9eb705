"""Plans the DDL of a window in commit order: which are applied or skipped, by which rule, and their segments.

An applied DDL opens a segment for the sinks. So does a DDL that `filter.ignore-txn-commit-ts` leaves to the operator. A
skipped DDL still changes how later rows are decoded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from binlake.ddl.deciding import NO_CHANGE, Case
from binlake.ddl.definitions import FILTERED, LandedDdl
from binlake.ddl.judging import Judge
from binlake.ddl.shardlocks import Locks, Resolution
from binlake.ddl.spelling import Spelling
from binlake.ddl.targets import Naming, TargetTables
from binlake.errors import ConfigError, SchemaError
from binlake.rows.schema import Action, DdlJob, SchemaState, WindowDdl, WindowSchemas, sort_ddls
from binlake.rows.schema.job import SourceSession
from binlake.rows.schema.state import DdlSide, find_touched
from binlake.rules import Rules


def build_window_schemas(
    base: SchemaState,
    binlogs: Sequence[WindowDdl],
    jobs: Sequence[tuple[int, DdlJob]],
    lo: int = 0,
) -> WindowSchemas:
    """The schemas of a window above `lo`. `jobs`: its (commit_ts, job) pairs, including jobs without a binlog."""
    return WindowSchemas(base, attach_jobs(binlogs, jobs), lo)


def plan_ddls(
    base: SchemaState,
    binlogs: Sequence[WindowDdl],
    jobs: Sequence[tuple[int, DdlJob]],
    rules: Rules,
    ignored: Collection[int] = (),
    lo: int = 0,
) -> list[LandedDdl]:
    """The rows of `ddl` for a window whose schema at lo is `base`. `ignored`: commit_ts skipped by configuration.

    They are in the order in which sinks get them, and each row cuts the window for the sinks. Raises SchemaError,
    ConfigError.
    """
    return plan_locked_ddls(base, binlogs, jobs, rules, ignored, lo)[0]


def plan_locked_ddls(
    base: SchemaState,
    binlogs: Sequence[WindowDdl],
    jobs: Sequence[tuple[int, DdlJob]],
    rules: Rules,
    ignored: Collection[int] = (),
    lo: int = 0,
    before: Locks | None = None,
    resolutions: Iterable[Resolution] = (),
) -> tuple[list[LandedDdl], Locks]:
    """As `plan_ddls`, plus the window's holds of tables that share a target. `before`: their holds at lo.

    `resolutions`: an operator's commands at lo.
    """
    naming, locks = Naming(rules), before or Locks()
    judge = Judge(naming, TargetTables(base, naming, locks.list_definitions_at(lo)), ignored, locks)
    resolved = [judge.shared.resolve(resolution, lo, base.version) for resolution in resolutions]
    started = [*(row for row in resolved if row is not None), *judge.shared.start(lo, base.version)]
    planned = [replace(row, segment=n) for n, row in enumerate(started, 1)]
    state, segment = base, len(planned)
    for ddl in sort_ddls(lo, attach_jobs(binlogs, jobs)):
        job = ddl.job if ddl.kind == "ddl" else None
        after = state if job is None else state.follow(job, ddl.commit_ts, base.version)
        names = Spelling(state, after, naming)
        decided = _decide(ddl, _build_source_row(ddl, lo, find_touched(state, after), names), names, judge)
        session = replace(_read_session(ddl, rules), guessed=rules.invalid_text == "latin1")
        for row in (decided, *judge.shared.take_released()):
            segment += row.opens_segment
            planned.append(replace(row, segment=segment, after=replace(row.after, session=session)))
        state = after
    return planned, judge.shared.keeper.locks


def _build_source_row(ddl: WindowDdl, lo: int, sides: tuple[DdlSide, DdlSide], names: Spelling) -> LandedDdl:
    """The row of `ddl` with the source's names, text and definitions, before the decision."""
    job = ddl.job
    db, table = names.spell_source_table(job.schema_name, job.table_name) if job else ("", "")
    return LandedDdl(
        commit_ts=ddl.commit_ts,
        since=ddl.compute_since_above(lo),
        start_ts=ddl.start_ts,
        schema_version=job.schema_version if job else 0,
        job_id=ddl.job_id,
        action=job.type if job else 0,
        db=db,
        table=table,
        query=ddl.query,
        sql=ddl.query,
        decision="apply",
        reason="",
        before=sides[0],
        after=sides[1],
    )


def _read_session(ddl: WindowDdl, rules: Rules) -> SourceSession:
    return SourceSession.of(ddl.job, ddl.commit_ts, rules.zone) if ddl.job is not None else SourceSession()


def require_replacements_used(planned: Iterable[LandedDdl], replacements: Iterable[int], lo: int, hi: int) -> None:
    """Require that each replacement in the window (lo, hi] replaces a DDL that would have run. Raises ConfigError."""
    ddls: dict[int, list[LandedDdl]] = {}
    for ddl in planned:
        ddls.setdefault(ddl.commit_ts, []).append(ddl)
    for commit_ts in replacements:
        at_ts = ddls.get(commit_ts, [])
        if lo < commit_ts <= hi and all(ddl.decision != "replaced" for ddl in at_ts):
            raise ConfigError(
                "ddl-replacement names a commit_ts at which no DDL would run on the target",
                where={"commit_ts": commit_ts, "reason": at_ts[0].reason if at_ts else "there is no DDL"},
                hint="the table `ddl` has the commit_ts of each DDL",
            )


def attach_jobs(binlogs: Sequence[WindowDdl], jobs: Sequence[tuple[int, DdlJob]]) -> list[WindowDdl]:
    """The DDL of a window in commit order: `binlogs` with their jobs, and the `jobs` without a binlog.

    Such a job keeps the commit_ts that land assigned to it, after the DDL of that commit_ts. Raises SchemaError.
    """
    for commit_ts, job in jobs:
        _refuse_flashback(commit_ts, job)
    by_id = {job.id: job for _, job in jobs}
    named = {binlog.job_id for binlog in binlogs}
    ddls = [replace(binlog, job=by_id.get(binlog.job_id)) for binlog in binlogs]
    ddls += [WindowDdl.without_binlog(job, ts) for ts, job in jobs if job.id not in named]
    return sorted(ddls, key=lambda ddl: (ddl.commit_ts, not ddl.logged))


def _refuse_flashback(commit_ts: int, job: DdlJob) -> None:
    if job.took_effect and job.type == Action.FLASHBACK_CLUSTER:
        raise SchemaError(
            "FLASHBACK CLUSTER reverted the source's rows without a binlog",
            where={"commit_ts": commit_ts, "job_id": job.id, "query": job.query[:200]},
            hint="start a new replication from a fresh copy of the source, with initial-commit-ts at or above this",
        )


def _decide(ddl: WindowDdl, row: LandedDdl, names: Spelling, judge: Judge) -> LandedDdl:
    reason = _explain_never_applied(ddl)
    if reason or ddl.job is None:
        undone = ddl.job is not None and not ddl.job.took_effect
        before, after = NO_CHANGE if undone else (row.before, row.after)
        return replace(row, decision="skip", reason=reason, before=before, after=after)
    judged = judge.judge(Case(row, ddl.job, names))
    if not ddl.logged and judged.reason != FILTERED and judged.decision != "refused":
        return replace(judged, decision="skip", reason="the source logged no binlog for it", sql=ddl.query)
    return judged


def _explain_never_applied(ddl: WindowDdl) -> str:
    """The reason why a DDL never runs on any target; empty = it may run."""
    job = ddl.job
    if ddl.kind == "setval":
        return "pseudo DDL of a sequence"
    if ddl.kind == "delete-only":
        return "delete-only step of DROP COLUMN"
    if job is None or not job.took_effect:
        return "the job was rolled back or cancelled"
    return "" if job.is_supported else f"{job.label} is not replicated"
