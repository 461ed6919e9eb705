"""Positions in the total order as columns, and the first and the last position of each key."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from binlake.changes.net.images import ABSENT, Bools, Ints

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
