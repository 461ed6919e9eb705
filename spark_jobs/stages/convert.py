"""convert: net changes and DDL as SQL of the target, by segment, phase and batch; seals the apply manifest.

The rows are a pure function of `change`, `ddl` and the definitions of each segment. The manifest pins their digests and
the target's definitions, and is written only where it may be applied: at the checkpoint (R-16, R-18, R-62).
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import reduce

import structlog
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from binlake.config.model import Target
from binlake.ddl import SourceDdl, map_ddl
from binlake.downstream import Position, Session
from binlake.downstream.definitions import fingerprint, require_definitions
from binlake.errors import CheckpointConflict, ConfigError
from binlake.lake.lock import lake_lock
from binlake.lake.schemas import SchemaHistory
from binlake.lake.tables import CHANGE, STATEMENT
from binlake.lake.windowlog import WindowEvent
from binlake.statement import BatchLimits, Phase, StatementBatch, statement_digest
from binlake.window.definitions import LandedDdl
from binlake.window.manifest import ApplyManifest, window_name
from spark_jobs.context import Bounds, StageContext, StageResult
from spark_jobs.lake import clear, local_frame, may_have, overwrite, read
from spark_jobs.pinned import cluster_id, combined, open_manifest, require_pinned, start_of, target_position
from spark_jobs.render import PLACE, Chunk, Renderer, chunks, placed, require_segments, sizes
from spark_jobs.sinks import SinkWindow, note, own_rows, require_merged, sink_window
from spark_jobs.statements import INDEX, LakeStatements, batch_row, index_digest

log = structlog.get_logger(__name__)


def run(ctx: StageContext, bounds: Bounds) -> StageResult:
    """Derive `statement` of the sink's window and seal its manifest when it is next. Raises BinlakeError."""
    began = time.monotonic()
    target = _target(ctx)
    merged = require_merged(ctx, bounds.lo, bounds.hi)
    position = target_position(ctx, bounds)
    with lake_lock(ctx.paths, "sql"):
        window = sink_window(ctx, bounds, merged)
        ddls, skipped = _ddl_batches(window, target)
        statements, sealed = _statements(ctx, window, target, ddls, position)
    seconds = time.monotonic() - began
    state = "done" if sealed else "already"
    detail = {"batches": statements.count, "ddl": len(ddls), "ddl_skipped": skipped}
    event = WindowEvent("convert", bounds.lo, bounds.hi, state, statements.rows, seconds, ctx.run_id, "sql")
    ctx.windows.record(replace(event, detail=detail, manifest=sealed.to_json() if sealed else ""))
    return StageResult("convert", state, bounds.lo, bounds.hi, statements.rows, seconds, "", detail)


def _statements(
    ctx: StageContext, window: SinkWindow, target: Target, ddls: list[StatementBatch], position: Position
) -> tuple[LakeStatements, ApplyManifest | None]:
    """The statements in the lake, and their manifest when there is one to write."""
    pinned = open_manifest(ctx, window.bounds, position)
    if pinned is not None:
        statements = statements_of(ctx, window, target)
        if statements.digest() == pinned.statement:
            return statements, None
    limits = BatchLimits.of(target.batch, position.max_packet)
    change = _write(ctx, window, target, limits, ddls, pinned)
    statements = statements_of(ctx, window, target)
    return statements, _seal(ctx, window, target, change, statements, position) if pinned is None else None


def statements_of(ctx: StageContext, window: SinkWindow, target: Target) -> LakeStatements:
    """The statements of `window` as they are in the lake."""
    history = SchemaHistory(ctx.paths)
    versions = (history.state_at(window.bounds.lo).version, history.state_at(window.bounds.hi).version)
    return LakeStatements(ctx.paths, window, target, versions)


def _target(ctx: StageContext) -> Target:
    if ctx.replication.target is None:
        raise ConfigError("this replication has no SQL target", hint="add a section [target], or leave convert out")
    return ctx.replication.target


def _write(
    ctx: StageContext,
    window: SinkWindow,
    target: Target,
    limits: BatchLimits,
    ddls: list[StatementBatch],
    pinned: ApplyManifest | None,
) -> str:
    """Writes the rows, those of `pinned` if there is one; the digest of `change`."""
    bounds, about = window.bounds, note(ctx, "convert", window.bounds)
    changes = placed(read(ctx.spark, ctx.paths, CHANGE).where(F.col("window") == bounds.window))
    counted = sizes(changes, CHANGE.column_names()) if may_have(ctx.paths, CHANGE, own_rows(bounds)) else []
    require_segments(counted, target.max_segment_rows, bounds.window)
    frames = [_rendered(ctx, window, target, changes, chunks(counted, limits), limits)] if counted else []
    if ddls:
        rows = [tuple(batch_row(bounds.window, batch)[name] for name in STATEMENT.column_names()) for batch in ddls]
        frames.append(local_frame(ctx.spark, rows, STATEMENT.schema()))
    frame = reduce(DataFrame.unionByName, frames) if frames else None
    if pinned is not None:
        index = [row.asDict() for row in frame.select(*INDEX).collect()] if frame is not None else []
        require_pinned(STATEMENT.name, bounds, pinned.statement, index_digest(index))
    if frame is None:
        clear(ctx.spark, ctx.paths, STATEMENT, own_rows(bounds), about)
    else:
        overwrite(frame, ctx.paths, STATEMENT, own_rows(bounds), about)
    return combined(counted)


def _rendered(
    ctx: StageContext, window: SinkWindow, target: Target, changes: DataFrame, cut: list[Chunk], limits: BatchLimits
) -> DataFrame:
    places = {(chunk.place[0], chunk.place[2], chunk.place[3]) for chunk in cut}
    tables = {
        place: window.definitions.within(place[1], place[2], *window.segments.bounds(place[0])) for place in places
    }
    numbers = {(chunk.place, chunk.number): chunk for chunk in cut}
    renderer = Renderer(window.bounds.window, tables, numbers, target.db_type, limits)
    buckets = [(*chunk.place, bucket, chunk.number) for chunk in cut for bucket in chunk.buckets]
    schema = "segment INT, phase INT, db STRING, table STRING, bucket INT, chunk INT"
    numbered = changes.join(F.broadcast(local_frame(ctx.spark, buckets, schema)), [*PLACE, "bucket"])
    wanted = numbered.select(*PLACE, "chunk", "key", "before", "after", "copies")
    # A function, not the object: Spark counts the arguments and would take self for the key.
    return wanted.groupBy(*PLACE, "chunk").applyInArrow(lambda rows: renderer(rows), STATEMENT.schema())


def _ddl_batches(window: SinkWindow, target: Target) -> tuple[list[StatementBatch], int]:
    """(the DDL of each segment that has one, how many are left out: by the dialect, or to the operator)."""
    found, skipped = [], 0
    for segment, ddl in enumerate(window.cuts, 1):
        if ddl.decision == "skip":
            skipped += 1
            log.info("ddl left to the operator", commit_ts=str(ddl.commit_ts), reason=ddl.reason, query=ddl.query[:200])
            continue
        mapped = map_ddl(SourceDdl(ddl.commit_ts, ddl.db, ddl.table, ddl.query, ddl.before, ddl.after), target.db_type)
        if mapped.decision == "skip":
            skipped += 1
            log.info("ddl skipped", commit_ts=str(ddl.commit_ts), reason=mapped.reason, query=ddl.query[:200])
            continue
        found.append(_ddl_batch(segment, ddl, mapped.sql))
    return found, skipped


def _ddl_batch(segment: int, ddl: LandedDdl, sql: tuple[str, ...]) -> StatementBatch:
    unchecked = (-1,) * len(sql)
    digest = statement_digest(sql)
    return StatementBatch(segment, Phase.DDL, 0, "", ddl.table, "ddl", sql, unchecked, "", 0, 0, digest)


def _seal(
    ctx: StageContext,
    window: SinkWindow,
    target: Target,
    change: str,
    statements: LakeStatements,
    position: Position,
) -> ApplyManifest | None:
    """The manifest to write, if the window is the next one and not sealed so already; None = nothing to seal."""
    bounds, opened = window.bounds, position.window
    start = start_of(ctx, position)
    if bounds.hi <= (start if opened is None else opened[0]):
        return None
    if opened is not None or start != bounds.lo:
        state = f"holds the window {window_name(*opened)} open" if opened else f"is at {start}"
        raise CheckpointConflict(
            f"the window is not the next one: the target {state}",
            where={"window": bounds.window},
            hint="run compact again: it takes the window from the checkpoint on",
        )
    manifest = _manifest(ctx, window, target, change, statements, cluster_id(ctx, bounds))
    written = ctx.windows.apply_manifests(bounds.lo, bounds.hi)
    return None if written and manifest == written[-1] else manifest


def _manifest(
    ctx: StageContext, window: SinkWindow, target: Target, change: str, statements: LakeStatements, cluster_id: int
) -> ApplyManifest:
    bounds = window.bounds
    return ApplyManifest(
        replication=ctx.replication.name,
        sink="sql",
        cluster_id=cluster_id,
        lo=bounds.lo,
        hi=bounds.hi,
        config_hash=ctx.replication.data_hash(),
        safe_mode=target.safe_mode,
        definitions=_target_definitions(window, target, statements),
        change=change,
        statement=statements.digest(),
        segments=len(window.segments.starts) + 1,
        rows=statements.rows,
        schema_version=statements.segments()[-1].schema_version,
        windows=tuple(f"{lo}-{hi}" for lo, hi in ctx.windows.landed() if lo < bounds.hi and hi > bounds.lo),
    )


def _target_definitions(window: SinkWindow, target: Target, statements: LakeStatements) -> str:
    """Check the tables that get rows before the first DDL, and digest all that the window touches (R-13, R-18)."""
    plans = statements.segments()
    names = {name for plan in plans for name in (*plan.touched, *(plan.expected.names if plan.expected else ()))}
    first = plans[0].expected
    with_rows = [window.definitions.at(*name, window.bounds.lo) for name in (first.names if first else ())]
    session = Session(target)
    try:
        require_definitions(session, [table for table in with_rows if table is not None], target.db_type)
        return fingerprint(session, names, target.db_type)
    finally:
        session.close()
