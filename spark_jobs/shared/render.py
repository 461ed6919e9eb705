"""The SQL of a group of keys: it depends on the group's rows only, not on where they are or on their order.

In each table and phase of a segment the rows are sorted by key. Each group has its own range of batch numbers, so tasks
number their batches without knowing each other's.

Rows of tables that have extra columns at the target keep their values (R-12). A table with one unique key is written in
place, except rows that take another row's former key. With more unique keys every row is rewritten. The origin of a row
comes from `mutation`: net changes do not distinguish moves from new rows.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.common.lakecolumns import Change
from binlake.ddl.definitions import SegmentTable, build_cell
from binlake.errors import Permanent
from binlake.rows.schema import TableDef
from binlake.spark_jobs.engine.engine import Engine
from binlake.spark_jobs.shared.baserows import BaseBlock
from binlake.spark_jobs.shared.netchange import find_row_origins, split_by_place
from binlake.spark_jobs.shared.sinks import SinkWindow, WindowChanges
from binlake.statements import (
    BatchLimits,
    Phase,
    PreserveStatements,
    StatementBatch,
    TableStatements,
    build_images_from_maps,
    build_images_from_rows,
)

GROUP_BATCHES = 1 << 20
"""Batch numbers of a group in each phase of a segment."""
_TABLE_CHARACTERS = 4 << 20
"""Characters of text after which batches are handed on, so that those of small tables and segments are together."""


@dataclass(frozen=True)
class Renderer:
    """Turns the net changes of a group of keys into batches of statements.

    `tables`: definitions by place; `plain`: True outside safe mode; `copies`: for the same place, the quoted name of
    the table that saves the values of the target's extra columns; `origins`: of the rows of such tables; `accepted`:
    names of tables for which the configuration accepts a difference.
    """

    window: str
    tables: Mapping[SegmentTable, TableDef]
    dialect: str
    limits: BatchLimits
    plain: bool
    copies: Mapping[SegmentTable, str] = field(default_factory=dict)
    accepted: frozenset[tuple[str, str]] = frozenset()
    origins: Origins | None = None

    def __call__(self, group: int, rows: pa.Table) -> Iterator[list[StatementBatch]]:
        """The batches of the group `group`, from all its rows, by place. Raises SchemaError, Permanent."""
        first = group * GROUP_BATCHES
        following: dict[tuple[int, int], int] = defaultdict(lambda: first)
        batches: list[StatementBatch] = []
        size = 0
        for place, own in split_by_place(rows):
            for phase, part in self._split_by_phase(place, own):
                number = following[place.segment, phase]
                made = list(self._render(place, phase, part, number))
                following[place.segment, phase] = number + len(made)
                batches += made
                size += sum(len(text) for batch in made for text in batch.sql)
            if max(following.values()) > first + GROUP_BATCHES:
                raise Permanent(
                    "a group of keys has more batches than there are batch numbers",
                    where={"window": self.window, "table": f"{place.db}.{place.table}"},
                    hint="raise `target.batch` (rows of a batch)",
                )
            if size > _TABLE_CHARACTERS:
                yield batches
                batches, size = [], 0
        yield batches

    def _split_by_phase(self, place: SegmentTable, rows: pa.Table) -> Iterator[tuple[Phase, pa.Table]]:
        deleted = pc.equal(rows[Change.OP], "delete")
        # Most tables have rows of one phase only: to filter would be to copy them.
        some, every = pc.any(deleted).as_py(), pc.all(deleted).as_py()
        gone = rows if every else rows.filter(deleted) if some else rows.slice(0, 0)
        left = rows.filter(pc.invert(deleted)) if some else rows
        if gone.num_rows:
            yield Phase.DELETE, gone
        if not left.num_rows:
            return
        if not self.tables[place].kept or self.origins is None:
            yield Phase.WRITE, left
            return
        marked, had_values = self.origins.mark_rows(place, left)
        yield Phase.WRITE, marked
        if had_values.num_rows:
            yield Phase.KEEP, had_values
            yield Phase.RESTORE, had_values

    def build_writer(self, place: SegmentTable, first_batch: int) -> TableStatements:
        """Renders rows of `place` in batches that are numbered from `first_batch` on."""
        table = self.tables[place]
        return TableStatements(
            table,
            place.segment,
            dialect=self.dialect,  # type: ignore[arg-type]
            limits=self.limits,
            first_batch=first_batch,
            plain=self.plain,
            alike=(table.db, table.name) not in self.accepted,
        )

    def _render(self, place: SegmentTable, phase: Phase, rows: pa.Table, first_batch: int) -> Iterable[StatementBatch]:
        table, rows = self.tables[place], rows.combine_chunks()
        if phase in (Phase.KEEP, Phase.RESTORE):
            writer = PreserveStatements(
                table,
                place.segment,
                self.copies[place],
                dialect=self.dialect,  # type: ignore[arg-type]
                limits=self.limits,
                first_batch=first_batch,
            )
            return keep_statements(writer, table, rows.sort_by(Change.KEY), phase)
        return _render_batches(self.build_writer(place, first_batch), table, rows, phase)


def render_blocks(renderer: Renderer, blocks: Iterable[BaseBlock]) -> Iterator[list[StatementBatch]]:
    """The batches of the rows of each of `blocks`, in their order. Raises SchemaError, Permanent."""
    following: Counter[int] = Counter()
    for block in blocks:
        table = renderer.tables[block.place]
        writer = renderer.build_writer(block.place, following[block.place.segment])
        images = block.images.take_columns([column.name for column in table.row_columns])
        if table.find_identity().kind == "row":
            batches = list(writer.render_inserts(images, [1] * len(block.maps)))
        else:
            batches = list(writer.render_writes(images))
        following[block.place.segment] += len(batches)
        yield batches


def _render_batches(writer: TableStatements, table: TableDef, rows: pa.Table, phase: int) -> Iterable[StatementBatch]:
    deleted = phase == Phase.DELETE
    keyless = table.find_identity().kind == "row"
    maps = rows[Change.BEFORE if deleted else Change.AFTER].chunk(0)
    names = table.find_identity().columns if deleted and not keyless else [column.name for column in table.row_columns]
    in_order = np.asarray(pc.sort_indices(rows[Change.KEY].chunk(0)))
    images = build_images_from_maps(maps, names, in_order)
    if not keyless:
        if deleted:
            return writer.render_deletes(images)
        anew = np.asarray(rows["anew"])[in_order] if "anew" in rows.column_names else None
        return write_statements(writer, anew, images)
    copies = np.asarray(rows[Change.COPIES])[in_order]
    return writer.render_image_deletes(images, copies) if deleted else writer.render_inserts(images, copies)


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
