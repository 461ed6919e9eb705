"""Differences as the statements that end them: deletes of what is wrong or too many, inserts of what must be there.

The argument of invariant 6 holds: the rows outside of these keys are as they must be, so deletes before writes lead to
the expected table whatever unique values the rows pass on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from binlake.base.dialects import Dialect
from binlake.repair.verify.differences import Difference, Row
from binlake.rows.schema import TableDef
from binlake.statements import BatchLimits, StatementBatch, TableStatements, images_from_rows


def fix_batches(
    tables: Iterable[TableDef], differences: Sequence[Difference], dialect: Dialect, limits: BatchLimits
) -> list[StatementBatch]:
    """The batches that end `differences`, all deletes first."""
    batches: list[StatementBatch] = []
    for table in tables:
        own = [difference for difference in differences if (difference.db, difference.table) == (table.db, table.name)]
        render = TableStatements(table, 0, dialect=dialect, limits=limits, first_batch=len(batches))
        batches += _keyless(table, render, own) if table.identity().kind == "row" else _keyed(table, render, own)
    return sorted(batches, key=lambda batch: (batch.phase, batch.batch))


def _keyed(table: TableDef, render: TableStatements, own: Sequence[Difference]) -> Iterator[StatementBatch]:
    gone = [difference.found for difference in own if difference.found is not None]
    if gone:
        yield from render.render_deletes(images_from_rows(gone, table.identity().columns))
    put = [difference.expected for difference in own if difference.expected is not None]
    if put:
        # Never REPLACE: a row outside of these keys that holds a unique value must be an error, not gone.
        yield from render.render_inserts(_images(table, put), [1] * len(put))


def _keyless(table: TableDef, render: TableStatements, own: Sequence[Difference]) -> Iterator[StatementBatch]:
    gone = [(difference.found, difference.copies) for difference in own if difference.found is not None]
    if gone:
        yield from render.render_image_deletes(_images(table, [row for row, _ in gone]), [copies for _, copies in gone])
    put = [(difference.expected, difference.copies) for difference in own if difference.expected is not None]
    if put:
        yield from render.render_inserts(_images(table, [row for row, _ in put]), [copies for _, copies in put])


def _images(table: TableDef, rows: Sequence[Row]) -> dict[str, object]:
    return images_from_rows(rows, [column.name for column in table.row_columns])
