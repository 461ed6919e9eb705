"""The DDL jobs of a window: all of them are in the lake before it counts as landed (invariant 5, hazards R-19, R-20).

A job appears in the source's history only after its DDL is finished; until then hi is lowered to just before it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import structlog

from binlake.errors import IncompleteWindow
from binlake.lake.schemas import SchemaHistory
from binlake.schema import DdlJob, SchemaState, ddl_kind
from binlake.source import TidbSource
from spark_jobs.context import Bounds, StageContext
from spark_jobs.pulled import Pulled, PulledDdl, PumpPart

log = structlog.get_logger(__name__)

LOOK_BACK = 64
"""Jobs already known, in a row, after which older ones are not read: job ids are handed out in order of submission,
and a job that finishes late is overtaken by a few others only."""


@dataclass(frozen=True)
class WindowJobs:
    """`hi` after lowering; `changes`: (commit_ts, job) in commit order."""

    hi: int
    changes: tuple[tuple[int, DdlJob], ...]
    schema_version: int


def fetch_jobs(
    ctx: StageContext, source: TidbSource, pulled: Pulled, parts: Sequence[PumpPart], bounds: Bounds
) -> WindowJobs:
    """The jobs of the DDL in the window, and those without a binlog. Raises IncompleteWindow, SourceUnavailable.

    An empty lake gets the history up to lo first.
    """
    history = SchemaHistory(ctx.paths)
    known = history.exists()
    state = history.state_at(bounds.lo) if known else history.bootstrap(bounds.lo, source.ddl_jobs(0))
    ddls = _changing(pulled.ddls(bounds)) if any(part.ddls for part in parts) else []
    if not ddls and all(part.schema_version <= state.version for part in parts):
        return WindowJobs(bounds.hi, (), state.version)
    jobs = source.ddl_jobs_by_id({job_id for _, job_id in ddls})
    hi = _lowered(bounds, ddls, jobs)
    newer = _newer(source, state, bounds.hi)
    logged = {job_id for _, job_id in ddls}
    hi = _behind_ddl(pulled, replace(bounds, hi=hi), newer.versions_above(hi, logged))
    changes = [(commit_ts, DdlJob.from_dict(jobs[job_id])) for commit_ts, job_id in ddls if commit_ts <= hi]
    changes += _without_binlog(newer.effective(source, hi, changes), bounds, changes)
    changes.sort(key=lambda change: (change[0], change[1].schema_version))
    return WindowJobs(hi, tuple(changes), max([state.version, *(job.schema_version for _, job in changes)]))


@dataclass
class _Newer:
    """Jobs that took effect since lo: those finished by hi, and (version, id) of those that finished above it."""

    finished: list[DdlJob]
    above: list[tuple[int, int]]

    def versions_above(self, hi: int, logged: Collection[int]) -> list[int]:
        """Versions of the jobs finished above `hi` that no binlog of the pull names."""
        late = [(job.schema_version, job.id) for job in self.finished if job.finished_ts > hi]
        return [version for version, job_id in (*late, *self.above) if job_id not in logged]

    def effective(self, source: TidbSource, hi: int, changes: Sequence[tuple[int, DdlJob]]) -> list[DdlJob]:
        """The jobs that committed by `hi`: finished by then, or of a lesser version than one that did.

        Versions are given out in commit order; two jobs may finish in the other order.
        """
        done = [job for job in self.finished if job.finished_ts <= hi]
        newest = max([job.schema_version for job in done] + [job.schema_version for _, job in changes], default=0)
        overtaken = [job for job in self.finished if job.finished_ts > hi and job.schema_version < newest]
        ids = {job_id for version, job_id in self.above if version < newest}
        return [*done, *overtaken, *(DdlJob.from_dict(raw) for raw in source.ddl_jobs_by_id(ids).values())]


def _changing(ddls: Sequence[PulledDdl]) -> list[tuple[int, int]]:
    """(commit_ts, job id) of the DDL binlogs that change the schema, in commit order."""
    return [(ddl.commit_ts, ddl.job_id) for ddl in ddls if ddl_kind(ddl.query, ddl.state) == "ddl"]


def _lowered(bounds: Bounds, ddls: list[tuple[int, int]], jobs: dict[int, dict[str, object]]) -> int:
    missing = next(((commit_ts, job_id) for commit_ts, job_id in ddls if job_id not in jobs), None)
    if missing is None:
        return bounds.hi
    commit_ts, job_id = missing
    log.info("hi lowered", window=bounds.window, hi=str(commit_ts - 1), job_id=job_id, reason="job not in history yet")
    if commit_ts - 1 <= bounds.lo:
        raise IncompleteWindow(
            f"DDL job {job_id} is not in the source's history yet",
            where={"commit_ts": commit_ts, "window": bounds.window},
            hint="it appears when the DDL is finished; ADMIN SHOW DDL JOBS tells its state",
        )
    return commit_ts - 1


def _newer(source: TidbSource, state: SchemaState, hi: int) -> _Newer:
    """The jobs that took effect since `state` and were submitted by `hi`; only those of the window are held whole.

    A later job matters to no row of the window: none can have seen its schema.
    """
    found = _Newer([], [])
    known = 0
    for job in (DdlJob.from_dict(raw) for raw in source.ddl_jobs(0, started_by=hi)):
        if not job.took_effect:
            continue
        known = known + 1 if job.schema_version <= state.version else 0
        if known > LOOK_BACK:
            break
        if job.schema_version <= state.version:
            continue
        if job.finished_ts <= hi:
            found.finished.append(job)
        else:
            found.above.append((job.schema_version, job.id))
    return found


def _behind_ddl(pulled: Pulled, bounds: Bounds, ahead: Sequence[int]) -> int:
    """hi, lowered to before the first row that has seen a DDL whose binlog lies above hi; `ahead`: their versions.

    The columns of a multi-schema change turn public one step before its binlog is written: rows that ran ahead must
    land together with it, or what they hold in its columns is lost. Raises IncompleteWindow.
    """
    if not ahead:
        return bounds.hi
    first = pulled.first_ahead(bounds.lo, min(ahead))
    if first is None or first > bounds.hi:
        return bounds.hi
    log.info("hi lowered", window=bounds.window, hi=str(first - 1), reason="rows ran ahead of a DDL above hi")
    if first - 1 <= bounds.lo:
        raise IncompleteWindow(
            "rows of the window ran ahead of a DDL that is not logged yet",
            where={"commit_ts": first, "window": bounds.window},
            hint="plan again with a greater hi; a `stop-at` between them cannot be met: move it",
        )
    return first - 1


def _without_binlog(
    effective: Sequence[DdlJob], bounds: Bounds, changes: Sequence[tuple[int, DdlJob]]
) -> list[tuple[int, DdlJob]]:
    """Those of the `effective` jobs that no binlog of the window names, at their place among `changes`.

    Such are DDL that TiDB does not log, and DDL that committed at or before lo but finished after the base was read.
    Their place is that of the last job with a smaller version: the order of versions is the order of effects.
    """
    named = {job.id for _, job in changes}
    found: list[tuple[int, DdlJob]] = []
    for job in effective:
        if job.id not in named:
            before = [commit_ts for commit_ts, other in changes if other.schema_version < job.schema_version]
            found.append((max(before, default=bounds.lo + 1), job))
    return found
