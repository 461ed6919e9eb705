"""merge: one total order, filtered, decoded with the schema of each row's place; and the DDL of the window by segment.

A pure function of the sealed window and the schema history: run again at any time, it gives the same rows in the same
place. Rows decode in parallel; nothing of them comes to the driver.
"""

from __future__ import annotations

import time
from collections.abc import Collection

import structlog
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from binlake.errors import ImmutableWindow
from binlake.filter import TableFilter
from binlake.lake.lock import lake_lock
from binlake.lake.schemas import SchemaHistory
from binlake.lake.tables import BINLOG, DDL, MUTATION
from binlake.lake.windowlog import WindowEvent
from binlake.schema import WindowSchemas
from binlake.window.ddls import DdlBinlog, PlannedDdl, plan_ddls, window_schemas
from binlake.window.manifest import WindowManifest
from binlake.wire import binlog_pb2
from spark_jobs.context import Bounds, StageContext, StageResult
from spark_jobs.decode import Decoder
from spark_jobs.lake import local_frame, overwrite, read

log = structlog.get_logger(__name__)


def run(ctx: StageContext, bounds: Bounds) -> StageResult:
    """Derive `mutation` and `ddl` of a landed window, and first of each window before it that a failure left out.

    Raises WireError, SchemaError, ImmutableWindow.
    """
    manifest = ctx.windows.manifest(bounds.lo, bounds.hi)
    if manifest is None:
        raise ImmutableWindow("the window is not landed", where={"window": bounds.window}, hint="run land first")
    with lake_lock(ctx.paths, "merge"):
        for earlier in ctx.windows.not_merged(bounds.lo):
            _merge(ctx, earlier)
        return _merge(ctx, manifest)


def _merge(ctx: StageContext, manifest: WindowManifest) -> StageResult:
    began, bounds = time.monotonic(), Bounds(manifest.lo, manifest.hi)
    ignored = frozenset(int(ts) for ts in ctx.replication.filter.ignore_txn_commit_ts)
    planned, schemas = _ddls(ctx, manifest, ignored)
    if planned:
        frame = local_frame(ctx.spark, [_ddl_row(bounds, ddl) for ddl in planned], DDL.schema())
        overwrite(frame, ctx.paths, DDL, f"window = '{bounds.window}'", _note(ctx, bounds))
    rows = _write_mutations(ctx, manifest, schemas, ignored) if manifest.dml else 0
    seconds = time.monotonic() - began
    skipped = [str(ts) for ts in sorted(ignored) if bounds.lo < ts <= bounds.hi]
    applied = sum(ddl.decision == "apply" for ddl in planned)
    detail = {"ddl": applied, "ddl_skipped": len(planned) - applied, "skipped_commit_ts": skipped}
    ctx.windows.record(WindowEvent("merge", bounds.lo, bounds.hi, "done", rows, seconds, ctx.run_id, detail=detail))
    return StageResult("merge", "done", bounds.lo, bounds.hi, rows, seconds, "", detail)


def _landed(ctx: StageContext, manifest: WindowManifest, kind: str) -> DataFrame:
    between = f"commit_ts > {manifest.lo} AND commit_ts <= {manifest.hi}"
    return read(ctx.spark, ctx.paths, BINLOG).where(between).where(F.col("kind") == kind)


def _ddls(
    ctx: StageContext, manifest: WindowManifest, ignored: Collection[int]
) -> tuple[list[PlannedDdl], WindowSchemas]:
    history = SchemaHistory(ctx.paths)
    base, jobs = history.state_at(manifest.lo), history.changes(manifest.lo, manifest.hi)
    binlogs = []
    if manifest.ddls:
        rows = whole(_landed(ctx, manifest, "ddl"), manifest.chunks, "job_id", "schema_state")
        binlogs = [_ddl_binlog(row.asDict()) for row in rows.collect()]
    seen = _first_seen(ctx, manifest, base.version) if jobs else {}
    planned = plan_ddls(base, binlogs, jobs, TableFilter(ctx.replication.filter), ignored, seen)
    return planned, window_schemas(base, binlogs, jobs, seen)


def _first_seen(ctx: StageContext, manifest: WindowManifest, version: int) -> dict[int, int]:
    """Least commit_ts of the window's row changes by schema version, of versions above `version`."""
    rows = _landed(ctx, manifest, "dml").where(F.col("schema_version") > version)
    return dict(rows.groupBy("schema_version").agg(F.min("commit_ts")).collect())  # type: ignore[arg-type]


def _ddl_binlog(row: dict[str, object]) -> DdlBinlog:
    query = binlog_pb2.Binlog.FromString(row.pop("payload")).ddl_query  # type: ignore[arg-type]
    return DdlBinlog(query=query.decode("utf-8", "replace"), **row)  # type: ignore[arg-type]


def whole(rows: DataFrame, chunks: int, *more: str) -> DataFrame:
    """One row per transaction with its whole payload: where there are `chunks`, they are joined in order."""
    single = rows.select("commit_ts", "start_ts", *more, "payload", "chunk")
    if not chunks:
        return single.drop("chunk")
    parts = F.array_sort(F.collect_list(F.struct("chunk", "payload")))
    joined = F.aggregate(parts, F.lit(b""), lambda done, part: F.concat(done, part["payload"]))
    return single.groupBy("commit_ts", "start_ts", *more).agg(joined.alias("payload"))


def _ddl_row(bounds: Bounds, ddl: PlannedDdl) -> tuple[object, ...]:
    # Without routes the text that applies is the text that was logged.
    return (
        bounds.window, ddl.segment, ddl.commit_ts, ddl.since, ddl.start_ts, ddl.schema_version, ddl.job_id,
        ddl.action, ddl.db, ddl.table, ddl.query, ddl.query, ddl.tables, ddl.decision, ddl.reason,
        ddl.before.to_json(), ddl.after.to_json(),
    )  # fmt: skip


def _write_mutations(
    ctx: StageContext, manifest: WindowManifest, schemas: WindowSchemas, ignored: frozenset[int]
) -> int:
    rows = _landed(ctx, manifest, "dml")
    if ignored:
        rows = rows.where(~F.col("commit_ts").isin(*ignored))
    frame = whole(rows, manifest.chunks).mapInArrow(Decoder(schemas, ctx.replication.filter), MUTATION.schema())
    bounds = Bounds(manifest.lo, manifest.hi)
    predicate = f"commit_ts > {bounds.lo} AND commit_ts <= {bounds.hi}"
    return overwrite(frame, ctx.paths, MUTATION, predicate, _note(ctx, bounds))


def _note(ctx: StageContext, bounds: Bounds) -> dict[str, str]:
    return {"run": ctx.run_id, "window": bounds.window, "stage": "merge"}
