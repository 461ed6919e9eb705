"""Rows of a batch that wait to be decoded together, and where its record batches are cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from binlake.codec.lanes import Ints
from binlake.codec.plan import TablePlan


@dataclass
class Group:
    """Rows of one definition and kind; `places` are their numbers in the batch."""

    plan: TablePlan
    op: str
    rows: list[bytes]
    places: Ints


def cuts(groups: list[Group], count: int, most_rows: int, most_bytes: int | None) -> Iterator[tuple[int, int]]:
    """(first, last + 1) of the rows of each record batch."""
    sizes = np.zeros(count, np.int64)
    if most_bytes is not None:
        for group in groups:
            sizes[group.places] = np.fromiter(map(len, group.rows), np.int64, len(group.rows))
    ends, low = sizes.cumsum(), 0
    while low < count:
        before = int(ends[low] - sizes[low])
        fits = count if most_bytes is None else int(np.searchsorted(ends, before + most_bytes, side="right"))
        high = max(low + 1, min(low + most_rows, fits, count))
        yield low, high
        low = high


def cut(group: Group, low: int, high: int) -> Group:
    """The rows of `group` between two places; they leave the group, so that what is done is not kept."""
    first, last = np.searchsorted(group.places, [low, high]).tolist()
    if last - first == len(group.rows):
        whole = Group(group.plan, group.op, group.rows, group.places - low)
        group.rows, group.places = [], group.places[:0]
        return whole
    part = Group(group.plan, group.op, group.rows[first:last], group.places[first:last] - low)
    del group.rows[:last]
    group.places = group.places[last:]
    return part
