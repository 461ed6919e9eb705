"""Rows of a batch that wait to be decoded together: collected by group, cut into record batches, decoded to columns.

Rule: rows of a group (one definition and kind) stay in order. They are kept as spans of the binlogs that contain them;
if most rows of a buffer were left out, the remaining rows are copied, so that they do not hold the whole buffer in
memory. Rows are decoded column by column (`walk`); those that it does not accept are decoded one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import pyarrow as pa

from binlake.errors import WireError
from binlake.rows.codec.assemble import (
    Keys,
    Maps,
    build_column,
    build_maps_part,
    build_plain_maps_part,
    find_moved_rows,
    format_key_text,
    format_key_texts,
)
from binlake.rows.codec.columns import has_plain_texts
from binlake.rows.codec.lanes import PAD, Bytes, Ints, Lanes, cut_texts
from binlake.rows.codec.tabledecoder import Image, TableDecoder
from binlake.rows.codec.transaction import ROW_ERRORS, build_row_error
from binlake.rows.codec.walk import Walked, walk

Spans = Mapping[int, tuple[Ints, Ints]]
"""Starts and ends of rows, by group."""
FIELDS = 7
"""Fields of each mutation of a batch: commit_ts, start_ts, schema version, and the four named below."""
TABLE, FIRST, ROWS, TABLE_ID = range(3, FIELDS)
"""Index of its table in the batch, `seq` of its first row, number of rows, id of its table at the source."""


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


@dataclass
class Columns:
    """The parts from which the rows of a batch are assembled."""

    before: list[Maps] = field(default_factory=list)
    after: list[Maps] = field(default_factory=list)
    keys: list[Keys] = field(default_factory=list)
    new_keys: list[Keys] = field(default_factory=list)


def build_columns(groups: list[RowGroup], mutations: Ints) -> Columns:
    """The images and keys of all rows.

    `key` is the key before the change, or the inserted row's key. `new_key` is set if an update changed the key.
    """
    columns, left = Columns(), []
    for group in groups:
        plain = np.ones(len(group.rows), np.bool_)
        for walked in walk(group.decoder, group.op, group.rows):
            plain[walked.rows] = False
            _add_walked(columns, group, walked)
        left += [(int(group.places[n]), group, group.rows.read_row(n)) for n in np.flatnonzero(plain).tolist()]
    _add_plain(columns, sorted(left, key=lambda one: one[0]), mutations)
    return columns


def _add_walked(columns: Columns, group: RowGroup, walked: Walked) -> None:
    decoder, rows = group.decoder, group.places[walked.rows]
    images = []
    for slots, parts in ((walked.before, columns.before), (walked.after, columns.after)):
        if slots is not None:
            image = [build_column(slot, text) for slot, text in zip(slots, decoder.filled, strict=True)]
            parts.append(build_maps_part(rows, decoder.names, image))
            images.append([image[slot].texts for slot in decoder.key_slots])
    plain = [has_plain_texts(decoder.table.row_columns[slot]) for slot in decoder.key_slots]
    columns.keys.append(Keys(rows, format_key_texts(images[0], plain)))
    moved = find_moved_rows(*images) if len(images) > 1 else rows[:0]
    if moved.size:
        of_key = [texts.take(pa.array(moved)) for texts in images[1]]
        columns.new_keys.append(Keys(rows[moved], format_key_texts(of_key, plain)))


def _add_plain(columns: Columns, left: list[tuple[int, RowGroup, bytes]], mutations: Ints) -> None:
    before: tuple[list[int], list[Image]] = ([], [])
    after: tuple[list[int], list[Image]] = ([], [])
    keys, moved = [], []
    for number, group, row in left:
        try:
            images = _decode_row(group, row)
        except ROW_ERRORS as error:
            raise _build_row_error(error, group.op, number, mutations) from error
        for image, (numbers, collected) in zip(images, (before, after), strict=True):
            if image is not None:
                numbers.append(number)
                collected.append(image)
        keys.append(format_key_text(group.decoder.select_key(cast(Image, images[0] or images[1]))))
        new = format_key_text(group.decoder.select_key(images[1])) if images[0] and images[1] else keys[-1]
        if new != keys[-1]:
            moved.append((number, new))
    if left:
        columns.keys.append(_build_keys([number for number, _, _ in left], keys))
    if moved:
        columns.new_keys.append(_build_keys([at for at, _ in moved], [key for _, key in moved]))
    for (numbers, collected), parts in ((before, columns.before), (after, columns.after)):
        if numbers:
            parts.append(build_plain_maps_part(numbers, collected))


def _build_keys(places: list[int], keys: list[str]) -> Keys:
    return Keys(np.asarray(places, np.int64), pa.array(keys, pa.string()))


def _build_row_error(error: Exception, op: str, number: int, mutations: Ints) -> WireError:
    ends = mutations[:, ROWS].cumsum()
    at = int(np.searchsorted(ends, number, side="right"))
    commit_ts, *_ = fields = mutations[at].tolist()
    return build_row_error(
        error, op, fields[TABLE_ID], commit_ts, fields[FIRST] + number - (int(ends[at]) - fields[ROWS])
    )


def _decode_row(group: RowGroup, row: bytes) -> tuple[Image | None, Image | None]:
    if group.op == "insert":
        return None, group.decoder.insert(row)
    if group.op == "update":
        return group.decoder.update(row)
    return group.decoder.delete(row), None
