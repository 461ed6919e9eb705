"""The row changes of a sink's window if tables that share a target wait for each other's DDL (pessimistic mode).

Rows of the window that are held are left out; rows that the window releases are added, from earlier windows in the
lake.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import functions as F

from binlake.base.lakecolumns import Mutation
from binlake.changes.net.events import COLUMNS, SOURCE
from binlake.lake.rowhistory import read_rows
from binlake.lake.shardlocks import read_locks
from binlake.lake.tables import MUTATION, format_schema
from binlake.rows.codec import MUTATION_SCHEMA
from binlake.window.heldrows import ReleasedRange, apply_holds, find_released_ranges
from binlake.window.shardlocks import Hold
from spark_jobs.job.context import Bounds, StageContext
from spark_jobs.job.lake import Rows, commit_ts_predicate, map_rows, read_table
from spark_jobs.tables.netchange import read_window_rows

_NAMES = (*COLUMNS, *SOURCE)
_SCHEMA = format_schema(pa.schema([MUTATION_SCHEMA.field(name) for name in _NAMES]))


@dataclass(frozen=True)
class WindowChanges:
    """Row changes and an upper bound of their count; `placed`: holds changed them, so they differ from the lake's."""

    rows: Rows
    count: int
    placed: bool


def read_window_changes(ctx: StageContext, bounds: Bounds, count: int) -> WindowChanges | None:
    """The changes to apply in a window of `count` rows; None if there are none. Raises DamagedManifest."""
    holds = read_locks(ctx.windows, ctx.rules, bounds.lo, bounds.hi).holds
    earlier = find_released_ranges(holds, bounds.lo, bounds.hi)
    if not count and not earlier:
        return None
    if not holds:
        return WindowChanges(read_window_rows(ctx, bounds), count, placed=False)
    rows, more = _with_earlier(ctx, read_window_rows(ctx, bounds), earlier)
    placed = map_rows(rows, functools.partial(_place, holds=holds, hi=bounds.hi), _SCHEMA)
    # For a large window the upper bound: an exact count would read and place all rows twice.
    return WindowChanges(placed, placed.num_rows if isinstance(placed, pa.Table) else count + more, placed=True)


def _place(rows: pa.Table, holds: Sequence[Hold], hi: int) -> pa.Table:
    return apply_holds(rows, holds, hi)


def _with_earlier(ctx: StageContext, rows: Rows, earlier: Sequence[ReleasedRange]) -> tuple[Rows, int]:
    """The rows of the window with released earlier rows, and the number of the latter."""
    if isinstance(rows, pa.Table):
        parts = [read_rows(ctx.paths, MUTATION, one.lo, one.hi, _NAMES, _build_source_filter(one)) for one in earlier]
        return pa.concat_tables([rows.select(_NAMES), *parts]), sum(part.num_rows for part in parts)
    parts = [
        read_table(ctx.spark, ctx.paths, MUTATION)
        .where(commit_ts_predicate(one.lo, one.hi))
        .where((F.col(Mutation.SOURCE_DB) == one.source[0]) & (F.col(Mutation.SOURCE_TABLE) == one.source[1]))
        for one in earlier
    ]
    every = functools.reduce(lambda one, other: one.unionByName(other), [p.select(*_NAMES) for p in (rows, *parts)])
    return every, sum(part.count() for part in parts)


def _build_source_filter(one: ReleasedRange) -> ds.Expression:
    names = zip((Mutation.SOURCE_DB, Mutation.SOURCE_TABLE), one.source, strict=True)
    return functools.reduce(operator.and_, [ds.field(column) == value for column, value in names])
