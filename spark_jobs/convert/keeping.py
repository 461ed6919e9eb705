"""Rows of tables that have extra columns at the target: which rows are rewritten, and whose values they get (R-12).

A table with one unique key is written in place, except rows that take another row's former key. With more unique keys
every row is rewritten. The origin of a row comes from `mutation`: net changes do not distinguish moves from new rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from binlake.base.lakecolumns import Change
from binlake.rows.schema import TableDef
from binlake.statements import (
    Phase,
    PreserveStatements,
    StatementBatch,
    TableStatements,
    make_images_from_maps,
    make_images_from_rows,
)
from binlake.statements.chunks import number_values
from binlake.window.definitions import SegmentTable, build_cell
from spark_jobs.job.context import StageContext
from spark_jobs.job.lake import Rows, map_rows
from spark_jobs.tables.netchange import find_row_origins, read_window_rows
from spark_jobs.tables.sinks import SinkWindow

PLACE_OF_KEY = (Change.SEGMENT, Change.DB, Change.TABLE)
"""The columns of a SegmentTable."""


def add_origins(
    ctx: StageContext, window: SinkWindow, rows: Rows, tables: Mapping[SegmentTable, TableDef], schema: str
) -> Rows:
    """`rows` (with chunk keys, of `schema`) with the columns `anew` and `origin`.

    Rewritten rows that had values before also appear in the phases KEEP and RESTORE. `tables`: definitions by place.
    """
    extended = {place: table for place, table in tables.items() if table.kept}
    cells = [build_cell(window.definitions, window.segments, place) for place in extended]
    traced = find_row_origins(read_window_rows(ctx, window.bounds), cells)
    several = {place: len(table.list_unique_keys()) > 1 for place, table in extended.items()}
    return add_keep_phases(rows, traced, several, schema)


def add_keep_phases(rows: Rows, traced: Rows, several: Mapping[SegmentTable, bool], schema: str) -> Rows:
    """`rows` (of `schema`) with `anew` and `origin`, repeated for each phase that writes them.

    `traced`: place, key and origin of each key whose row had another key before the segment, or did not exist.
    `several`: for each table with extra columns at the target, whether it has more than one unique key.
    """
    if isinstance(rows, pa.Table):
        return _add_phases(_match_origins(rows, traced), several)
    joined = rows.join(traced.withColumn("moved", F.lit(True)), [*PLACE_OF_KEY, Change.KEY], "left")
    marked = joined.withColumn("moved", F.coalesce("moved", F.lit(False))).select(*rows.columns, "moved", "origin")
    return map_rows(marked, partial(_add_phases, several=several), f"{schema}, anew BOOLEAN, origin STRING")


def _match_origins(rows: pa.Table, traced: pa.Table) -> pa.Table:
    """`rows` with the columns `moved` and `origin`, taken from the row of `traced` with the same key."""
    both = pa.concat_tables(
        [part.select([*PLACE_OF_KEY, Change.KEY]) for part in (traced, rows)], promote_options="permissive"
    )
    numbers, _ = number_values(both, [*PLACE_OF_KEY, Change.KEY])
    at = np.full(int(numbers.max(initial=-1)) + 1, -1)
    at[numbers[: traced.num_rows]] = np.arange(traced.num_rows)
    row_of = at[numbers[traced.num_rows :]]
    origins = traced["origin"].take(pa.array(row_of, mask=row_of < 0))
    return rows.append_column("moved", pa.array(row_of >= 0)).append_column("origin", origins)


def _add_phases(rows: pa.Table, several: Mapping[SegmentTable, bool]) -> pa.Table:
    """Rows that have `moved` and `origin`, repeated for each phase that writes them."""
    numbers, places = number_values(rows, PLACE_OF_KEY)
    kinds = [several.get(SegmentTable(**place)) for place in places.to_pylist()]
    is_extended, is_several = np.array([kind is not None for kind in kinds], bool), np.array([*map(bool, kinds)], bool)
    moved, phase = np.asarray(rows["moved"]), np.asarray(rows["phase"])
    anew = (phase == Phase.WRITE) & is_extended[numbers] & (is_several[numbers] | moved)
    origin = pc.if_else(pa.array(moved), rows["origin"], rows[Change.KEY])
    origin = pc.if_else(pa.array(anew), origin, pa.scalar(None, pa.string()))
    known = rows.drop_columns(["moved", "origin"]).append_column("anew", pa.array(anew)).append_column("origin", origin)
    had_values = known.filter(pc.is_valid(origin))
    return pa.concat_tables([known, *(_set_phase(had_values, one) for one in (Phase.KEEP, Phase.RESTORE))])


def _set_phase(rows: pa.Table, phase: Phase) -> pa.Table:
    place = rows.schema.get_field_index("phase")
    return rows.set_column(place, rows.schema.field(place), pa.array(np.full(rows.num_rows, int(phase), np.int32)))


def write_statements(writer: TableStatements, anew: Any, images: Mapping[str, pa.Array]) -> Iterator[StatementBatch]:
    """Phase WRITE of a table with a key: rows written in place, then those rewritten (`anew`: numpy mask, or None)."""
    if anew is None or not anew.any():
        yield from writer.render_writes(images)
        return
    for mask, is_anew in ((~anew, False), (anew, True)):
        if mask.any():
            yield from writer.render_writes(
                {name: values.filter(mask) for name, values in images.items()}, anew=is_anew
            )


def keep_statements(
    writer: PreserveStatements, table: TableDef, rows: pa.Table, phase: int
) -> Iterator[StatementBatch]:
    """Phases KEEP and RESTORE of a table: rows that keep their key, then those that moved."""
    moved = pc.not_equal(rows.column("origin"), rows.column(Change.KEY)).combine_chunks()
    columns = table.find_identity().columns
    stayed, movers = rows.filter(pc.invert(moved)), rows.filter(moved)
    keys = make_images_from_maps(stayed.column(Change.AFTER).combine_chunks(), columns)
    origins = _parse_keys(movers.column("origin").to_pylist(), columns)
    if phase == Phase.KEEP:
        yield from writer.keeps(keys) if stayed.num_rows else ()
        yield from writer.keeps(origins) if movers.num_rows else ()
        return
    yield from writer.make_restores(keys) if stayed.num_rows else ()
    if movers.num_rows:
        yield from writer.make_moved_restores(
            make_images_from_maps(movers.column(Change.AFTER).combine_chunks(), columns), origins
        )


def _parse_keys(keys: Sequence[str], columns: Sequence[str]) -> dict[str, pa.Array]:
    """The images of keys given as JSON arrays of the key's texts."""
    return make_images_from_rows([dict(zip(columns, json.loads(key), strict=True)) for key in keys], columns)
