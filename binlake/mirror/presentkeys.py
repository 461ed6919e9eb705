"""Whether a mirror has rows with certain keys: only the keys are read, of the files that may have one.

Rule: a file is left out only if its statistics say so.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from binlake.base.lakecolumns import Mirror
from binlake.lake.dataset import open_dataset


def has_key(table: DeltaTable, keys: pa.ChunkedArray | pa.Array) -> bool:
    """Whether a row of `table` has one of `keys` (texts of `_rowkey`). Raises OSError."""
    ends = pc.min_max(keys).as_py()
    if ends["min"] is None:
        return False
    column = ds.field(Mirror.ROWKEY)
    within = (column >= ends["min"]) & (column <= ends["max"])
    wanted = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
    data = open_dataset(table)
    for file in data.get_fragments(within):
        for batch in file.to_batches(schema=data.schema, columns=[Mirror.ROWKEY], batch_readahead=2):
            # delta-rs leaves views of texts in files that it rewrites.
            if pc.any(pc.is_in(batch.column(0).cast(wanted.type), value_set=wanted)).as_py():
                return True
    return False
