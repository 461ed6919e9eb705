"""The SQL of a group of keys: it depends on the group's rows only, not on where they are or on their order.

In each table and phase of a segment the rows are sorted by key. Each group has its own range of batch numbers, so tasks
number their batches without knowing each other's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.base.lakecolumns import Change
from binlake.ddl.definitions import SegmentTable
from binlake.errors import Permanent
from binlake.rows.schema import TableDef
from binlake.spark_jobs.tables.baserows import BaseBlock
from binlake.spark_jobs.tables.keeping import Origins, keep_statements, write_statements
from binlake.spark_jobs.tables.netrows import split_by_place
from binlake.statements import (
    BatchLimits,
    Phase,
    PreserveStatements,
    StatementBatch,
    TableStatements,
    build_images_from_maps,
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
