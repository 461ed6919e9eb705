"""compact: the net change of each key and segment for the SQL sink; it also decides the sink's window.

A pure function of merged windows: rerun at any time, it writes the same rows to the same place. The window is pinned by
what started: a window that convert has sealed, or that the target holds open, is never cut otherwise (hazards R-16).
"""

from __future__ import annotations

import time

import structlog
from pyspark.sql import functions as F

from binlake.downstream import checkpoint_ts, open_window
from binlake.errors import CheckpointConflict, ConfigError, LostRange
from binlake.lake.lock import lake_lock
from binlake.lake.tables import CHANGE
from binlake.lake.windowlog import WindowEvent
from binlake.window.definitions import cell
from spark_jobs.context import Bounds, StageContext, StageResult
from spark_jobs.lake import overwrite
from spark_jobs.netchange import mutations, net_changes, touched_cells
from spark_jobs.sinks import SinkWindow, note, require_merged, sink_window

log = structlog.get_logger(__name__)


def run(ctx: StageContext, bounds: Bounds) -> StageResult:
    """Derive `change` for the sink's window that ends at or before `bounds.hi`. Raises BinlakeError."""
    began = time.monotonic()
    if ctx.replication.target is None:
        raise ConfigError("this replication has no SQL target", hint="add a section [target], or leave compact out")
    wanted = _window(ctx, bounds)
    if wanted is None:
        return StageResult("compact", "skipped", bounds.lo, bounds.hi, detail={"reason": "the target is past it"})
    merged = require_merged(ctx, wanted.lo, wanted.hi)
    with lake_lock(ctx.paths, "sql"):
        window = sink_window(ctx, wanted, merged)
        rows, tables = _write(ctx, window) if merged.rows else (0, 0)
    seconds = time.monotonic() - began
    detail = {"segments": len(window.segments.starts) + 1, "tables": tables, "mutations": merged.rows}
    event = WindowEvent("compact", wanted.lo, wanted.hi, "done", rows, seconds, ctx.run_id, "sql", detail=detail)
    ctx.windows.record(event)
    return StageResult("compact", "done", wanted.lo, wanted.hi, rows, seconds, "", detail)


def _write(ctx: StageContext, window: SinkWindow) -> tuple[int, int]:
    bounds, segments = window.bounds, window.segments
    rows = mutations(ctx.spark, ctx.paths, bounds.lo, bounds.hi)
    places = touched_cells(rows, segments.starts)
    if not places:
        return 0, 0
    cells = [cell(window.definitions, segments, *place) for place in places]
    frame = net_changes(ctx.spark, rows, cells).withColumn("window", F.lit(bounds.window))
    written = overwrite(frame, ctx.paths, CHANGE, f"window = '{bounds.window}'", note(ctx, "compact", bounds))
    return written, len({(db, table) for db, table, _ in places})


def _window(ctx: StageContext, bounds: Bounds) -> Bounds | None:
    """The sink's window for the landed window `bounds`; None when the target has passed it without our doing."""
    cluster_id = _cluster_id(ctx, bounds)
    sealed, lo = ctx.windows.sink_window(bounds.hi), _start(ctx, cluster_id)
    # A target behind what was sealed was restored from an older copy: it starts again from where it is.
    if sealed is not None and lo >= sealed[0]:
        return Bounds(*sealed)
    opened = open_window(ctx.replication, cluster_id)
    if opened is not None:
        return Bounds(*opened)
    return Bounds(lo, _end(ctx, lo, bounds.hi)) if lo < bounds.hi else None


def _cluster_id(ctx: StageContext, bounds: Bounds) -> int:
    landed = next((window for window in ctx.windows.landed() if window[0] < bounds.hi <= window[1]), None)
    manifest = ctx.windows.manifest(*landed) if landed else None
    if manifest is None:
        raise CheckpointConflict("the window is not landed", where={"window": bounds.window}, hint="run land first")
    return manifest.cluster_id


def _start(ctx: StageContext, cluster_id: int) -> int:
    landed = ctx.windows.landed()
    checkpoint = checkpoint_ts(ctx.replication, cluster_id)
    if checkpoint is None:
        return landed[0][0]
    if checkpoint < landed[0][0]:
        raise LostRange(
            f"the target is at {checkpoint}, and the lake starts at {landed[0][0]}",
            hint="restore the target from a newer copy, or start a lake from the target's checkpoint",
        )
    if checkpoint > landed[-1][1]:
        raise CheckpointConflict(
            f"the target's checkpoint {checkpoint} is ahead of the landed ts {landed[-1][1]}",
            hint="another replication writes this checkpoint, or the lake was restored from an older copy",
        )
    return checkpoint


def _end(ctx: StageContext, lo: int, hi: int) -> int:
    return min([hi, *(stop for stop in ctx.replication.stop_points() if stop > lo)])
