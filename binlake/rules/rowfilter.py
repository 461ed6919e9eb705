"""Remove the rows of `mutation` that an expression drops: one pass over Arrow batches, in the driver and in tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from binlake.base.lakecolumns import Mutation
from binlake.errors import SchemaError
from binlake.rules.evaluate import Program

_UNREADABLE = (ValueError, ArithmeticError, LookupError, RecursionError)


@dataclass(frozen=True)
class Half:
    """An expression on one image (`before` or `after`): `program` takes the texts of `columns`."""

    image: str
    columns: tuple[str, ...]
    program: Program
    text: str


@dataclass(frozen=True)
class ChangeFilter:
    """The filter for one kind `op` of changes of a source table with since <= commit_ts < until.

    A row is dropped if all halves of one of `choices` are TRUE.
    """

    db: str
    table: str
    op: str
    since: int
    until: int
    choices: tuple[tuple[Half, ...], ...]

    def find_rows(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """The indexes of the rows to which this filter applies."""
        applies = pc.and_(
            pc.and_(pc.equal(batch[Mutation.SOURCE_DB], self.db), pc.equal(batch[Mutation.SOURCE_TABLE], self.table)),
            pc.and_(
                pc.equal(batch[Mutation.OP], self.op),
                pc.and_(
                    pc.greater_equal(batch[Mutation.COMMIT_TS], self.since),
                    pc.less(batch[Mutation.COMMIT_TS], self.until),
                ),
            ),
        )
        return np.flatnonzero(applies.to_numpy(zero_copy_only=False))


@dataclass(frozen=True)
class RowFilter:
    """The rules of a window; picklable."""

    places: tuple[ChangeFilter, ...] = ()

    def filter_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of `batch` that no expression drops. Raises SchemaError if a value does not fit its column."""
        dropped = np.zeros(batch.num_rows, bool)
        for table_filter in self.places:
            rows = table_filter.find_rows(batch)
            for choice in table_filter.choices if len(rows) else ():
                true = np.ones(len(rows), bool)
                for half in choice:
                    true &= _is_true(half, batch, rows, table_filter)
                dropped[rows] |= true
        return batch.filter(pa.array(~dropped)) if dropped.any() else batch


def _is_true(
    half: Half, batch: pa.RecordBatch, rows: NDArray[np.int64], table_filter: ChangeFilter
) -> NDArray[np.bool_]:
    results = np.zeros(len(rows), bool)
    at = 0
    try:
        images = batch[half.image].take(pa.array(rows))
        values = [_read_values(images, column) for column in half.columns] or [[None] * len(rows)]
        for at, row in enumerate(zip(*values, strict=True)):
            results[at] = bool(half.program(row))
    except _UNREADABLE as error:
        raise SchemaError(
            f"an expression of `expression-filter` cannot read a row: {type(error).__name__}",
            where={"table": f"{table_filter.db}.{table_filter.table}", "expression": half.text,
                   "commit_ts": batch[Mutation.COMMIT_TS][int(rows[at])].as_py()},
            hint="write the expression without that column, then run the window's merge again",
        ) from error  # fmt: skip
    return results


def _read_values(images: pa.MapArray, column: str) -> list[Any]:
    """The text of `column` in each image."""
    texts = images.items.filter(pc.equal(images.keys, column))
    if len(texts) != len(images):
        raise LookupError(column)
    values: list[Any] = texts.to_pylist()
    return values
