"""The net changes of a window as SQL, except in mode ordered: the same chunks and batches whoever cuts and renders.

The driver itself takes a small window, Spark's workers a large one, or one whose rows need their origins (keeping).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from binlake.config.model import Target
from binlake.lake.tables import CHANGE, STATEMENT
from binlake.schema import TableDef
from binlake.statement import BatchLimits
from spark_jobs import renderhere
from spark_jobs.context import StageContext
from spark_jobs.keeping import with_origins
from spark_jobs.lake import Rows, local_frame, may_have, read
from spark_jobs.pinned import combined
from spark_jobs.render import PLACE, Chunk, Renderer, chunks, placed, require_segments, sizes
from spark_jobs.sinks import SinkWindow, own_rows
from spark_jobs.statements import kept_copy

Tables = Mapping[tuple[int, str, str], TableDef]
"""Definitions by segment, database, table."""


def net_statements(
    ctx: StageContext, window: SinkWindow, target: Target, limits: BatchLimits, *, plain: bool
) -> tuple[Rows | None, str]:
    """The statements of `change`, None when it has no row of the window; and its digest. Raises Permanent."""
    bounds, names = window.bounds, CHANGE.column_names()
    if not may_have(ctx.paths, CHANGE, own_rows(bounds)):
        return None, combined([])
    if ctx.is_small(bounds):
        rows = renderhere.placed(ctx.paths, bounds.window)
        counted = renderhere.sizes(rows, names)
        tables = _tables(window, target, counted)
        if not _any_kept(tables):
            renderer = _renderer(ctx, window, target, limits, tables, chunks(counted, limits), plain)
            return renderhere.rendered(renderer, rows), combined(counted)
    changes = placed(read(ctx.spark, ctx.paths, CHANGE).where(F.col("window") == bounds.window))
    counted = sizes(changes, names)
    tables = _tables(window, target, counted)
    changes = with_origins(ctx, window, changes, tables)
    numbered = sizes(changes, ["key"]) if _any_kept(tables) else counted
    renderer = _renderer(ctx, window, target, limits, tables, chunks(numbered, limits), plain)
    return _by_workers(ctx, changes, renderer), combined(counted)


def _tables(window: SinkWindow, target: Target, counted: Sequence[Any]) -> Tables:
    """Raises Permanent when a segment is too large for the target's mode."""
    if target.mode == "atomic":
        require_segments(counted, target.max_segment_rows, window.bounds.window)
    places = {(row["segment"], row["db"], row["table"]) for row in counted}
    return {place: window.definitions.within(place[1], place[2], *window.segments.bounds(place[0])) for place in places}


def _any_kept(tables: Tables) -> bool:
    return any(table.kept for table in tables.values())


def _renderer(
    ctx: StageContext,
    window: SinkWindow,
    target: Target,
    limits: BatchLimits,
    tables: Tables,
    cut: Sequence[Chunk],
    plain: bool,
) -> Renderer:
    copies = {place: kept_copy(target, ctx.replication.name, window.bounds.window, place) for place in tables}
    numbers = {(chunk.place, chunk.number): chunk for chunk in cut}
    return Renderer(window.bounds.window, tables, numbers, target.db_type, limits, plain, copies)


def _by_workers(ctx: StageContext, changes: DataFrame, renderer: Renderer) -> DataFrame:
    buckets = [(*chunk.place, bucket, chunk.number) for chunk in renderer.chunks.values() for bucket in chunk.buckets]
    schema = "segment INT, phase INT, db STRING, table STRING, bucket INT, chunk INT"
    numbered = changes.join(F.broadcast(local_frame(ctx.spark, buckets, schema)), [*PLACE, "bucket"])
    wanted = numbered.select(*PLACE, "chunk", "key", "before", "after", "copies", "anew", "origin")
    # A function, not the object: Spark counts the arguments and would take self for the key.
    return wanted.groupBy(*PLACE, "chunk").applyInArrow(lambda rows: renderer(rows), STATEMENT.schema())
