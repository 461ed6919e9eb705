"""Makes the statements that remove differences: deletes of wrong or extra rows, inserts of expected rows.

As in invariant 6, rows with other keys are right, so deletes before writes lead to the expected table even if unique
values move between rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from binlake.base.sql import Dialect
from binlake.repair.verify.differences import Difference, Row
from binlake.rows.schema import TableDef
from binlake.statements import BatchLimits, StatementBatch, TableStatements, build_images_from_rows


def build_fix_batches(
    tables: Iterable[TableDef], differences: Sequence[Difference], dialect: Dialect, limits: BatchLimits
) -> list[StatementBatch]:
    """The batches that remove `differences`, all deletes first."""
    batches: list[StatementBatch] = []
    for table in tables:
        own = [difference for difference in differences if (difference.db, difference.table) == (table.db, table.name)]
        render = TableStatements(table, 0, dialect=dialect, limits=limits, first_batch=len(batches))
        batches += (
            _render_keyless(table, render, own)
            if table.find_identity().kind == "row"
            else _render_keyed(table, render, own)
        )
    return sorted(batches, key=lambda batch: (batch.phase, batch.batch))


def _render_keyed(table: TableDef, render: TableStatements, own: Sequence[Difference]) -> Iterator[StatementBatch]:
    gone = [difference.found for difference in own if difference.found is not None]
    if gone:
        # The rows are locked since they were read, so each must be there.
        yield from render.render_deletes(build_images_from_rows(gone, table.find_identity().columns), exact=True)
    put = [difference.expected for difference in own if difference.expected is not None]
    if put:
        # Never use REPLACE: a row with another key but the same unique value must cause an error, not be deleted.
        yield from render.render_inserts(_build_images(table, put), [1] * len(put))


def _render_keyless(table: TableDef, render: TableStatements, own: Sequence[Difference]) -> Iterator[StatementBatch]:
    gone = [(difference.found, difference.copies) for difference in own if difference.found is not None]
    if gone:
        yield from render.render_image_deletes(
            _build_images(table, [row for row, _ in gone]), [copies for _, copies in gone]
        )
    put = [(difference.expected, difference.copies) for difference in own if difference.expected is not None]
    if put:
        yield from render.render_inserts(_build_images(table, [row for row, _ in put]), [copies for _, copies in put])


def _build_images(table: TableDef, rows: Sequence[Row]) -> dict[str, object]:
    return build_images_from_rows(rows, [column.name for column in table.row_columns])
