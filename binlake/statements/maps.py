"""Read columns out of row images that are maps, as in the lake's `before` and `after`.

Rule: each column equals the result of `map_lookup`: the first value of its name, NULL if the map lacks the name or is
NULL. If all maps have the same names in the same order, like full images of one definition, they are sliced column by
column.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Array = Any
"""A pyarrow Array (pyarrow has no stubs)."""


def build_images_from_maps(maps: Array, columns: Sequence[str], wanted: Any = None) -> dict[str, Array]:
    """Columns of an Arrow MAP<string,string> array; absent key = NULL.

    `wanted`: the numbers (numpy) of the rows to take, in their order; None for all rows in order.
    """
    return ImageMaps(maps).take_columns(columns, wanted)


class ImageMaps:
    """Maps that are read several times; whether all have the same names is checked only once."""

    def __init__(self, maps: Array) -> None:
        self._maps = maps

    @cached_property
    def names(self) -> list[str] | None:
        """The names that all maps have, in order; None if they differ or if there is no map."""
        return _find_common_names(self._maps)

    @cached_property
    def _rows(self) -> Array:
        return _number_maps(self._maps)

    def take_columns(self, columns: Sequence[str], wanted: Any = None) -> dict[str, Array]:
        """Like `build_images_from_maps`."""
        maps, names = self._maps, self.names
        if names is None:
            return _look_up(maps, columns, wanted)
        items, width = maps.items.slice(maps.offsets[0].as_py()), len(names)
        rows = self._rows if wanted is None else self._rows.take(pa.array(wanted))
        # If a name occurs twice, the first one counts.
        positions = {name: position for position, name in reversed(list(enumerate(names)))}
        return {name: _take_column(items, rows, positions.get(name), width) for name in columns}


def _look_up(maps: Array, columns: Sequence[str], wanted: Any) -> dict[str, Array]:
    """`build_images_from_maps` for maps with different names: each entry is assigned to its column and row."""
    offsets = np.asarray(maps.offsets).astype(np.int64)
    # Entries behind a NULL do not count.
    sizes = np.diff(offsets) * np.asarray(maps.is_valid())
    entries = np.repeat(offsets[:-1] - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())
    indexes = pc.index_in(maps.keys.take(pa.array(entries)), pa.array(columns, maps.type.key_type))
    # An additional column takes the entries of all other names.
    places = np.full((len(columns) + 1, len(maps)), -1, np.int64)
    numbers = np.repeat(np.arange(len(maps)), sizes)
    # Assign from the last entry to the first, because the first counts. Copy, because numpy reads views in memory
    # order.
    last_first = [np.flip(part).copy() for part in (np.asarray(indexes.fill_null(len(columns))), numbers, entries)]
    places[last_first[0], last_first[1]] = last_first[2]
    chosen = places if wanted is None else places[:, wanted]
    return {name: maps.items.take(pa.array(at, mask=at < 0)) for name, at in zip(columns, chosen, strict=False)}


def _take_column(items: Array, rows: Array, position: int | None, width: int) -> Array:
    if position is None:
        return pa.nulls(len(rows), items.type)
    return items.take(pc.add(pc.multiply(rows, width), position))


def _number_maps(maps: Array) -> Array:
    """The number of each map among those that are not NULL; NULL for NULL."""
    if not maps.null_count:
        return pa.array(np.arange(len(maps)))
    valid = np.asarray(maps.is_valid())
    return pa.array(valid.cumsum() - 1, mask=~valid)


def _find_common_names(maps: Array) -> list[str] | None:
    """The names that all maps have, in order; None if they differ or if there is no map."""
    count = len(maps) - maps.null_count
    if not count or not pa.types.is_string(maps.type.key_type):
        return None
    ends = np.asarray(maps.offsets)
    sizes = np.diff(ends)[np.asarray(maps.is_valid())]
    width, total = int(sizes[0]), int(ends[-1] - ends[0])
    if not width or total != width * count or (sizes != width).any():
        return None
    keys = maps.keys.slice(int(ends[0]), total)
    return keys[:width].to_pylist() if _repeats(keys, width) else None


def _repeats(keys: Array, width: int) -> bool:
    """Whether `keys` repeat their first `width` elements."""
    _, offsets, data = keys.buffers()
    bounds = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    if (np.diff(bounds).reshape(-1, width) != np.diff(bounds[: width + 1])).any():
        return False
    size = int(bounds[width] - bounds[0])
    letters = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]] if size else np.empty(0, np.uint8)
    return not size or bool((letters.reshape(-1, size) == letters[:size]).all())
