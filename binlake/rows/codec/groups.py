"""Rows of a batch that wait to be decoded together, and the limits at which the batch is cut into record batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from binlake.rows.codec.lanes import Ints, Lanes
from binlake.rows.codec.pendingrows import GroupRows
from binlake.rows.codec.tabledecoder import TableDecoder


@dataclass(frozen=True)
class Waiting:
    """Rows of one definition and kind that wait to be decoded; `places` are their numbers in the batch."""

    decoder: TableDecoder
    op: str
    rows: GroupRows
    places: Ints


@dataclass(frozen=True)
class RowGroup:
    """Rows of one definition and kind in a record batch; `places` are their numbers in the record batch."""

    decoder: TableDecoder
    op: str
    rows: Lanes
    places: Ints


def compute_cuts(
    groups: list[Waiting], count: int, most_rows: int, most_bytes: int | None
) -> Iterator[tuple[int, int]]:
    """The row range (first, last + 1) of each record batch."""
    sizes = np.zeros(count, np.int64)
    if most_bytes is not None:
        for group in groups:
            sizes[group.places] = group.rows.compute_sizes()
    ends, low = sizes.cumsum(), 0
    while low < count:
        before = int(ends[low] - sizes[low])
        fits = count if most_bytes is None else int(np.searchsorted(ends, before + most_bytes, side="right"))
        high = max(low + 1, min(low + most_rows, fits, count))
        yield low, high
        low = high


def cut(group: Waiting, low: int, high: int) -> RowGroup:
    """The rows of `group` with numbers from `low` to `high` - 1. Each row may be taken only once."""
    first, last = np.searchsorted(group.places, [low, high]).tolist()
    return RowGroup(group.decoder, group.op, group.rows.take(first, last), group.places[first:last] - low)
