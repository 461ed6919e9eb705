"""The net changes of a window as SQL, for all modes except ordered.

The steps on Arrow rows are always the same: the driver runs them for a small window, Spark's workers for a large one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from binlake.base import rowhash
from binlake.base.lakecolumns import Change
from binlake.config.model import Target
from binlake.lake.tables import CHANGE, STATEMENT
from binlake.rows.schema import TableDef
from binlake.statements import BatchLimits
from binlake.statements.chunks import (
    add_chunk_keys,
    cut_chunks,
    measure_sizes,
    number_chunks,
    split_by_chunk,
    sum_sizes,
)
from binlake.target import make_too_many_rows_error
from binlake.target.definitions.forms import Name
from binlake.target.definitions.shape import find_option
from binlake.window.definitions import SegmentTable, require_definition
from spark_jobs.convert.keeping import add_origins
from spark_jobs.convert.render import RENDERED, Renderer
from spark_jobs.job.context import Bounds, StageContext
from spark_jobs.job.lake import FOLD_COLUMNS, Rows, collect_rows, decode_folds, encode_fold, map_rows, may_have_rows
from spark_jobs.tables.sinks import SinkWindow, build_window_predicate, read_table_window
from spark_jobs.tables.statements import STATEMENT_ARROW, quote_copy_name

Tables = Mapping[SegmentTable, TableDef]
"""Definitions by place."""

PLACED = f"{CHANGE.build_spark_schema()}, phase INT, bucket INT"
SIZES = "segment INT, phase INT, db STRING, table STRING, bucket INT, rows BIGINT, bytes BIGINT"


def render_net_statements(
    ctx: StageContext, window: SinkWindow, target: Target, limits: BatchLimits, *, plain: bool
) -> tuple[Rows | None, rowhash.Fold]:
    """The statements of `change` (None if it has no row of the window), and the fold of its rows. Raises Permanent."""
    changes = _read_changes(ctx, window.bounds)
    if changes is None:
        return None, rowhash.merge_folds([])
    rows = map_rows(changes, add_chunk_keys, PLACED)
    parts = collect_rows(map_rows(rows, count_and_fold, f"{SIZES}, {FOLD_COLUMNS}"))
    counted = sum_sizes(parts)
    tables = _look_up_tables(window, target, counted)
    if any(table.kept for table in tables.values()):
        rows = add_origins(ctx, window, rows, tables, PLACED)
        counted = sum_sizes(collect_rows(map_rows(rows, measure_sizes, SIZES)))
    chunks = cut_chunks(counted, limits)
    copies = {place: quote_copy_name(target, ctx.replication.name, window.bounds.window, place) for place in tables}
    accepted = find_accepted(target, {place.name for place in tables})
    renderer = Renderer(window.bounds.window, tables, chunks, target.db_type, limits, plain, copies, accepted)
    return render_rows(rows, renderer), rowhash.merge_folds(decode_folds(parts))


def _read_changes(ctx: StageContext, bounds: Bounds) -> Rows | None:
    """The rows of `change`: from compact if it ran in this process, else from the lake. None if there are none."""
    handed = ctx.handover.take(CHANGE, bounds)
    if handed is not None:
        return handed if handed.num_rows else None
    if not may_have_rows(ctx.paths, CHANGE, build_window_predicate(bounds)):
        return None
    return read_table_window(ctx, CHANGE, bounds)


def count_and_fold(rows: pa.Table) -> pa.Table:
    """The sizes of `rows`; the first result row also carries the fold of all of them over the columns of `change`."""
    sized = measure_sizes(rows)
    values = encode_fold(rowhash.fold(rowhash.hash_rows(rows, CHANGE.list_column_names())))
    # A fold of zeros is the fold of no rows.
    for name, value in zip(("count", "total", "xor"), values, strict=True):
        column = np.zeros(sized.num_rows, np.int64)
        column[:1] = value
        sized = sized.append_column(name, pa.array(column))
    return sized


def _look_up_tables(window: SinkWindow, target: Target, counted: Sequence[Any]) -> Tables:
    """The definitions of the counted tables. Raises Permanent if a segment is too large for the target's mode."""
    if target.mode == "atomic":
        _require_segments(counted, target.max_segment_rows, window.bounds.window)
    places = {SegmentTable(row[Change.SEGMENT], row[Change.DB], row[Change.TABLE]) for row in counted}
    return {place: require_definition(window.definitions, window.segments, place) for place in places}


def find_accepted(target: Target, names: Iterable[Name]) -> frozenset[Name]:
    """Those of `names` for which the configuration accepts a difference from the source's table."""
    options = {name: find_option(target, name) for name in names}
    return frozenset(name for name, option in options.items() if option is not None and option.accept)


def _require_segments(counted: Sequence[Any], most: int, window: str) -> None:
    """Check that every segment fits into one transaction. Raises Permanent before anything is sealed (hazards R-30)."""
    for number, rows in groupby(counted, key=lambda row: row[Change.SEGMENT]):
        count = sum(row["rows"] for row in rows)
        if count > most:
            raise make_too_many_rows_error(window, number, count, most)


def render_rows(rows: Rows, renderer: Renderer) -> Rows:
    """The rows of `statement` for all chunks."""
    if isinstance(rows, pa.Table):
        numbers = number_chunks(rows, renderer.chunks)
        parts = split_by_chunk(rows.select(_select_needed(rows.column_names)), numbers, len(renderer.chunks))
        return pa.concat_tables([STATEMENT_ARROW.empty_table(), *map(renderer, parts, range(len(parts)))])
    schema = rows.select(*_select_needed(rows.columns)).schema
    numbered = map_rows(rows, partial(_add_chunk_numbers, renderer=renderer), f"{_render_schema(schema)}, chunk INT")
    # A function, not the object: Spark counts the arguments and would take `self` for the key.
    return numbered.groupBy("chunk").applyInArrow(
        lambda part: renderer(part, part["chunk"][0].as_py()), STATEMENT.build_spark_schema()
    )


def _select_needed(names: Sequence[str]) -> list[str]:
    return [name for name in RENDERED if name in names]


def _add_chunk_numbers(rows: pa.Table, renderer: Renderer) -> pa.Table:
    numbers = number_chunks(rows, renderer.chunks).astype(np.int32)
    return rows.select(_select_needed(rows.column_names)).append_column("chunk", pa.array(numbers))


def _render_schema(schema: Any) -> str:
    return ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in schema)
