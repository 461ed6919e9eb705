"""Which of certain keys have rows in a mirror: only the keys are read, of the files that may have one.

Rule: a file is left out only if its statistics say so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from binlake.base.lakecolumns import Mirror
from binlake.lake.dataset import open_dataset


@dataclass(frozen=True)
class KeyMatch:
    """A file in full: the `keys` of its rows, their `places` among the keys looked for (-1: none), and another column
    of whole numbers."""

    file: ds.Fragment
    keys: pa.Array
    places: npt.NDArray[np.int32]
    also: npt.NDArray[np.int64]


def has_key(table: DeltaTable, keys: pa.ChunkedArray | pa.Array) -> bool:
    """Whether a row of `table` has one of `keys` (texts of `_rowkey`). Raises OSError."""
    return next(iterate_present_keys(table, keys), None) is not None


def iterate_present_keys(table: DeltaTable, keys: pa.ChunkedArray | pa.Array) -> Iterator[pa.Array]:
    """Those of `keys` that rows of `table` have, some at a time and at least one. Raises OSError."""
    wanted = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
    if (fragments := _find_fragments(data := open_dataset(table), wanted)) is None:
        return
    for file in fragments:
        for batch in file.to_batches(schema=data.schema, columns=[Mirror.ROWKEY], batch_readahead=2):
            # delta-rs leaves views of texts in files that it rewrites.
            own = batch.column(0).cast(wanted.type)
            if len(found := own.filter(pc.is_in(own, value_set=wanted))):
                yield found


def match_keys(data: ds.Dataset, keys: pa.Array, also: str, passed: Collection[str] = ()) -> Iterator[KeyMatch]:
    """Each file of a mirror that may have rows with one of `keys`, with the column `also`.

    Files with the names `passed` are left out. Raises OSError.
    """
    for file in _find_fragments(data, keys) or ():
        if file.path in passed:
            continue
        rows = file.to_table(schema=data.schema, columns=[Mirror.ROWKEY, also])
        own = rows[Mirror.ROWKEY].cast(keys.type).combine_chunks()
        places = pc.fill_null(pc.index_in(own, value_set=keys), -1)
        yield KeyMatch(file, own, np.asarray(places), np.asarray(rows[also]))


def _find_fragments(data: ds.Dataset, keys: pa.Array) -> Iterator[ds.Fragment] | None:
    """The files whose statistics do not exclude all `keys`; None if there are no keys."""
    ends = pc.min_max(keys).as_py()
    if ends["min"] is None:
        return None
    column = ds.field(Mirror.ROWKEY)
    found: Iterator[ds.Fragment] = data.get_fragments((column >= ends["min"]) & (column <= ends["max"]))
    return found
