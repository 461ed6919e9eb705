"""The DDL jobs of a window: all of them are in the lake before it counts as landed (invariant 5, hazards R-19, R-20).

A job appears in the source's history only after its DDL is finished; until then hi is lowered to just before it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import structlog
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from binlake.errors import IncompleteWindow
from binlake.lake.schemas import SchemaHistory
from binlake.schema import DdlJob, SchemaState, ddl_kind, in_version_order
from binlake.source import TidbSource
from spark_jobs.context import Bounds, StageContext
from spark_jobs.staging import PumpPart

log = structlog.get_logger(__name__)

LOOK_BACK = 64
"""Jobs already known, in a row, after which older ones are not read: job ids are handed out in order of submission,
and a job that finishes late is overtaken by a few others only."""


@dataclass(frozen=True)
class WindowJobs:
    """`hi` after lowering; `base`: the schema at lo for an empty lake; `changes`: (commit_ts, job) in commit order."""

    hi: int
    base: SchemaState | None
    changes: tuple[tuple[int, DdlJob], ...]
    schema_version: int


def fetch_jobs(
    ctx: StageContext, source: TidbSource, pulled: DataFrame, parts: Sequence[PumpPart], bounds: Bounds
) -> WindowJobs:
    """The jobs of the DDL in the window, and those without a binlog. Raises IncompleteWindow, SourceUnavailable."""
    history = SchemaHistory(ctx.paths)
    base = None if history.exists() else _base(source, bounds.lo)
    state = base if base is not None else history.state_at(bounds.lo)
    ddls = _ddl_binlogs(pulled, bounds) if any(part.ddls for part in parts) else []
    if not ddls and all(part.schema_version <= state.version for part in parts):
        return WindowJobs(bounds.hi, base, (), state.version)
    jobs = source.ddl_jobs_by_id({job_id for _, job_id in ddls})
    hi = _lowered(bounds, ddls, jobs)
    newer = _newer(source, state)
    hi = _behind_ddl(pulled, replace(bounds, hi=hi), {job_id for _, job_id in ddls}, newer)
    changes = [(commit_ts, DdlJob.from_dict(jobs[job_id])) for commit_ts, job_id in ddls if commit_ts <= hi]
    changes += _without_binlog(newer, bounds, hi, changes)
    changes.sort(key=lambda change: (change[0], change[1].schema_version))
    return WindowJobs(hi, base, tuple(changes), max([state.version, *(job.schema_version for _, job in changes)]))


def _base(source: TidbSource, lo: int) -> SchemaState:
    jobs = (DdlJob.from_dict(raw) for raw in source.ddl_jobs(0))
    done = in_version_order(job for job in jobs if job.finished_ts <= lo)
    return SchemaState().fold((job.finished_ts, job) for job in done)


def _ddl_binlogs(pulled: DataFrame, bounds: Bounds) -> list[tuple[int, int]]:
    """(commit_ts, job id) of the DDL binlogs that change the schema, in commit order."""
    rows = pulled.where((F.col("kind") == "ddl") & (F.col("chunk") == 0))
    rows = rows.where(f"commit_ts > {bounds.lo} AND commit_ts <= {bounds.hi}")
    found = rows.select("commit_ts", "job_id", "query", "schema_state").distinct().collect()
    return sorted(
        (row["commit_ts"], row["job_id"]) for row in found if ddl_kind(row["query"], row["schema_state"]) == "ddl"
    )


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


def _newer(source: TidbSource, state: SchemaState) -> list[DdlJob]:
    """The jobs that took effect since `state`."""
    found: list[DdlJob] = []
    known = 0
    for job in (DdlJob.from_dict(raw) for raw in source.ddl_jobs(0)):
        known = known + 1 if job.schema_version <= state.version else 0
        if known > LOOK_BACK:
            break
        if job.took_effect and job.schema_version > state.version:
            found.append(job)
    return found


def _behind_ddl(pulled: DataFrame, bounds: Bounds, logged: Collection[int], newer: Sequence[DdlJob]) -> int:
    """hi, lowered to before the first row that has seen a DDL whose binlog lies above hi.

    The columns of a multi-schema change turn public one step before its binlog is written: rows that ran ahead must
    land together with it, or what they hold in its columns is lost. Raises IncompleteWindow.
    """
    ahead = [job.schema_version for job in newer if job.finished_ts > bounds.hi and job.id not in logged]
    if not ahead:
        return bounds.hi
    rows = pulled.where(F.col("schema_version") >= min(ahead)).where(F.col("commit_ts") > bounds.lo)
    first = rows.where(F.col("kind") == "dml").agg(F.min("commit_ts")).collect()[0][0]
    if first is None or first > bounds.hi:
        return bounds.hi
    log.info("hi lowered", window=bounds.window, hi=str(first - 1), reason="rows ran ahead of a DDL above hi")
    if first - 1 <= bounds.lo:
        raise IncompleteWindow(
            "rows of the window ran ahead of a DDL that is not logged yet",
            where={"commit_ts": first, "window": bounds.window},
            hint="plan again with a greater hi; a `stop-at` between them cannot be met: move it",
        )
    return int(first) - 1


def _without_binlog(
    newer: Sequence[DdlJob], bounds: Bounds, hi: int, changes: list[tuple[int, DdlJob]]
) -> list[tuple[int, DdlJob]]:
    """Jobs finished by hi that no binlog of the window names, at their place among `changes`.

    Such are DDL that TiDB does not log, and DDL that committed at or before lo but finished after the base was read.
    Their place is that of the last job with a smaller version: the order of versions is the order of effects.
    """
    named = {job.id for _, job in changes}
    found: list[tuple[int, DdlJob]] = []
    for job in newer:
        if job.finished_ts <= hi and job.id not in named:
            before = [commit_ts for commit_ts, other in changes if other.schema_version < job.schema_version]
            found.append((max(before, default=bounds.lo + 1), job))
    return found
