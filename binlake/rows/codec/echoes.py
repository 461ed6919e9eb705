"""Remove from a batch the second writes of row changes that TiDB logs while it reorganizes partitions.

Rule (TiDB v7.5, capture `zones`, table `Teile`): while REORGANIZE PARTITION runs, TiDB writes each row of the affected
partitions to the new partition too. Both writes are next to each other in the binlog, for the logical table: the same
insert, update or delete twice; in the delete-only step an update, followed by a delete of the row's former image. Such
a pair cannot be the history of one key: the row that the second write changes does not exist or has other values. In a
table without a key two equal inserts may be two rows; `binlake.rows.codec.secondwrites` handles such tables. PARTITION
BY takes the same steps on a table that has no partitions before, so every table with a key is checked for such
impossible pairs.
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
    """Returns (`batch` of MUTATION_SCHEMA without second writes, the numbers of the remaining rows).

    `which`: the index of each row's definition in `tables`.
    """
    all_rows = np.arange(batch.num_rows)
    keyed = np.asarray([one.find_identity().kind != "row" for one in tables], np.bool_)
    if batch.num_rows < 2 or not keyed[which].any():
        return batch, all_rows
    # Two rows are not neighbours if a filter removed rows between them, so their seq must differ by 1.
    near = keyed[which[1:]] & (which[1:] == which[:-1]) & (np.diff(batch[Mutation.SEQ].to_numpy()) == 1)
    for name in (Mutation.COMMIT_TS, Mutation.KEY):
        near &= pc.equal(batch[name].slice(1), batch[name].slice(0, batch.num_rows - 1)).to_numpy(zero_copy_only=False)
    ops = batch[Mutation.OP]
    alike = pc.equal(ops.slice(1), ops.slice(0, batch.num_rows - 1)).to_numpy(zero_copy_only=False)
    near &= alike | pc.equal(ops.slice(1), "delete").to_numpy(zero_copy_only=False)
    if not near.any():
        return batch, all_rows
    kept = np.ones(batch.num_rows, np.bool_)
    first = 0
    for number in (np.flatnonzero(near) + 1).tolist():
        # A run of several second writes repeats the last write that was kept.
        first = number - 1 if kept[number - 1] else first
        kept[number] = not _repeats(*(tuple(batch[name][n].as_py() for name in _NAMES) for n in (first, number)))
    rows = all_rows[kept]
    return (batch, rows) if kept.all() else (batch.take(pa.array(rows)), rows)


def _repeats(first: tuple[object, ...], second: tuple[object, ...]) -> bool:
    op, before, after = first
    return second == first or (op == "update" and before != after and second == ("delete", before, None))
