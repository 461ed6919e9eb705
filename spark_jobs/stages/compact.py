"""compact: the net change of each key and segment for the SQL sink; it also decides the sink's window.

A pure function of merged windows: rerun at any time, it writes the same rows to the same place. The window that the
target holds open is pinned (hazards R-16); else it starts at the checkpoint and ends at a landed window's end.
"""

from __future__ import annotations

import time

import structlog
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from binlake.config.model import Target
from binlake.downstream import Position
from binlake.errors import ConfigError
from binlake.lake.lock import lake_lock
from binlake.lake.mutations import touched_cells
from binlake.lake.tables import CHANGE
from binlake.lake.windowlog import WindowEvent
from binlake.window.definitions import cell
from binlake.window.manifest import ApplyManifest
from spark_jobs.context import Bounds, StageContext, StageResult
from spark_jobs.lake import clear, overwrite, read
from spark_jobs.netchange import mutations, net_changes
from spark_jobs.pinned import combined, digest_of, open_manifest, require_pinned, start_of, target_position
from spark_jobs.sinks import SinkWindow, merged_rows, note, own_rows, require_merged, sink_window

log = structlog.get_logger(__name__)


def run(ctx: StageContext, bounds: Bounds) -> StageResult:
    """Derive `change` for the sink's window that ends at or before `bounds.hi`. Raises BinlakeError."""
    began = time.monotonic()
    target = ctx.replication.target
    if target is None:
        raise ConfigError("this replication has no SQL target", hint="add a section [target], or leave compact out")
    position = target_position(ctx, bounds)
    wanted = _window(ctx, bounds, position, target)
    if wanted is None:
        return StageResult("compact", "skipped", bounds.lo, bounds.hi, detail={"reason": "the target is past it"})
    merged = require_merged(ctx, wanted.lo, wanted.hi)
    with lake_lock(ctx.paths, "sql"):
        window = sink_window(ctx, wanted, merged)
        rows, tables = _write(ctx, window, merged.rows, open_manifest(ctx, wanted, position))
    seconds = time.monotonic() - began
    detail = {"segments": len(window.segments.starts) + 1, "tables": tables, "mutations": merged.rows}
    event = WindowEvent("compact", wanted.lo, wanted.hi, "done", rows, seconds, ctx.run_id, "sql", detail=detail)
    ctx.windows.record(event)
    return StageResult("compact", "done", wanted.lo, wanted.hi, rows, seconds, "", detail)


def _write(ctx: StageContext, window: SinkWindow, mutated: int, pinned: ApplyManifest | None) -> tuple[int, int]:
    """(rows, tables) of `change` in the lake; what is pinned is there already, or comes out the same."""
    bounds, names = window.bounds, CHANGE.column_names()
    if pinned is not None:
        kept = read(ctx.spark, ctx.paths, CHANGE).where(F.col("window") == bounds.window)
        digest, rows = digest_of(kept, names)
        if digest == pinned.change:
            return rows, kept.select("db", "table").distinct().count()
    frame, tables = _derived(ctx, window) if mutated else (None, 0)
    if frame is None:
        if pinned is not None:
            require_pinned(CHANGE.name, bounds, pinned.change, combined([]))
        clear(ctx.spark, ctx.paths, CHANGE, own_rows(bounds), note(ctx, "compact", bounds))
        return 0, 0
    if pinned is not None:
        require_pinned(CHANGE.name, bounds, pinned.change, digest_of(frame, names)[0])
    return overwrite(frame, ctx.paths, CHANGE, own_rows(bounds), note(ctx, "compact", bounds)), tables


def _derived(ctx: StageContext, window: SinkWindow) -> tuple[DataFrame | None, int]:
    """(rows of `change`, tables); no rows when nothing in the window changes one."""
    places = touched_cells(ctx.paths, window.bounds.lo, window.bounds.hi, window.segments.starts)
    if not places:
        return None, 0
    rows = mutations(ctx.spark, ctx.paths, window.bounds.lo, window.bounds.hi)
    cells = [cell(window.definitions, window.segments, *place) for place in places]
    frame = net_changes(ctx.spark, rows, cells).withColumn("window", F.lit(window.bounds.window))
    return frame, len({(db, table) for db, table, _ in places})


def _window(ctx: StageContext, bounds: Bounds, position: Position, target: Target) -> Bounds | None:
    """The sink's window for the landed window `bounds`; None when the target has passed it without our doing."""
    if position.window is not None and position.window[0] < bounds.hi:
        return Bounds(*position.window)
    lo = start_of(ctx, position)
    passed = next((Bounds(*sealed) for sealed in ctx.windows.sealed_windows(bounds.hi) if sealed[1] <= lo), None)
    if passed is not None:
        return passed
    return Bounds(lo, _end(ctx, lo, bounds.hi, target.max_segment_rows)) if lo < bounds.hi else None


def _end(ctx: StageContext, lo: int, hi: int, most: int) -> int:
    """The next stop point, else the last landed window that `most` rows of a segment surely hold, one at least."""
    end, rows = hi, 0
    due = [window for window in ctx.windows.landed() if window[1] > lo and window[0] < hi]
    counts = merged_rows(ctx, lo, hi) if len(due) > 1 else {}
    for landed in due:
        # An update that moves its key is two rows.
        rows += 2 * counts.get(landed, 0)
        if rows > most and landed != due[0]:
            break
        end = min(landed[1], hi)
    return min([end, *(stop for stop in ctx.replication.stop_points() if stop > lo)])
