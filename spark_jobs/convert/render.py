"""The SQL of chunks of net changes; it does not depend on where a chunk's rows are or on their order.

Rows are sorted by key inside a chunk, and each chunk has its own range of batch numbers (with a gap after the last
batch), so the driver and Spark's workers produce the same batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.base.lakecolumns import Change
from binlake.errors import Permanent
from binlake.rows.schema import TableDef
from binlake.statements import (
    BatchLimits,
    Phase,
    PreserveStatements,
    StatementBatch,
    TableStatements,
    make_images_from_maps,
)
from binlake.statements.chunks import Chunk, ChunkKey
from binlake.window.definitions import SegmentTable
from spark_jobs.convert.keeping import keep_statements, write_statements
from spark_jobs.tables.statements import build_statement_table

RENDERED = (Change.KEY, Change.BEFORE, Change.AFTER, Change.COPIES, "anew", "origin")
"""The columns read of a row besides its place; the last two only for tables with extra columns at the target."""


@dataclass(frozen=True)
class Renderer:
    """Turns the rows of a chunk into rows of `statement`.

    `tables`: definitions by (segment, db, table); `plain`: True outside safe mode; `copies`: for the same place, the
    quoted name of the table that saves the values of the target's extra columns; `accepted`: names of tables for which
    the configuration accepts a difference.
    """

    window: str
    tables: Mapping[SegmentTable, TableDef]
    chunks: Sequence[Chunk]
    dialect: str
    limits: BatchLimits
    plain: bool
    copies: Mapping[SegmentTable, str] = field(default_factory=dict)
    accepted: frozenset[tuple[str, str]] = frozenset()

    def __call__(self, rows: pa.Table, number: int) -> pa.Table:
        """The batches of the chunk `number`, from all its rows. Raises SchemaError, Permanent."""
        chunk = self.chunks[number]
        phase = chunk.key.phase
        table = self.tables[_without_phase(chunk.key)]
        rows = rows.combine_chunks()
        writer: TableStatements | PreserveStatements
        if phase in (Phase.KEEP, Phase.RESTORE):
            writer = self._preserve_writer(table, chunk)
            rendered: Iterable[StatementBatch] = keep_statements(writer, table, rows.sort_by(Change.KEY), phase)
        else:
            writer = self._make_writer(table, chunk)
            rendered = _render_batches(writer, table, rows, phase)
        batches = list(rendered)
        if writer.next_batch - 1 > chunk.last_batch:
            raise Permanent(
                "a chunk has more batches than there are batch numbers",
                where={"window": self.window, "table": table.name},
            )
        return build_statement_table(self.window, batches)

    def _make_writer(self, table: TableDef, chunk: Chunk) -> TableStatements:
        return TableStatements(
            table,
            chunk.key.segment,
            dialect=self.dialect,  # type: ignore[arg-type]
            limits=self.limits,
            first_batch=chunk.first_batch,
            plain=self.plain,
            alike=(table.db, table.name) not in self.accepted,
        )

    def _preserve_writer(self, table: TableDef, chunk: Chunk) -> PreserveStatements:
        return PreserveStatements(
            table,
            chunk.key.segment,
            self.copies[_without_phase(chunk.key)],
            dialect=self.dialect,  # type: ignore[arg-type]
            limits=self.limits,
            first_batch=chunk.first_batch,
        )


def _without_phase(place: ChunkKey) -> SegmentTable:
    return SegmentTable(place.segment, place.db, place.table)


def _render_batches(writer: TableStatements, table: TableDef, rows: pa.Table, phase: int) -> Iterable[StatementBatch]:
    deleted = phase == Phase.DELETE
    keyless = table.find_identity().kind == "row"
    maps = rows[Change.BEFORE if deleted else Change.AFTER].chunk(0)
    names = table.find_identity().columns if deleted and not keyless else [column.name for column in table.row_columns]
    in_order = np.asarray(pc.sort_indices(rows[Change.KEY].chunk(0)))
    images = make_images_from_maps(maps, names, in_order)
    if not keyless:
        if deleted:
            return writer.render_deletes(images)
        anew = np.asarray(rows["anew"])[in_order] if "anew" in rows.column_names else None
        return write_statements(writer, anew, images)
    copies = np.asarray(rows[Change.COPIES])[in_order]
    return writer.render_image_deletes(images, copies) if deleted else writer.render_inserts(images, copies)
