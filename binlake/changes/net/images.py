"""Row images, and their positions in the total order, as columns: values of many rows without an object per row.

Images are the Arrow maps of `mutation`. The first and the last position of each key are found from those of all its
changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Ints = NDArray[Any]
Bools = NDArray[np.bool_]
MAP = pa.map_(pa.string(), pa.string())
ABSENT = -1


class Images:
    """Maps (MAP<string, string>) by row number. A row without an image is NULL."""

    def __init__(self, maps: pa.MapArray) -> None:
        self.maps = maps
        offsets = np.asarray(maps.offsets).astype(np.int64)
        self.starts = offsets[:-1]
        sizes = np.diff(offsets)
        self.sizes = sizes if not maps.null_count else np.where(self.is_there, sizes, 0)

    @cached_property
    def is_there(self) -> Bools:
        """Which rows have an image."""
        return np.asarray(self.maps.is_valid())

    @cached_property
    def _names(self) -> pa.Array:
        return self.maps.keys

    @cached_property
    def _values(self) -> pa.Array:
        return self.maps.items

    def find_entries(self, rows: Ints, name: str) -> Ints:
        """The number of the entry `name` in the image of each of `rows`; ABSENT if the image has none.

        Images of one definition have their columns in the same order; only other images are searched entry by entry.
        """
        starts, sizes = self.starts[rows], self.sizes[rows]
        entries = np.full(len(rows), ABSENT, np.int64)
        filled = np.flatnonzero(sizes)
        if not filled.size:
            return entries
        first = self._names.slice(starts[filled[0]], sizes[filled[0]])
        position = pc.index(first, name).as_py()
        left = filled
        if position >= 0:
            fit = filled[sizes[filled] > position]
            hit = np.asarray(pc.equal(self._names.take(pa.array(starts[fit] + position)), name))
            entries[fit[hit]] = starts[fit[hit]] + position
            left = filled[entries[filled] == ABSENT]
        if left.size:
            owners, numbers = _expand_ranges(starts[left], sizes[left])
            hit = np.flatnonzero(np.asarray(pc.equal(self._names.take(pa.array(numbers)), name)))
            entries[left[owners[hit]]] = numbers[hit]
        return entries

    def take_texts(self, entries: Ints, filled: str | None = None) -> pa.Array:
        """The texts of `entries`; `filled` for ABSENT ones."""
        missing = entries == ABSENT
        if not missing.any():
            return self._values.take(pa.array(entries))
        texts = self._values.take(pa.array(entries, mask=missing))
        return texts if filled is None else pc.if_else(pa.array(missing), pa.scalar(filled, texts.type), texts)

    def take_maps(self, rows: Ints) -> pa.MapArray:
        """The images of `rows`; NULL for ABSENT."""
        if len(rows) == len(self.maps) and (rows == np.arange(len(rows))).all():
            return self.maps
        missing = rows == ABSENT
        if missing.all():
            return pa.nulls(len(rows), self.maps.type)
        return self.maps.take(pa.array(rows, mask=missing if missing.any() else None))


def complete_images(maps: pa.MapArray, names: Sequence[str], filled: Sequence[str | None]) -> pa.MapArray:
    """Add to `maps` the missing columns of `names` with the values `filled`; NULL stays NULL."""
    images = Images(maps)
    rows = np.arange(len(maps))
    lacking = [np.flatnonzero(images.is_there & (images.find_entries(rows, name) == ABSENT)) for name in names]
    if not any(rows.size for rows in lacking):
        return maps
    owners, numbers = _expand_ranges(images.starts, images.sizes)
    count = len(maps.keys)
    added = [np.full(rows.size, count + n) for n, rows in enumerate(lacking)]
    owners, numbers = np.concatenate([owners, *lacking]), np.concatenate([numbers, *added])
    numbers = pa.array(numbers[np.argsort(owners, kind="stable")])
    sizes = np.bincount(owners, minlength=len(maps))
    keys = pa.concat_arrays([maps.keys, pa.array(names, maps.keys.type)])
    items = pa.concat_arrays([maps.items, pa.array(filled, maps.items.type)])
    return _build_maps(sizes, images.is_there, keys.take(numbers), items.take(numbers))


def restrict_images(maps: pa.MapArray, names: Sequence[str], filled: Sequence[str | None]) -> pa.MapArray:
    """Images of exactly the columns `names`, in this order; missing ones get the values `filled`. NULL stays NULL."""
    images, width = Images(maps), len(names)
    rows = np.flatnonzero(images.is_there)
    entries = [images.find_entries(rows, name) for name in names]
    in_order = all((at == images.starts[rows] + n).all() for n, at in enumerate(entries))
    if in_order and (images.sizes[rows] == width).all():
        return maps
    count = len(maps.keys)
    numbers = np.stack([np.where(at == ABSENT, count + n, at) for n, at in enumerate(entries)], axis=1).ravel()
    items = pa.concat_arrays([maps.items, pa.array(filled, maps.items.type)]).take(pa.array(numbers))
    keys = pa.array(names, maps.keys.type).take(pa.array(np.tile(np.arange(width), len(rows))))
    return _build_maps(np.where(images.is_there, width, 0), images.is_there, keys, items)


def _build_maps(sizes: Ints, is_there: Bools, keys: pa.Array, items: pa.Array) -> pa.MapArray:
    offsets = np.concatenate(([0], sizes.cumsum())).astype(np.int32)
    null = np.append(~is_there, False)
    return pa.MapArray.from_arrays(pa.array(offsets, mask=null if null.any() else None), keys, items)


def _expand_ranges(starts: Ints, sizes: Ints) -> tuple[Ints, Ints]:
    """(number of the range, number of the entry) for all entries of ranges with these `starts` and `sizes`."""
    owners = np.repeat(np.arange(len(sizes)), sizes)
    return owners, np.repeat(starts - (sizes.cumsum() - sizes), sizes) + np.arange(len(owners))


POSITION = ("commit_ts", "start_ts", "seq")


@dataclass(frozen=True)
class Positions:
    """(commit_ts, start_ts, seq) of events, by their number."""

    columns: tuple[Ints, ...]

    @property
    def commit_ts(self) -> Ints:
        """The commit_ts of each event."""
        return self.columns[0]

    def __len__(self) -> int:
        return len(self.columns[0])

    def take(self, numbers: Ints) -> Positions:
        """The positions with these `numbers`."""
        return Positions(tuple(column[numbers] for column in self.columns))

    @cached_property
    def order(self) -> Ints:
        """The event numbers sorted by position; events at equal positions keep their order."""
        numbers = np.arange(len(self))
        return numbers if self._is_ascending() else np.lexsort(self.columns[::-1])

    def _is_ascending(self) -> bool:
        # Rows from merge are already in order, and checking costs a hundredth of sorting.
        rising = np.zeros(max(len(self) - 1, 0), np.bool_)
        level = ~rising
        for column in self.columns:
            step = np.diff(column)
            rising |= level & (step > 0)
            level &= step == 0
        return bool((rising | level).all())


@dataclass(frozen=True)
class Groups:
    """Events by key: `codes` number the keys of events, from 0 to `count` - 1."""

    codes: Ints
    count: int

    def find_first(self, positions: Positions, among: Bools | None = None) -> Ints:
        """The number of each key's first event among those of `among`; ABSENT if there is none."""
        return self._find_last_of_each(positions.order[::-1], among)

    def find_last(self, positions: Positions, among: Bools | None = None) -> Ints:
        """The number of each key's last event among those of `among`; ABSENT if there is none."""
        return self._find_last_of_each(positions.order, among)

    def _find_last_of_each(self, numbers: Ints, among: Bools | None) -> Ints:
        edges = np.full(self.count, ABSENT, np.int64)
        numbers = numbers if among is None else numbers[among[numbers]]
        # If several values are assigned to one element, the last one stays.
        edges[self.codes[numbers]] = numbers
        return edges

    def compute_sums(self, values: Ints) -> Ints:
        """The sum of the integer `values` of each key."""
        sums = np.zeros(self.count, np.int64)
        np.add.at(sums, self.codes, values)
        return sums

    def find_least(self, values: Ints) -> Ints:
        """The least of the `values` of each key."""
        least = np.full(self.count, np.iinfo(np.int64).max, np.int64)
        np.minimum.at(least, self.codes, values)
        return least

    def find_greatest(self, values: Ints) -> Ints:
        """The greatest of the `values` of each key."""
        most = np.full(self.count, np.iinfo(np.int64).min, np.int64)
        np.maximum.at(most, self.codes, values)
        return most
