"""Holds back and releases rows of `mutation` of tables that share a target and wait for each other's DDL.

Held rows are left out of their window. A released row gets the commit_ts of the DDL that released it, and its original
commit_ts replaces its start_ts, so that the rows of a table keep their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from binlake.base.lakecolumns import Mutation
from binlake.ddl.addedcolumns import Extra, add_columns
from binlake.ddl.shardlocks import Hold, Name

Bools = NDArray[np.bool_]


class ReleasedRange(NamedTuple):
    """Rows of the source table `source` with lo < commit_ts <= hi, which a later window releases."""

    source: Name
    lo: int
    hi: int


def find_released_ranges(holds: Iterable[Hold], lo: int, hi: int) -> list[ReleasedRange]:
    """The ranges of earlier rows that the window (lo, hi] releases and must read."""
    return [
        ReleasedRange(hold.source, hold.since - 1, min(hold.compute_end(lo) - 1, lo))
        for hold in holds
        if lo < hold.released <= hi and hold.since <= lo
    ]


def apply_holds(rows: pa.Table, holds: Sequence[Hold], hi: int) -> pa.Table:
    """`rows` for a window that ends at `hi`: without held rows, with released rows at their DDL."""
    return pa.Table.from_batches(
        [part for batch in rows.to_batches() for part in _apply_holds_to(batch, holds, hi)], rows.schema
    )


def _apply_holds_to(batch: pa.RecordBatch, holds: Sequence[Hold], hi: int) -> Iterator[pa.RecordBatch]:
    commits, starts = (np.array(batch.column(name)) for name in (Mutation.COMMIT_TS, Mutation.START_TS))
    rows_of_holds = [(hold, _find_held_rows(batch, commits, hold, hi)) for hold in holds]
    rows_of_holds = [(hold, rows) for hold, rows in rows_of_holds if rows.any()]
    if not rows_of_holds:
        yield batch
        return
    extras = [
        Extra(*hold.source, hold.since, hold.compute_end(hi), dict(hold.filled))
        for hold, _ in rows_of_holds
        if hold.filled
    ]
    batch = add_columns(batch, extras) if extras else batch
    free = np.ones(batch.num_rows, np.bool_)
    for hold, rows in rows_of_holds:
        if hold.waits or hold.released > hi:
            free &= ~rows
            continue
        starts[rows] = commits[rows]
        commits[rows] = hold.released
    for name, values in ((Mutation.COMMIT_TS, commits), (Mutation.START_TS, starts)):
        place = batch.schema.get_field_index(name)
        batch = batch.set_column(place, batch.schema.field(place), pa.array(values, pa.int64()))
    yield batch if free.all() else batch.filter(pa.array(free))


def _find_held_rows(batch: pa.RecordBatch, commits: NDArray[np.int64], hold: Hold, hi: int) -> Bools:
    names = zip((Mutation.SOURCE_DB, Mutation.SOURCE_TABLE), hold.source, strict=True)
    rows: Bools = (commits >= hold.since) & (commits < hold.compute_end(hi))
    if not rows.any():
        return rows
    for name, value in names:
        rows &= np.asarray(pc.equal(batch.column(name), value).to_numpy(zero_copy_only=False))
    return rows
