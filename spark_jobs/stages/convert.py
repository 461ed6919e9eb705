"""convert: net changes and DDL as SQL of the target, by segment, phase and batch; seals the apply manifest.

The rows are a pure function of `change`, `ddl` and the definitions of each segment. The manifest pins their digests and
the target's definitions, and is written only where it may be applied: at the checkpoint (R-16, R-18, R-62).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import structlog
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from binlake.config.model import Target
from binlake.ddl import SourceDdl, map_ddl
from binlake.downstream import Session, checkpoint_ts, open_window
from binlake.downstream.definitions import fingerprint, require_definitions
from binlake.errors import CheckpointConflict, ConfigError, ImmutableWindow
from binlake.lake.lock import lake_lock
from binlake.lake.schemas import SchemaHistory
from binlake.lake.tables import CHANGE, STATEMENT
from binlake.lake.windowlog import WindowEvent
from binlake.statement import Phase, StatementBatch, statement_digest
from binlake.window.definitions import LandedDdl
from binlake.window.manifest import ApplyManifest
from spark_jobs.context import Bounds, StageContext, StageResult
from spark_jobs.lake import folded, local_frame, overwrite, read
from spark_jobs.render import PLACE, Chunk, Renderer, chunks, placed, sizes
from spark_jobs.sinks import SinkWindow, note, require_merged, sink_window
from spark_jobs.statements import LakeStatements, batch_row

log = structlog.get_logger(__name__)


def run(ctx: StageContext, bounds: Bounds) -> StageResult:
    """Derive `statement` of the sink's window and seal its manifest when it is next. Raises BinlakeError."""
    began = time.monotonic()
    target = _target(ctx)
    merged = require_merged(ctx, bounds.lo, bounds.hi)
    with lake_lock(ctx.paths, "sql"):
        window = sink_window(ctx, bounds, merged)
        change, skipped = _write(ctx, window, target) if not merged.empty else (folded(()), 0)
        statements = statements_of(ctx, window, target)
        sealed = _seal(ctx, window, target, change, statements)
    seconds = time.monotonic() - began
    state = "done" if sealed else "already"
    detail = {"batches": statements.count, "ddl": len(window.applied) - skipped, "ddl_skipped": skipped}
    event = WindowEvent("convert", bounds.lo, bounds.hi, state, statements.rows, seconds, ctx.run_id, "sql")
    ctx.windows.record(replace(event, detail=detail, manifest=sealed.to_json() if sealed else ""))
    return StageResult("convert", state, bounds.lo, bounds.hi, statements.rows, seconds, "", detail)


def statements_of(ctx: StageContext, window: SinkWindow, target: Target) -> LakeStatements:
    """The statements of `window` as they are in the lake."""
    history = SchemaHistory(ctx.paths)
    versions = (history.state_at(window.bounds.lo).version, history.state_at(window.bounds.hi).version)
    return LakeStatements(ctx.paths, window, target, versions)


def _target(ctx: StageContext) -> Target:
    if ctx.replication.target is None:
        raise ConfigError("this replication has no SQL target", hint="add a section [target], or leave convert out")
    return ctx.replication.target


def _write(ctx: StageContext, window: SinkWindow, target: Target) -> tuple[str, int]:
    """Writes the rows; (digest of `change`, DDL that the dialect skips)."""
    bounds = window.bounds
    changes = placed(read(ctx.spark, ctx.paths, CHANGE).where(F.col("window") == bounds.window))
    counted = sizes(changes, CHANGE.column_names())
    ddls, skipped = _ddl_batches(window, target)
    frames = [_rendered(ctx, window, target, changes, chunks(counted, target.batch))] if counted else []
    if ddls:
        rows = [tuple(batch_row(bounds.window, batch)[name] for name in STATEMENT.column_names()) for batch in ddls]
        frames.append(local_frame(ctx.spark, rows, STATEMENT.schema()))
    if frames:
        frame = frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])
        predicate = f"window = '{bounds.window}'"
        overwrite(frame, ctx.paths, STATEMENT, predicate, note(ctx, "convert", bounds))
    return _combined(counted), skipped


def _rendered(ctx: StageContext, window: SinkWindow, target: Target, changes: DataFrame, cut: list[Chunk]) -> DataFrame:
    places = {(chunk.place[0], chunk.place[2], chunk.place[3]) for chunk in cut}
    tables = {
        place: window.definitions.within(place[1], place[2], *window.segments.bounds(place[0])) for place in places
    }
    numbers = {(chunk.place, chunk.number): chunk for chunk in cut}
    renderer = Renderer(window.bounds.window, tables, numbers, target.db_type, target.batch)
    buckets = [(*chunk.place, bucket, chunk.number) for chunk in cut for bucket in chunk.buckets]
    schema = "segment INT, phase INT, db STRING, table STRING, bucket INT, chunk INT"
    numbered = changes.join(F.broadcast(local_frame(ctx.spark, buckets, schema)), [*PLACE, "bucket"])
    wanted = numbered.select(*PLACE, "chunk", "key", "before", "after", "copies")
    # A function, not the object: Spark counts the arguments and would take self for the key.
    return wanted.groupBy(*PLACE, "chunk").applyInArrow(lambda rows: renderer(rows), STATEMENT.schema())


def _combined(counted: list[object]) -> str:
    """The digest of all rows from the folds of their groups: count, sum and exclusive or."""
    total, added, mixed = 0, 0, 0
    for row in counted:
        total += row["fold0"]  # type: ignore[index]
        added += int(row["fold1"])  # type: ignore[index]
        mixed ^= row["fold2"]  # type: ignore[index]
    return folded((total, added, mixed))


def _ddl_batches(window: SinkWindow, target: Target) -> tuple[list[StatementBatch], int]:
    found, skipped = [], 0
    for segment, ddl in enumerate(window.applied, 1):
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


@dataclass(frozen=True)
class _Position:
    """Where the target is: its commitTS (None before its first window) and the window it holds open."""

    commit_ts: int | None
    opened: tuple[int, int] | None


def _seal(
    ctx: StageContext, window: SinkWindow, target: Target, change: str, statements: LakeStatements
) -> ApplyManifest | None:
    """The manifest to write, if the window is the next one and not sealed so already; None = nothing to seal."""
    bounds = window.bounds
    sealed = ctx.windows.apply_manifest(bounds.lo, bounds.hi)
    landed = ctx.windows.landed()
    landing = ctx.windows.manifest(*next(w for w in landed if w[0] < bounds.hi <= w[1]))
    cluster_id = landing.cluster_id if landing else 0
    position = _Position(checkpoint_ts(ctx.replication, cluster_id), open_window(ctx.replication, cluster_id))
    if position.opened == (bounds.lo, bounds.hi):
        _require_same(sealed, change, statements, bounds)
        return None
    start = landed[0][0] if position.commit_ts is None else position.commit_ts
    if start >= bounds.hi:
        return None
    if start != bounds.lo:
        raise CheckpointConflict(
            f"the window does not start at the target's checkpoint {start}",
            where={"window": bounds.window},
            hint="run compact again: it takes the window from the checkpoint on",
        )
    manifest = _manifest(ctx, window, target, change, statements, cluster_id)
    return None if manifest == sealed else manifest


def _require_same(sealed: ApplyManifest | None, change: str, statements: LakeStatements, bounds: Bounds) -> None:
    if sealed is None or (sealed.change, sealed.statement) != (change, statements.digest()):
        raise ImmutableWindow(
            "the target holds this window open, and its statements are no longer those that were sealed",
            where={"window": bounds.window},
            hint="restore `statement` by Delta time travel, or run the version of Binlake that sealed it",
        )


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
