"""Rows of tables that have extra columns at the target: which rows are rewritten, and whose values they get (R-12).

A table with one unique key is written in place, except rows that take another row's former key. With more unique keys
every row is rewritten. The origin of a row comes from `mutation`: net changes do not distinguish moves from new rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.base.lakecolumns import Change
from binlake.ddl.definitions import SegmentTable, build_cell
from binlake.rows.schema import TableDef
from binlake.spark_jobs.engine.engine import Engine
from binlake.spark_jobs.tables.held import WindowChanges
from binlake.spark_jobs.tables.netchange import find_row_origins
from binlake.spark_jobs.tables.sinks import SinkWindow
from binlake.statements import (
    Phase,
    PreserveStatements,
    StatementBatch,
    TableStatements,
    build_images_from_maps,
    build_images_from_rows,
)


@dataclass(frozen=True)
class Origins:
    """Whose values the written rows of tables with extra columns at the target get.

    `traced`: by place, the origin (a key, or None for a new row) of each key whose row had another key before the
    segment, or did not exist. `several`: for each such place, whether the table has more than one unique key.
    """

    traced: Mapping[SegmentTable, Mapping[str, str | None]]
    several: Mapping[SegmentTable, bool]

    def mark_rows(self, place: SegmentTable, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """(the written `rows` with `anew` and `origin`, those of them that are rewritten and had values before)."""
        traced = self.traced.get(place, {})
        keys = rows[Change.KEY].to_pylist()
        moved = np.fromiter((key in traced for key in keys), bool, len(keys))
        anew = np.ones(len(keys), bool) if self.several[place] else moved
        texts = [traced.get(key, key) if again else None for key, again in zip(keys, anew.tolist(), strict=True)]
        origin = pa.array(texts, pa.string())
        marked = rows.append_column("anew", pa.array(anew)).append_column("origin", origin)
        return marked, marked.filter(pc.is_valid(origin))


def find_origins(
    engine: Engine, changes: WindowChanges, window: SinkWindow, tables: Mapping[SegmentTable, TableDef]
) -> Origins:
    """The origins of the rows in those of `tables` (by place) that have extra columns at the target."""
    extended = {place: table for place, table in tables.items() if table.kept}
    cells = [build_cell(window.definitions, window.segments, place) for place in extended]
    traced: dict[SegmentTable, dict[str, str | None]] = {}
    for row in find_row_origins(engine, changes.rows, cells).to_pylist():
        traced.setdefault(SegmentTable(row["segment"], row["db"], row["table"]), {})[row["key"]] = row["origin"]
    return Origins(traced, {place: len(table.list_unique_keys()) > 1 for place, table in extended.items()})


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
    keys = build_images_from_maps(stayed.column(Change.AFTER).combine_chunks(), columns)
    origins = _parse_keys(movers.column("origin").to_pylist(), columns)
    if phase == Phase.KEEP:
        yield from writer.keeps(keys) if stayed.num_rows else ()
        yield from writer.keeps(origins) if movers.num_rows else ()
        return
    yield from writer.build_restores(keys) if stayed.num_rows else ()
    if movers.num_rows:
        yield from writer.build_moved_restores(
            build_images_from_maps(movers.column(Change.AFTER).combine_chunks(), columns), origins
        )


def _parse_keys(keys: Sequence[str], columns: Sequence[str]) -> dict[str, pa.Array]:
    """The images of keys given as JSON arrays of the key's texts."""
    return build_images_from_rows([dict(zip(columns, json.loads(key), strict=True)) for key in keys], columns)
