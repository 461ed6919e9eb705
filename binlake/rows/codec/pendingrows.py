"""The bytes of rows that wait in a batch to be decoded, by group, as spans of the binlogs that contain them.

Rule: rows of a group stay in order. If most rows of a buffer were left out, the remaining rows are copied, so that they
do not hold the whole buffer in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from binlake.rows.codec.lanes import PAD, Bytes, Ints, Lanes
from binlake.rows.codec.texts import cut_texts

Spans = Mapping[int, tuple[Ints, Ints]]
"""Starts and ends of rows, by group."""


class GroupRows:
    """The rows of a group: first the spans, then the rows that were added one by one."""

    def __init__(self, spans: Lanes, alone: list[bytes]) -> None:
        self._spans, self._alone = spans, alone

    def __len__(self) -> int:
        return len(self._spans) + len(self._alone)

    def compute_sizes(self) -> Ints:
        """The number of bytes of each row."""
        alone = np.fromiter(map(len, self._alone), np.int64, len(self._alone))
        return np.concatenate((self._spans.ends - self._spans.starts, alone))

    def take(self, first: int, last: int) -> Lanes:
        """Take the rows `first` to `last` - 1. Rows that were added one by one are released."""
        count = len(self._spans)
        if last <= count:
            return self._spans.slice_rows(first, last)
        rows = [self._spans.read_row(number) for number in range(first, count)]
        alone = slice(max(first - count, 0), last - count)
        rows += self._alone[alone]
        self._alone[alone] = [b""] * (last - max(first, count))
        return Lanes.of(rows)


class PendingRows:
    """Collects rows by the number of their group."""

    def __init__(self) -> None:
        self._alone: dict[int, list[bytes]] = {}
        self._chunks: list[Bytes] = []
        self._bytes = 0
        self._spans: dict[int, list[tuple[Ints, Ints]]] = {}

    def add_alone(self, group: int, rows: Sequence[bytes]) -> None:
        """Append `rows` to their group."""
        self._alone.setdefault(group, []).extend(rows)

    def add(self, lanes: Lanes, rows: Spans) -> None:
        """Append `rows`, given as positions in `lanes`, together with their bytes."""
        self._join()
        if rows:
            self._add(lanes, rows)

    def build_rows(self) -> dict[int, GroupRows]:
        """The rows of each group; their bytes are joined only when they are taken."""
        data = (
            self._chunks[0] if len(self._chunks) == 1 else np.concatenate([*self._chunks, np.frombuffer(PAD, np.uint8)])
        )
        spans = {group: zip(*own, strict=True) for group, own in self._spans.items()}
        lanes = {group: Lanes(data, *(np.concatenate(part) for part in own)) for group, own in spans.items()}
        none = Lanes.of([])
        groups = {*lanes, *self._alone}
        return {group: GroupRows(lanes.get(group, none), self._alone.get(group, [])) for group in groups}

    def _join(self) -> None:
        for group, rows in self._alone.items():
            lanes = Lanes.of(rows)
            self._add(lanes, {group: (lanes.starts, lanes.ends)})
        self._alone.clear()

    def _add(self, lanes: Lanes, rows: Spans) -> None:
        low = min(int(starts[0]) for starts, _ in rows.values())
        high = max(int(ends[-1]) for _, ends in rows.values())
        size = sum(int((ends - starts).sum()) for starts, ends in rows.values())
        if 2 * size >= high - low:
            self._put(lanes.data[low : high + len(PAD)], rows, self._bytes - low)
            return
        for group, (starts, ends) in rows.items():
            copied = Lanes.of(cut_texts(lanes.data, starts, ends))
            self._put(copied.data, {group: (copied.starts, copied.ends)}, self._bytes)

    def _put(self, data: Bytes, rows: Spans, moved: int) -> None:
        for group, (starts, ends) in rows.items():
            self._spans.setdefault(group, []).append((starts + moved, ends + moved))
        self._chunks.append(data)
        self._bytes += len(data)
