"""Rows of `mutation` where tables that share a target wait for each other: left out while held, then placed at the DDL.

A row that is released counts with the commit_ts of the DDL that released it; its own commit_ts takes the place of its
start_ts, so that the rows of a table keep their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from binlake.base.lakecolumns import Mutation
from binlake.window.added import add_columns
from binlake.window.extras import Extra
from binlake.window.shardlocks import Hold, Name

Bools = NDArray[np.bool_]


class ReleasedRange(NamedTuple):
    """Rows of the source's table `source` with lo < commit_ts <= hi, which a later window releases."""

    source: Name
    lo: int
    hi: int


def find_released_ranges(holds: Iterable[Hold], lo: int, hi: int) -> list[ReleasedRange]:
    """What a window (lo, hi] has to read of what lies before it."""
    return [
        ReleasedRange(hold.source, hold.since - 1, min(hold.ends(lo) - 1, lo))
        for hold in holds
        if lo < hold.released <= hi and hold.since <= lo
    ]


def apply_holds(rows: pa.Table, holds: Sequence[Hold], hi: int) -> pa.Table:
    """`rows` as they count in a window that ends at `hi`."""
    return pa.Table.from_batches(
        [placed for batch in rows.to_batches() for placed in _apply_holds_to(batch, holds, hi)], rows.schema
    )


def _apply_holds_to(batch: pa.RecordBatch, holds: Sequence[Hold], hi: int) -> Iterator[pa.RecordBatch]:
    commits, starts = (np.array(batch.column(name)) for name in (Mutation.COMMIT_TS, Mutation.START_TS))
    own = [(hold, _rows_of(batch, commits, hold, hi)) for hold in holds]
    own = [(hold, rows) for hold, rows in own if rows.any()]
    if not own:
        yield batch
        return
    extras = [Extra(*hold.source, hold.since, hold.ends(hi), dict(hold.filled)) for hold, _ in own if hold.filled]
    batch = add_columns(batch, extras) if extras else batch
    kept = np.ones(batch.num_rows, np.bool_)
    for hold, rows in own:
        if hold.waits or hold.released > hi:
            kept &= ~rows
            continue
        starts[rows] = commits[rows]
        commits[rows] = hold.released
    for name, values in ((Mutation.COMMIT_TS, commits), (Mutation.START_TS, starts)):
        place = batch.schema.get_field_index(name)
        batch = batch.set_column(place, batch.schema.field(place), pa.array(values, pa.int64()))
    yield batch if kept.all() else batch.filter(pa.array(kept))


def _rows_of(batch: pa.RecordBatch, commits: NDArray[np.int64], hold: Hold, hi: int) -> Bools:
    names = zip((Mutation.SOURCE_DB, Mutation.SOURCE_TABLE), hold.source, strict=True)
    found: Bools = (commits >= hold.since) & (commits < hold.ends(hi))
    if not found.any():
        return found
    for name, value in names:
        found &= np.asarray(pc.equal(batch.column(name), value).to_numpy(zero_copy_only=False))
    return found
