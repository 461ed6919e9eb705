"""Reads the rows of a large binlog while it is read in pieces, in their order (S0-19 to S0-21).

A mutation has its inserted, updated and deleted rows in three lists, and after them the sequence that tells their
order. So a binlog is read twice: first its lists are only counted, then each list is followed by a cursor of its own.
What is not exactly as Go writes it is left to the reader of whole binlogs: `list_mutations` returns None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from binlake.common.varint import read_uvarint
from binlake.rows.codec.lanes import PAD, Bytes, Lanes
from binlake.wire import binlog_pb2 as pb

Pieces = Callable[[int], Iterator[bytes]]
"""The bytes of a binlog from an offset on, in pieces."""

MOST_ROWS = 32_768
"""Most rows that are taken at a time; also no more than a piece of each list has."""
_TP, _START_TS, _COMMIT_TS, _KEY, _VALUE = 0x08, 0x10, 0x18, 0x22, 0x2A
_VERSION, _MUTATION, _TABLE_ID, _SEQUENCE = 0x08, 0x12, 0x08, 0x38
_LISTS = ((pb.Insert, 0x12), (pb.Update, 0x1A), (pb.DeleteRow, 0x32))
_NO_DDL = bytes((0x38, 0x00, 0x40, 0x00))
_FIELD_BYTES = 6
"""The tag and the length of a row; as many bytes follow the beginning of the last row of a binlog."""


class ListedMutation(NamedTuple):
    """A mutation: the kind of each row in order, and the offset in the binlog at which each kind's list begins."""

    table_id: int
    begin: int
    end: int
    kinds: Bytes
    lists: dict[int, int]


class LargeBinlog(NamedTuple):
    """The schema version and the mutations of a binlog."""

    version: int
    mutations: list[ListedMutation]


class TakenRows(NamedTuple):
    """Neighbouring rows of a mutation from number `first` on: their kinds, and the rows of each kind."""

    first: int
    kinds: Bytes
    rows: dict[int, Lanes]


class _NotPlain(Exception):
    """A field is not where Go writes it."""


def list_mutations(pieces: Pieces) -> LargeBinlog | None:
    """The mutations of a binlog; None if it is not as Go writes it, or damaged."""
    reader = _PieceReader(pieces(0))
    try:
        for tag in (_TP, _START_TS, _COMMIT_TS):
            reader.expect(tag)
            reader.read_number()
        tag = reader.read_byte()
        if tag == _KEY:
            size = reader.read_number()
            reader.at += size
            tag = reader.read_byte()
        if tag != _VALUE:
            return None
        size = reader.read_number()
        end = reader.position + size
        reader.expect(_VERSION)
        found = LargeBinlog(reader.read_number(), [])
        while reader.position < end:
            found.mutations.append(_list_mutation(reader, end))
        for byte in _NO_DDL:
            reader.expect(byte)
        return found if reader.is_over() else None
    except (_NotPlain, ValueError, IndexError):
        return None


def _list_mutation(reader: _PieceReader, most: int) -> ListedMutation:
    begin = reader.position
    reader.expect(_MUTATION)
    size = reader.read_number()
    end = reader.position + size
    reader.expect(_TABLE_ID)
    table_id = reader.read_number()
    counts, lists = dict[int, int](), dict[int, int]()
    for kind, tag in _LISTS:
        first = reader.position
        if count := reader.skip_rows(tag, end):
            counts[kind], lists[kind] = count, first
    sequence = np.frombuffer(reader.read_bytes(end - reader.position), np.uint8)
    kinds = sequence[1::2].copy()
    if end > most or len(sequence) % 2 or (sequence[::2] != _SEQUENCE).any():
        raise _NotPlain
    found = np.bincount(kinds, minlength=256)
    if {kind: int(count) for kind, count in enumerate(found) if count} != counts:
        raise _NotPlain
    return ListedMutation(table_id, begin, end, kinds, lists)


def iterate_rows(pieces: Pieces, mutation: ListedMutation) -> Iterator[TakenRows]:
    """The rows of `mutation` in order, at most MOST_ROWS at a time and no more than a piece of each list."""
    tags: dict[int, int] = dict(_LISTS)
    counts = np.bincount(mutation.kinds, minlength=8).tolist()
    cursors = {
        kind: _RowCursor(_PieceReader(pieces(begin), begin), tags[kind], counts[kind])
        for kind, begin in mutation.lists.items()
    }
    first = 0
    while first < len(mutation.kinds):
        kinds = mutation.kinds[first : first + MOST_ROWS]
        for kind, cursor in cursors.items():
            cursor.fill()
            own = np.flatnonzero(kinds == kind)
            if len(own) > cursor.available:
                kinds = kinds[: own[cursor.available]]
        yield TakenRows(first, kinds, {k: one.take(n) for k, one in cursors.items() if (n := int((kinds == k).sum()))})
        first += len(kinds)


def read_field(pieces: Pieces, mutation: ListedMutation) -> bytes:
    """The bytes of `mutation`, with its tag and size."""
    return _PieceReader(pieces(mutation.begin), mutation.begin).read_bytes(mutation.end - mutation.begin)


class _PieceReader:
    """Follows the bytes of a binlog. `position`: the offset in it, from `begin` on."""

    def __init__(self, pieces: Iterator[bytes], begin: int = 0) -> None:
        self.data = b""
        self.at = 0
        self._base = begin
        self._pieces = pieces

    @property
    def position(self) -> int:
        """The offset in the binlog."""
        return self._base + self.at

    def read_more(self) -> None:
        """Let `data` begin at the present position, with the next piece at its end. Raises _NotPlain at the end."""
        piece = next(self._pieces, None)
        if piece is None:
            raise _NotPlain
        passed = min(self.at, len(self.data))
        self.data = self.data[passed:] + piece if passed < len(self.data) else piece
        self._base += passed
        self.at -= passed

    def is_over(self) -> bool:
        """Whether there are no more bytes."""
        return self.at == len(self.data) and next(self._pieces, None) is None

    def read_byte(self) -> int:
        """The next byte."""
        while self.at >= len(self.data):
            self.read_more()
        self.at += 1
        return self.data[self.at - 1]

    def expect(self, wanted: int) -> None:
        """Read the byte `wanted`. Raises _NotPlain for another one."""
        if self.read_byte() != wanted:
            raise _NotPlain

    def read_number(self) -> int:
        """The next varint of at most 63 bits."""
        value = shift = 0
        while shift < 63:
            byte = self.read_byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise _NotPlain

    def read_bytes(self, count: int) -> bytes:
        """The next `count` bytes."""
        if count < 0:
            raise _NotPlain
        parts: list[bytes] = []
        while count:
            while self.at >= len(self.data):
                self.read_more()
            part = self.data[self.at : self.at + count]
            self.at += len(part)
            count -= len(part)
            parts.append(part)
        return b"".join(parts)

    def skip_rows(self, tag: int, end: int) -> int:
        """Pass the fields with `tag` before the offset `end`; returns their number."""
        count = 0
        while self.position < end:
            data, at = self.data, self.at
            last = min(len(data) - _FIELD_BYTES + 1, end - self._base)
            while at < last:
                if data[at] != tag:
                    self.at = at
                    return count
                size = data[at + 1]
                if size < 0x80:
                    at += 2 + size
                elif (high := data[at + 2]) < 0x80:
                    at += 3 + (size & 0x7F | high << 7)
                else:
                    size, begin = read_uvarint(data, at + 1)
                    at = begin + size
                count += 1
            self.at = at
            if self.position < end:
                self.read_more()
        if self.position > end:
            raise _NotPlain
        return count

    def read_spans(self, tag: int, most: int) -> tuple[list[int], list[int]]:
        """(starts, ends) of the next rows that `data` has whole, `most` at most; the position is after the last one."""
        starts: list[int] = []
        ends: list[int] = []
        data, at = self.data, self.at
        add_start, add_end, last = starts.append, ends.append, len(data) - _FIELD_BYTES + 1
        while at < last and len(starts) < most:
            if data[at] != tag:
                raise _NotPlain
            size = data[at + 1]
            begin = at + 2
            if size >= 0x80:
                if (high := data[begin]) < 0x80:
                    size, begin = size & 0x7F | high << 7, begin + 1
                else:
                    size, begin = read_uvarint(data, at + 1)
            if begin + size > len(data):
                break
            add_start(begin)
            at = begin + size
            add_end(at)
        self.at = at
        return starts, ends


class _RowCursor:
    """Follows the rows of a list, of which `left` are not at hand yet."""

    def __init__(self, reader: _PieceReader, tag: int, left: int) -> None:
        self._reader = reader
        self._tag = tag
        self._left = left
        self._lanes = Lanes.of([])
        self._next = 0

    @property
    def available(self) -> int:
        """The rows at hand."""
        return len(self._lanes) - self._next

    def fill(self) -> None:
        """Have a row at hand, unless none is left."""
        while self._left and not self.available:
            starts, ends = self._reader.read_spans(self._tag, self._left)
            if starts:
                data = np.frombuffer(self._reader.data + PAD, np.uint8)
                self._lanes, self._next = Lanes(data, np.array(starts), np.array(ends)), 0
                self._left -= len(starts)
            else:
                self._reader.read_more()

    def take(self, count: int) -> Lanes:
        """The next `count` rows at hand."""
        taken = self._lanes.slice_rows(self._next, self._next + count)
        self._next += count
        return taken
