"""The DDL jobs of a window: all of them are in the lake before it counts as landed (invariant 5, hazards R-19, R-20).

A job appears in the source's history only after its DDL is finished; until then hi is lowered to just before it. A
window ends before the first step of a running DDL that rows can have seen. The source is asked after the pull and
before the history is read. So a step that a row of the window saw was made before the question, and a job that had
ended by then is in the history, where `binlake.rows.schema.window` places it. Binlake need not wait for anything.

Through the status port (`ByVersions`) each schema version is a step with a table and a commit_ts. It belongs to the
first job of its table that ends with that version or a later one. If there is no such job, the DDL is running, and rows
have seen it if the public part of the table's definition differs from that in the history. Through SQL (`ByJobs`) the
source lists the running jobs in a table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import structlog

from binlake.cluster.source import DdlStep, TidbSource
from binlake.errors import IncompleteWindow, Permanent
from binlake.rows.schema import DdlJob, SchemaState, WindowDdl
from binlake.rows.schema.window import compute_running_ts, logs_twice, may_run_ahead, select_visible_parts
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.land.pulled import Pulled, PumpPart

log = structlog.get_logger(__name__)
LOOK_BACK = 64
"""Number of consecutive known jobs after which older ones are not read: job ids follow the order of submission, and
only a few later jobs can finish before an earlier one."""


@dataclass(frozen=True)
class WindowJobs:
    """`hi`: the end of the window after lowering; `changes`: (commit_ts, job) in commit order."""

    hi: int
    changes: tuple[tuple[int, DdlJob], ...]
    schema_version: int


def fetch_jobs(
    ctx: StageContext, source: TidbSource, pulled: Pulled, parts: Sequence[PumpPart], bounds: Bounds
) -> WindowJobs:
    """The jobs of the DDL in the window, and those without a binlog. Raises IncompleteWindow, SourceUnavailable.

    An empty lake first gets the history up to lo.
    """
    history = ctx.schemas
    known = history.exists()
    state = history.read_state_at(bounds.lo) if known else history.bootstrap(bounds.lo, source.fetch_ddl_jobs(0))
    binlogs = pulled.read_ddls(bounds) if any(part.ddls for part in parts) else []
    # Asked before the history is read, so that jobs which have ended by now are in the history.
    underway = ask_underway(source, state.version, bounds.hi)
    seen = max((part.schema_version for part in parts), default=0)
    if (
        not any(ddl.kind == "ddl" for ddl in binlogs)
        and seen <= state.version
        and (underway is None or underway.is_idle(state.version))
    ):
        return WindowJobs(bounds.hi, (), state.version)
    ddls = _attach_jobs(binlogs, source)
    newer = _read_newer_jobs(source, state, bounds.hi)
    hi = _lower_before_missing_job(pulled, bounds, ddls, newer.find_newest_known_version(state))
    hi = _lower_before_running_ddl(pulled, replace(bounds, hi=hi), state, newer, underway)
    known_ddls = [ddl for ddl in ddls if ddl.job is not None]
    hi = _lower_before_rows_ahead(
        pulled, replace(bounds, hi=hi), [*known_ddls, *newer.list_unlogged({ddl.job_id for ddl in ddls})]
    )
    changes = [(ddl.commit_ts, ddl.job) for ddl in ddls if ddl.job is not None and ddl.commit_ts <= hi]
    changes += _place_jobs_without_binlog(newer.list_effective(hi, changes), bounds, changes)
    changes.sort(key=lambda change: (change[0], change[1].schema_version))
    return WindowJobs(hi, tuple(changes), max([state.version, *(job.schema_version for _, job in changes)]))


@dataclass
class _Newer:
    """Jobs that took effect since lo: `finished` by hi, or begun by hi and finished `above` it.

    `versions`: by table id, the greatest version of all jobs that have ended, also those that changed nothing.
    """

    finished: list[DdlJob]
    above: list[DdlJob]
    versions: dict[int, int] = field(default_factory=dict)

    @property
    def newest(self) -> int:
        """The greatest version of a job that has ended."""
        return max(self.versions.values(), default=0)

    def find_ended(self, state: SchemaState) -> EndedDdl:
        """The DDL that has ended, to judge DDL still running; `state`: the schema at lo. Raises SchemaError."""
        jobs = sorted(self.finished, key=lambda job: job.schema_version)
        return EndedDdl(state.fold((job.finished_ts, job) for job in jobs), self.versions)

    def list_unlogged(self, logged: Collection[int]) -> list[WindowDdl]:
        """The jobs that no pulled binlog names, each at its finished_ts, an upper bound of its commit_ts."""
        jobs = (job for job in (*self.finished, *self.above) if job.id not in logged)
        return [WindowDdl.without_binlog(job, job.finished_ts) for job in jobs]

    def find_newest_known_version(self, state: SchemaState) -> int:
        """The newest schema version whose job is known; `state`: the schema at lo."""
        return max([state.version, *(job.schema_version for job in (*self.finished, *self.above))])

    def list_effective(self, hi: int, changes: Sequence[tuple[int, DdlJob]]) -> list[DdlJob]:
        """The jobs that committed by `hi`: finished by then, or with a smaller version than a job that did.

        Versions are assigned in commit order, but jobs may finish in another order.
        """
        done = [job for job in self.finished if job.finished_ts <= hi]
        newest = max([job.schema_version for job in done] + [job.schema_version for _, job in changes], default=0)
        overtaken = [job for job in self.finished if job.finished_ts > hi and job.schema_version < newest]
        return [*done, *overtaken, *(job for job in self.above if job.schema_version < newest)]


def _attach_jobs(binlogs: Sequence[WindowDdl], source: TidbSource) -> list[WindowDdl]:
    """The DDL binlogs that change the schema, with their jobs if the history already has them.

    Raises Permanent if a job is not that of its binlog.
    """
    ddls = [ddl for ddl in binlogs if ddl.kind == "ddl"]
    jobs = source.fetch_ddl_jobs_by_id({ddl.job_id for ddl in ddls})
    for ddl in ddls:
        _refuse_other_feeder(ddl, jobs.get(ddl.job_id))
    return [replace(ddl, job=DdlJob.from_dict(jobs[ddl.job_id])) if ddl.job_id in jobs else ddl for ddl in ddls]


def _lower_before_missing_job(pulled: Pulled, bounds: Bounds, ddls: Sequence[WindowDdl], version: int) -> int:
    """hi, lowered to before the first DDL whose job is not in the history yet, and before rows that may have seen it.

    Those are all rows of a version above `version`, because it is unknown when the DDL began. Raises IncompleteWindow.
    """
    missing = next((ddl for ddl in ddls if ddl.job is None), None)
    if missing is None:
        return bounds.hi
    commit_ts, job_id = missing.commit_ts, missing.job_id
    first = pulled.find_first_row(bounds.lo + 1, version + 1)
    hi = min(commit_ts, commit_ts if first is None else first) - 1
    log.info("hi_lowered", window=bounds.window, hi=str(hi), job_id=job_id, reason="job not in history yet")
    if hi <= bounds.lo:
        raise IncompleteWindow(
            f"DDL job {job_id} is not in the source's history yet",
            where={"commit_ts": commit_ts, "window": bounds.window},
            hint="wait until the DDL has finished; ADMIN SHOW DDL JOBS shows its state",
        )
    return hi


def _refuse_other_feeder(ddl: WindowDdl, job: Mapping[str, Any] | None) -> None:
    """Raises Permanent if the pumps have the DDL of another feeder, which numbers jobs and tables as this one does.

    A feeder's job begins with its binlog; TiDB's begins earlier.
    """
    if job is None or "feeder" not in job or int(job["start_ts"]) == ddl.start_ts:
        return
    raise Permanent(
        "the pumps have DDL of another feeder than that of source.status-url: rows of its tables have the same ids",
        where={"commit_ts": ddl.commit_ts, "job_id": ddl.job_id, "start_ts": ddl.start_ts},
        hint="a PD has one feeder: stop the other one, give it a PD and pumps of its own, and begin a new lake above"
        " this commit_ts (docs/operate/feeder.md)",
    )


def _read_newer_jobs(source: TidbSource, state: SchemaState, hi: int) -> _Newer:
    """The jobs that took effect since `state` and were submitted by `hi`; only the window's jobs are held in memory.

    Later jobs do not matter: no row of the window can have seen their schema.
    """
    newer = _Newer([], [])
    known = 0
    for job in (DdlJob.from_dict(raw) for raw in source.fetch_ddl_jobs(0, started_by=hi)):
        newer.versions[job.table_id] = max(newer.versions.get(job.table_id, 0), job.schema_version)
        if not job.took_effect:
            continue
        known = known + 1 if job.schema_version <= state.version else 0
        if known > LOOK_BACK:
            break
        if job.schema_version <= state.version:
            continue
        if job.finished_ts <= hi:
            newer.finished.append(job)
        elif job.start_ts <= hi:
            newer.above.append(job)
    return newer


def _lower_before_running_ddl(
    pulled: Pulled, bounds: Bounds, state: SchemaState, newer: _Newer, underway: Underway | None
) -> int:
    """hi, lowered to before the first row that may have seen a DDL which is still running. Raises IncompleteWindow.

    If the source has no schema versions (`underway` is None), a running DDL shows only by a row whose version is above
    that of every job in the history.
    """
    if underway is None:
        first = pulled.find_first_row(bounds.lo + 1, max(newer.newest, state.version) + 1)
    else:
        since = underway.find_first_seen(newer.find_ended(state), bounds.lo, bounds.hi)
        first = None if since is None else pulled.find_first_row(since)
    if first is None or first > bounds.hi:
        return bounds.hi
    if first <= bounds.lo + 1:
        raise IncompleteWindow(
            "a DDL is running on the source and rows were already written with its schema: they can land once it ends",
            where={"commit_ts": first, "window": bounds.window},
            hint="plan again when it has ended; ADMIN SHOW DDL JOBS lists it. If it waits for a transaction"
            " (metadata lock), end that transaction: mysql.tidb_mdl_view shows it",
        )
    log.info("hi_lowered", window=bounds.window, hi=str(first - 1), reason="a DDL is running")
    return first - 1


def _lower_before_rows_ahead(pulled: Pulled, bounds: Bounds, ddls: Sequence[WindowDdl]) -> int:
    """hi, lowered to before the first row that was written after the effect of one of `ddls` whose end is above hi.

    Such a row must land together with the DDL: alone it would be decoded and applied as if it came before the DDL
    (`binlake.rows.schema.window`). Raises IncompleteWindow.
    """
    hi, lowest = bounds.hi, bounds.lo + 1
    while True:
        places = [since for ddl in ddls if ddl.commit_ts > hi and (since := ddl.compute_since_above(bounds.lo)) <= hi]
        first = pulled.find_first_row(min(places)) if places else None
        if first is None or first > hi:
            return hi
        log.info(
            "hi_lowered",
            window=bounds.window,
            hi=str(first - 1),
            reason="rows were written with the schema of a DDL above hi",
        )
        if first <= lowest:
            raise IncompleteWindow(
                "rows of the window were written with the schema of a DDL whose binlog has not arrived yet",
                where={"commit_ts": first, "window": bounds.window, "job_id": _find_job_ahead(ddls, hi, first)},
                hint="plan again with a greater hi: a `stop-at` inside the DDL cannot be met, so move it; if the DDL"
                " takes longer than window.max-seconds, raise that",
            )
        hi = first - 1


def _find_job_ahead(ddls: Sequence[WindowDdl], hi: int, first: int) -> int:
    return next(ddl.job_id for ddl in ddls if ddl.commit_ts > hi and ddl.since <= first)


def _place_jobs_without_binlog(
    effective: Sequence[DdlJob], bounds: Bounds, changes: Sequence[tuple[int, DdlJob]]
) -> list[tuple[int, DdlJob]]:
    """The `effective` jobs that no binlog of the window names, with their position among `changes`.

    They are DDL that TiDB does not log, and DDL that committed at or before lo but finished after the base was read.
    Each takes the commit_ts of the last job with a smaller version: jobs take effect in the order of their versions.
    """
    named = {job.id for _, job in changes}
    placed: list[tuple[int, DdlJob]] = []
    for job in effective:
        if job.id not in named:
            before = [commit_ts for commit_ts, other in changes if other.schema_version < job.schema_version]
            placed.append((max(before, default=bounds.lo + 1), job))
    return placed


@dataclass(frozen=True)
class EndedDdl:
    """The ended DDL among that begun by hi: the schema after it, and the last version of each table."""

    schema: SchemaState
    versions: Mapping[int, int]


class Underway(Protocol):
    """The DDL running on the source, asked before its history is read."""

    def is_idle(self, version: int) -> bool:
        """True when `version` is the newest schema version: no DDL has run since."""

    def find_first_seen(self, ended: EndedDdl, lo: int, hi: int) -> int | None:
        """The smallest commit_ts of (lo, hi] from which on rows may have seen a DDL that is not in the history."""


def ask_underway(source: TidbSource, known: int, hi: int) -> Underway | None:
    """Ask `source`, whose schema is known up to version `known`, for the steps up to `hi`.

    None for a source without schema versions. Raises SourceUnavailable, WireError, ConfigError.
    """
    jobs = source.fetch_running_jobs()
    if jobs is not None:
        return ByJobs(jobs)
    newest = source.fetch_schema_version()
    return None if newest is None else ByVersions(source, newest, _fetch_steps(source, known, newest, hi))


def _fetch_steps(source: TidbSource, known: int, newest: int, hi: int) -> list[DdlStep]:
    steps = []
    for version in range(known + 1, newest + 1):
        step = source.fetch_schema_step(version)
        if step is not None and step.commit_ts > hi:
            break
        if step is not None:
            steps.append(step)
    return steps


@dataclass(frozen=True)
class ByJobs:
    """Derived from the jobs (JSON) that have not ended."""

    jobs: Sequence[Mapping[str, Any]]

    def is_idle(self, version: int) -> bool:
        """As Underway. Always False: jobs that ended recently are not listed here."""
        del version
        return False

    def find_first_seen(self, ended: EndedDdl, lo: int, hi: int) -> int | None:
        """As Underway."""
        starts = (compute_running_ts(job, ended.schema.find_table(int(job["table_id"]))) for job in self.jobs)
        positions = [max(start, lo + 1) for start in starts if start is not None]
        return min((position for position in positions if position <= hi), default=None)


@dataclass(frozen=True)
class ByVersions:
    """Derived from schema versions: the `newest` one, and the `steps` above the known version made by hi."""

    source: TidbSource
    newest: int
    steps: Sequence[DdlStep]

    def is_idle(self, version: int) -> bool:
        """As Underway."""
        return self.newest <= version

    def find_first_seen(self, ended: EndedDdl, lo: int, hi: int) -> int | None:
        """As Underway: the first step of each running DDL whose table differs, as rows see it, from the history.

        It is unknown which of its steps rows have seen. So a long data copy, even if invisible so far, counts from lo
        on.
        """
        running: dict[int, list[DdlStep]] = {}
        for step in self.steps:
            if not step.action or (may_run_ahead(step.action) and step.version > ended.versions.get(step.table_id, 0)):
                running.setdefault(step.table_id, []).append(step)
        seen = [steps for table_id, steps in running.items() if self._may_be_seen(table_id, steps, ended, hi)]
        return min((max(steps[0].commit_ts, lo + 1) for steps in seen), default=None)

    def _may_be_seen(self, table_id: int, steps: Sequence[DdlStep], ended: EndedDdl, hi: int) -> bool:
        if not all(step.action for step in steps):
            return True
        known = ended.schema.find_table(table_id)
        if any(logs_twice(step.action, known) for step in steps):
            return not self._has_job_ended_since(table_id, steps[-1].version, hi)
        shown = self.source.fetch_shown_table(table_id)
        if shown.version >= steps[-1].version and select_visible_parts(shown.info) == select_visible_parts(
            known.raw if known else None
        ):
            return False
        return not self._has_job_ended_since(table_id, steps[-1].version, hi)

    def _has_job_ended_since(self, table_id: int, version: int, hi: int) -> bool:
        """True when a job of the table that began above `hi` has ended, so the job that made `version` ended before it.

        TiDB runs the jobs of one table one after the other; a cancelled job may have left no version.
        """
        for job in map(DdlJob.from_dict, self.source.fetch_ddl_jobs(0)):
            if job.start_ts <= hi:
                return False
            if job.table_id == table_id and job.schema_version > version:
                return True
        return False
