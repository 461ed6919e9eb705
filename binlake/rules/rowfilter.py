"""Rows of `mutation` without those that an expression drops: one pass over Arrow batches, in driver and tasks alike."""

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
class TableFilter:
    """What is dropped of one kind `op` of changes of a table of the source, since <= commit_ts < until.

    A row is dropped when one of `choices` is TRUE in all its halves.
    """

    db: str
    table: str
    op: str
    since: int
    until: int
    choices: tuple[tuple[Half, ...], ...]

    def rows(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """The places of the rows that it is about."""
        here = pc.and_(
            pc.and_(pc.equal(batch[Mutation.SOURCE_DB], self.db), pc.equal(batch[Mutation.SOURCE_TABLE], self.table)),
            pc.and_(
                pc.equal(batch[Mutation.OP], self.op),
                pc.and_(
                    pc.greater_equal(batch[Mutation.COMMIT_TS], self.since),
                    pc.less(batch[Mutation.COMMIT_TS], self.until),
                ),
            ),
        )
        return np.flatnonzero(here.to_numpy(zero_copy_only=False))


@dataclass(frozen=True)
class RowFilter:
    """The rules of a window; picklable."""

    places: tuple[TableFilter, ...] = ()

    def kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of `batch` that no expression drops. Raises SchemaError where a value does not fit its column."""
        dropped = np.zeros(batch.num_rows, bool)
        for place in self.places:
            rows = place.rows(batch)
            for choice in place.choices if len(rows) else ():
                true = np.ones(len(rows), bool)
                for half in choice:
                    true &= _is_true(half, batch, rows, place)
                dropped[rows] |= true
        return batch.filter(pa.array(~dropped)) if dropped.any() else batch


def _is_true(half: Half, batch: pa.RecordBatch, rows: NDArray[np.int64], place: TableFilter) -> NDArray[np.bool_]:
    found = np.zeros(len(rows), bool)
    at = 0
    try:
        images = batch[half.image].take(pa.array(rows))
        values = [_values(images, column) for column in half.columns] or [[None] * len(rows)]
        for at, row in enumerate(zip(*values, strict=True)):
            found[at] = bool(half.program(row))
    except _UNREADABLE as error:
        raise SchemaError(
            f"an expression of `expression-filter` cannot read a row: {type(error).__name__}",
            where={"table": f"{place.db}.{place.table}", "expression": half.text,
                   "commit_ts": batch[Mutation.COMMIT_TS][int(rows[at])].as_py()},
            hint="write the expression without that column, then run merge of the window again",
        ) from error  # fmt: skip
    return found


def _values(images: pa.MapArray, column: str) -> list[Any]:
    """The text of `column` in each image."""
    found = images.items.filter(pc.equal(images.keys, column))
    if len(found) != len(images):
        raise LookupError(column)
    values: list[Any] = found.to_pylist()
    return values
