"""Which of certain keys have rows in a mirror: only the keys are read, of the files that may have one.

Rule: a file is left out only if its statistics say so.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from binlake.base.lakecolumns import Mirror
from binlake.lake.dataset import open_dataset


def has_key(table: DeltaTable, keys: pa.ChunkedArray | pa.Array) -> bool:
    """Whether a row of `table` has one of `keys` (texts of `_rowkey`). Raises OSError."""
    return next(iterate_present_keys(table, keys), None) is not None


def iterate_present_keys(table: DeltaTable, keys: pa.ChunkedArray | pa.Array) -> Iterator[pa.Array]:
    """Those of `keys` that rows of `table` have, some at a time and at least one. Raises OSError."""
    ends = pc.min_max(keys).as_py()
    if ends["min"] is None:
        return
    column = ds.field(Mirror.ROWKEY)
    within = (column >= ends["min"]) & (column <= ends["max"])
    wanted = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
    data = open_dataset(table)
    for file in data.get_fragments(within):
        for batch in file.to_batches(schema=data.schema, columns=[Mirror.ROWKEY], batch_readahead=2):
            # delta-rs leaves views of texts in files that it rewrites.
            own = batch.column(0).cast(wanted.type)
            if len(found := own.filter(pc.is_in(own, value_set=wanted))):
                yield found
