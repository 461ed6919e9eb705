"""The row events of one shape in a batch: their rows are found and encoded together, and given back event by event."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from binlake.base.varint import write_uvarint
from binlake.mysqlbinlog.model import RowKind, RowsEvent
from binlake.mysqlbinlog.rowimage.lanes import ROOM, Ints
from binlake.mysqlbinlog.rowimage.plain import encode_rows
from binlake.mysqlbinlog.rowimage.shape import Shape
from binlake.mysqlbinlog.rowimage.together import MOST_COLUMN_ID, CutShort, Rows, encode_together
from binlake.mysqlbinlog.rowimage.walker import walker_of

FEWEST = 40
"""Rows that are worth numpy's calls; below it they are encoded one by one."""
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 8192, 4 << 20
"""Of a piece of work, so that its columns stay in the processor's caches."""
_PLAIN_ERRORS = (CutShort, ValueError, IndexError, KeyError, TypeError, OverflowError, OSError, struct.error)

TAGS = {RowKind.INSERT: 0x12, RowKind.UPDATE: 0x1A, RowKind.PARTIAL_UPDATE: 0x1A, RowKind.DELETE: 0x32}
"""Protobuf's tags of TableMutation's lists of rows."""


class Entries(NamedTuple):
    """The rows of an event as entries of their list, tags and lengths included; `rows`: how many."""

    data: memoryview | bytes
    rows: int


class Group:
    """The `events` of one `shape`. `rows`: how many each has. Raises WireError for damaged ones."""

    def __init__(self, shape: Shape, events: Sequence[RowsEvent]) -> None:
        self._shape, self._events = shape, events
        self._plain: list[list[bytes]] | None = None
        if shape.kind is RowKind.PARTIAL_UPDATE or not _fits(shape):
            self._plain = [encode_rows(event, shape, 0) for event in events]
            self.rows = np.fromiter(map(len, self._plain), np.int64, len(events))
            return
        self._data = b"".join([*(event.rows for event in events), bytes(ROOM)])
        sizes = np.fromiter((len(event.rows) for event in events), np.int64, len(events))
        self._ends = sizes.cumsum()
        self._starts = self._walk()
        bounds = np.searchsorted(self._starts, np.concatenate((np.zeros(1, np.int64), self._ends)))
        self._bounds: Ints = bounds.astype(np.int64)
        self.rows = np.diff(self._bounds)

    def _walk(self) -> Ints:
        try:
            starts = np.asarray(walker_of(self._shape)(self._data, len(self._data) - ROOM), np.int64)
            # No row lies across two events.
            if np.isin(self._ends[:-1], starts).all():
                return starts
        except (IndexError, struct.error):
            pass
        for event in self._events:
            encode_rows(event, self._shape, 0)
        raise AssertionError("rows that can be read one by one were not found together")

    def encode(self, numbers: Ints) -> list[Entries]:
        """The entries of each event; `numbers`: that of its first row in its transaction."""
        if self._plain is not None:
            return [self._entries_of(rows) for rows in self._plain]
        if len(self._starts) < FEWEST:
            return self._one_by_one(0, len(self._events), numbers)
        entries: list[Entries] = []
        for first, last in self._shares():
            entries += self._together(first, last, numbers)
        return entries

    def _shares(self) -> list[tuple[int, int]]:
        """(first, last) events of pieces of work."""
        shares, first = [], 0
        starts = np.concatenate((np.zeros(1, np.int64), self._ends))
        while first < len(self._events):
            by_rows = np.searchsorted(self._bounds, self._bounds[first] + _ROWS_AT_ONCE)
            by_bytes = np.searchsorted(starts, starts[first] + _BYTES_AT_ONCE)
            last = min(max(int(min(by_rows, by_bytes)), first + 1), len(self._events))
            shares.append((first, last))
            first = last
        return shares

    def _together(self, first: int, last: int, numbers: Ints) -> list[Entries]:
        low, high = int(self._bounds[first]), int(self._bounds[last])
        if low == high:
            return [Entries(b"", 0)] * (last - first)
        counts = self.rows[first:last]
        places = np.arange(low, high) + np.repeat(numbers[first:last] - self._bounds[first:last], counts)
        ends = np.append(self._starts[low + 1 : high], self._ends[last - 1])
        rows = Rows.of(self._data, self._starts[low:high], ends)
        try:
            data, row_ends = encode_together(self._shape, rows, places, TAGS[self._shape.kind])
        except _PLAIN_ERRORS:
            # Says what is wrong with which row, or knows better.
            return self._one_by_one(first, last, numbers)
        bounds = np.concatenate((np.zeros(1, np.int64), row_ends))[self._bounds[first : last + 1] - low].tolist()
        return [
            Entries(data[start:end], count)
            for start, end, count in zip(bounds, bounds[1:], counts.tolist(), strict=False)
        ]

    def _one_by_one(self, first: int, last: int, numbers: Ints) -> list[Entries]:
        return [
            self._entries_of(encode_rows(self._events[place], self._shape, int(numbers[place])))
            for place in range(first, last)
        ]

    def _entries_of(self, rows: list[bytes]) -> Entries:
        tag = bytes((TAGS[self._shape.kind],))
        return Entries(b"".join([tag + write_uvarint(len(row)) + row for row in rows]), len(rows))


def _fits(shape: Shape) -> bool:
    return all(0 < c.info.id < MOST_COLUMN_ID for image in shape.images for c in image.columns)
