"""Second writes of one row change, which TiDB logs while it reorganizes partitions, are removed from a batch.

Rule (TiDB v7.5, capture `zones`, table `Teile`): while REORGANIZE PARTITION runs, a row of its partitions is written
to the new one too, and both writes are in the binlog side by side, for the logical table: an insert, update or delete
twice the same; in the delete-only step an update and behind it a delete of what the row was before. None of it can be
the history of one key: the second has no row to change, or another one than it names. Without a key two equal inserts
may be two rows: `binlake.rows.codec.secondwrites` reads tables without one. PARTITION BY goes the same steps, and the
table has no partitions before it: what no key can go through is looked for in every table.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.base.lakecolumns import Mutation
from binlake.rows.codec.lanes import Ints
from binlake.rows.schema.info import TableDef

_NAMES = (Mutation.OP, Mutation.BEFORE, Mutation.AFTER)


def without_echoes(batch: pa.RecordBatch, tables: Sequence[TableDef], which: Ints) -> tuple[pa.RecordBatch, Ints]:
    """(`batch` of MUTATION_SCHEMA without second writes, the numbers of the rows kept).

    `which`: the number of each row's definition among `tables`.
    """
    every = np.arange(batch.num_rows)
    keyed = np.asarray([one.identity().kind != "row" for one in tables], np.bool_)
    if batch.num_rows < 2 or not keyed[which].any():
        return batch, every
    # What a filter took from between them makes no neighbours of two rows.
    near = keyed[which[1:]] & (which[1:] == which[:-1]) & (np.diff(batch[Mutation.SEQ].to_numpy()) == 1)
    for name in (Mutation.COMMIT_TS, Mutation.KEY):
        near &= pc.equal(batch[name].slice(1), batch[name].slice(0, batch.num_rows - 1)).to_numpy(zero_copy_only=False)
    ops = batch[Mutation.OP]
    alike = pc.equal(ops.slice(1), ops.slice(0, batch.num_rows - 1)).to_numpy(zero_copy_only=False)
    near &= alike | pc.equal(ops.slice(1), "delete").to_numpy(zero_copy_only=False)
    if not near.any():
        return batch, every
    kept = np.ones(batch.num_rows, np.bool_)
    real = 0
    for place in (np.flatnonzero(near) + 1).tolist():
        # The write that a run of second ones echoes is the last one kept.
        real = place - 1 if kept[place - 1] else real
        kept[place] = not _echoes(*(tuple(batch[name][n].as_py() for name in _NAMES) for n in (real, place)))
    rows = every[kept]
    return (batch, rows) if kept.all() else (batch.take(pa.array(rows)), rows)


def _echoes(first: tuple[object, ...], second: tuple[object, ...]) -> bool:
    op, before, after = first
    return second == first or (op == "update" and before != after and second == ("delete", before, None))
