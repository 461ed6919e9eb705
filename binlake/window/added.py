"""Adds to rows of `mutation` the columns that their target has in addition to the source's (`binlake.window.extras`).

One pass over Arrow batches, both in the driver and in tasks. Rows of other tables do not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from binlake.base.lakecolumns import Mutation
from binlake.window.extras import Extra

Ints = NDArray[np.int64]
_IMAGES = (Mutation.BEFORE, Mutation.AFTER)


def add_columns(batch: pa.RecordBatch, added: Sequence[Extra]) -> pa.RecordBatch:
    """`batch` with the columns `added` appended to both images."""
    of = np.full(batch.num_rows, -1)
    for number, extra in enumerate(added):
        of[_find_rows(batch, extra)] = number
    if (of < 0).all():
        return batch
    for name in _IMAGES:
        place = batch.schema.get_field_index(name)
        batch = batch.set_column(place, batch.schema.field(place), _append_values(batch[name], of, added))
    return batch


def _find_rows(batch: pa.RecordBatch, extra: Extra) -> Ints:
    here = [
        pc.equal(batch[Mutation.SOURCE_DB], extra.db),
        pc.equal(batch[Mutation.SOURCE_TABLE], extra.table),
        pc.greater_equal(batch[Mutation.COMMIT_TS], extra.since),
        pc.less(batch[Mutation.COMMIT_TS], extra.until),
    ]
    return np.flatnonzero(np.logical_and.reduce([mask.to_numpy(zero_copy_only=False) for mask in here]))


def _append_values(maps: Any, extra_of: Ints, added: Sequence[Extra]) -> Any:
    """Append to each map n the values of extra `extra_of[n]`. Maps with -1 and NULL maps do not change."""
    bounds, null = np.asarray(maps.offsets).astype(np.int64), np.asarray(maps.is_null())
    counts = np.asarray([*(len(extra.values) for extra in added), 0])
    sizes, more = np.where(null, 0, np.diff(bounds)), np.where(null, 0, counts[extra_of])
    ends = (sizes + more).cumsum()
    starts, firsts = ends - sizes - more, (counts.cumsum() - counts)[extra_of] + len(maps.keys)
    index = np.empty(int(ends[-1]), np.int64)
    index[_expand_ranges(starts, sizes)] = _expand_ranges(bounds[:-1], sizes)
    index[_expand_ranges(starts + sizes, more)] = _expand_ranges(firsts, more)
    names = [name for extra in added for name in extra.values]
    values = [value for extra in added for value in extra.values.values()]
    keys = pa.concat_arrays([maps.keys, pa.array(names, pa.string())]).take(pa.array(index))
    items = pa.concat_arrays([maps.items, pa.array(values, pa.string())]).take(pa.array(index))
    offsets = pa.array(np.concatenate(([0], ends)).astype(np.int32), pa.int32(), mask=np.append(null, False))
    return pa.MapArray.from_arrays(offsets, keys, items)


def _expand_ranges(starts: Ints, sizes: Ints) -> Ints:
    """All numbers of the ranges with these `starts` and `sizes`."""
    moved: Ints = np.repeat(starts - (sizes.cumsum() - sizes), sizes)
    return moved + np.arange(len(moved))
