"""Reads many records of the value log at once: whole stretches of the files, their heads as columns.

Nothing is assumed: a row is `plain` only when marker, length and layout match `heads.parse_layout`. The caller reads
every other row by itself and gets any error from that read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from binlake.pump_service.pump.record import BACK_FACTOR, OLD_RECORD, RECORD, Pointer, RecordFrame

NEAR_BYTES = 64 << 10  # bytes; a larger record, or gap, is not read along with its neighbours
_POINTERS = np.dtype([("fid", "<u4"), ("offset", "<i8")])
_FAR = np.int64(1) << 62
_PAD = 64  # zero bytes after the data, so that no look-ahead passes its end
_LOOK_AHEAD = 16  # bytes that may be read ahead of a position; less than _PAD, so that no record ends there
_ONE = np.uint64(1)
_TOP_BITS = np.uint64(0x8080808080808080)
# Combines seven bits of each byte into one number: first neighbouring bytes, then pairs, then groups of four.
_FOLDS = tuple(
    (np.uint64(low), np.uint64(low << width), np.uint64(gap))
    for low, width, gap in ((0x007F007F007F007F, 8, 1), (0x00003FFF00003FFF, 16, 2), (0x0FFFFFFF, 32, 4))
)
_NINTH = np.uint64(56)
_BACK = np.uint64(BACK_FACTOR)
_U32 = np.uint64((1 << 32) - 1)

Ints = NDArray[np.int64]


class Records(Protocol):
    """The value log. Both read methods raise LostRange for a file that was removed."""

    def read_bytes(self, pointer: Pointer, size: int) -> bytes:
        """Raw bytes; fewer at the end of the file."""

    def peek(self, pointer: Pointer, size: int) -> tuple[int, bytes]:
        """The length of a payload, 0 if no record begins there, and its first bytes."""

    def look_up_frame(self, fid: int) -> RecordFrame:
        """How the records of a file are framed."""


class StretchBytes(NamedTuple):
    """The bytes of some stretches, and a row for each of the first requested pointers, in columns.

    `data[begin:end]` is a payload, `cut` as in heads.Layout. The columns are valid only where `plain` is true, and even
    there the crc must still be checked.
    """

    data: bytes
    plain: NDArray[np.bool_]
    begin: Ints
    cut: Ints
    end: Ints
    crc: Ints
    seed: Ints
    tp: Ints
    start_ts: Ints
    commit_ts: Ints


def read_block(pointers: Sequence[bytes], log: Records, limit: int) -> StretchBytes:
    """Read the records at `pointers` (as in the index): the first ones up to about `limit` bytes, but at least one."""
    places = np.frombuffer(b"".join(pointers), _POINTERS)
    fids, offsets = places["fid"].astype(np.int64), places["offset"].astype(np.int64)
    order = np.lexsort((offsets, fids))
    sizes = _read_sizes(fids, offsets, order, log)
    count = max(1, int(np.searchsorted(np.cumsum(sizes), limit, side="right")))
    data, at = _read_stretches(fids, offsets, sizes, order[order < count], log)
    frames = _Frames.of(fids[:count], offsets[:count], log)
    return _parse_block(data, at[:count], frames)


class _Frames(NamedTuple):
    """For each row the values of its file's frame; `salt` includes the record's offset."""

    old: NDArray[np.bool_]
    marker: NDArray[np.uint64]
    salt: NDArray[np.uint64]

    @classmethod
    def of(cls, fids: Ints, offsets: Ints, log: Records) -> _Frames:
        files, which = np.unique(fids, return_inverse=True)
        frames = [log.look_up_frame(int(fid)) for fid in files]
        old = np.array([frame.old for frame in frames])[which]
        marker = np.array([frame.marker for frame in frames], np.uint64)[which]
        salt = np.array([frame.salt for frame in frames], np.uint64)[which]
        return cls(old, marker, salt + offsets.astype(np.uint64))


def _read_sizes(fids: Ints, offsets: Ints, order: Ints, log: Records) -> Ints:
    """For each record the bytes to the next one, or its own size if the next one is far away."""
    ahead = np.full(len(order), _FAR, np.int64)
    same = fids[order][1:] == fids[order][:-1]
    ahead[:-1][same] = np.diff(offsets[order])[same]
    sizes = np.empty_like(ahead)
    sizes[order] = ahead
    for one in np.nonzero(sizes > NEAR_BYTES)[0]:
        pointer = Pointer(int(fids[one]), int(offsets[one]))
        sizes[one] = log.look_up_frame(pointer.fid).header_bytes + min(log.peek(pointer, 0)[0], int(sizes[one]))
    return sizes


def _read_stretches(fids: Ints, offsets: Ints, sizes: Ints, order: Ints, log: Records) -> tuple[bytes, Ints]:
    """The bytes of those records of `order` that are not large, and where each begins in those bytes (-1: left out)."""
    at = np.full(len(fids), -1, np.int64)
    order = order[sizes[order] <= NEAR_BYTES]
    if not len(order):
        return bytes(_PAD), at
    fid, begin = fids[order], offsets[order]
    end = begin + sizes[order]
    breaks = np.nonzero((fid[1:] != fid[:-1]) | (begin[1:] - end[:-1] > NEAR_BYTES))[0] + 1
    pieces, base = list[bytes](), 0
    for first, last in zip([0, *breaks.tolist()], [*breaks.tolist(), len(order)], strict=True):
        start = int(begin[first])
        piece = log.read_bytes(Pointer(int(fid[first]), start), int(end[first:last].max()) - start)
        at[order[first:last]] = begin[first:last] - start + base
        pieces.append(piece)
        base += len(piece)
    return b"".join((*pieces, bytes(_PAD))), at


def _parse_block(data: bytes, at: Ints, frames: _Frames) -> StretchBytes:
    raw = np.frombuffer(data, np.uint8)
    safe = np.clip(at, 0, len(raw) - _PAD)
    known, begin, length, crc, seed = _parse_headers(data, safe, frames)
    end = begin + length
    plain = (at >= 0) & known & (length > 0) & (end <= len(raw) - _PAD)
    look = _Cursor(data, begin, plain)
    tp, start_ts, commit_ts, _, cut = look.read_binlog()
    plain = look.plain & (look.place == end)
    return StretchBytes(data, plain, begin, cut, end, crc, seed, tp, start_ts, commit_ts)


HeadRow = tuple[bool, int, int, int, int, int]
"""(plain, tp, start_ts, commit_ts, offset of field 4 with its tag, offset after it) of a payload."""


def read_heads(data: bytes, places: Sequence[tuple[int, int, int]]) -> Iterator[HeadRow]:
    """The heads of the payloads `data[begin:end]` for these (_, begin, end)."""
    columns = np.array(places, np.int64)
    begin, end = columns[:, 1], columns[:, 2]
    look = _Cursor(data + bytes(_PAD), begin, np.ones(len(begin), np.bool_))
    tp, start_ts, commit_ts, key, cut = look.read_binlog()
    rows = (look.plain & (look.place == end), tp, start_ts, commit_ts, key, cut)
    return zip(*(column.tolist() for column in rows), strict=True)


def _parse_headers(data: bytes, at: Ints, frames: _Frames) -> tuple[NDArray[np.bool_], Ints, Ints, Ints, Ints]:
    """For the records at these offsets: whether the marker matches, begin and length of the payload, crc, seed."""
    eight = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    four = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))
    known, begin = eight[at] == frames.marker, at + RECORD.size
    length, crc, back = (four[at + place].astype(np.int64) for place in (8, 12, 16))
    seed = (frames.salt + back.astype(np.uint64) * _BACK & _U32).astype(np.int64)
    if frames.old.any():
        old = frames.old
        known = np.where(old, four[at] == frames.marker, known)
        begin = np.where(old, at + OLD_RECORD.size, begin)
        length = np.where(old, np.minimum(eight[at + 4], _U32).astype(np.int64), length)
        crc = np.where(old, four[at + 12].astype(np.int64), crc)
        seed = np.where(old, 0, seed)
    return known, begin, length, crc, seed


class _Cursor:
    """An offset in each row that advances field by field; `plain` becomes false for a row that is not as expected."""

    def __init__(self, data: bytes, place: Ints, plain: NDArray[np.bool_]) -> None:
        self._raw = np.frombuffer(data, np.uint8)
        # The eight bytes from each offset, as one number.
        self._words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
        self._last = len(data) - _LOOK_AHEAD
        self.place, self.plain = place, plain

    def read_binlog(self) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """Read tp, start_ts, commit_ts, and the offsets of field 4 and after it; then advance to the binlog's end."""
        self.expect_tag(0x08)
        tp = self.read_byte(3)
        self.expect_tag(0x10)
        start_ts = self.read_plain_varint()
        self.expect_tag(0x18)
        commit_ts = self.read_plain_varint()
        key = self.place
        self.skip_field(0x22)
        cut = self.place
        self.skip_field(0x2A)
        self.expect_tag(0x38)
        self.read_byte(0x80)
        self.expect_tag(0x40)
        self.read_byte(0x80)
        return tp, start_ts, commit_ts, key, cut

    def expect_tag(self, tag: int) -> None:
        """Expect the byte `tag`."""
        self.plain &= self._raw[self.place] == tag
        self._move(1)

    def read_byte(self, below: int) -> Ints:
        """Read a one-byte varint less than `below`."""
        value = self._raw[self.place].astype(np.int64)
        self.plain &= value < below
        self._move(1)
        return value

    def read_plain_varint(self) -> Ints:
        """Read a varint of up to nine bytes in its shortest form; longer ones (negative numbers) are not plain."""
        value, size, fine = self._read_varint()
        self.plain &= fine
        self._move(size)
        return value

    def skip_field(self, tag: int) -> None:
        """Skip a field of bytes, where it is present."""
        present = self._raw[self.place] == tag
        before = self.place
        self._move(1)
        length, size, fine = self._read_varint()
        fine &= length < _FAR
        self.plain &= fine | ~present
        self.place = np.where(present & fine, self.place + size + length, before)
        self._move(0)

    def _read_varint(self) -> tuple[Ints, Ints, NDArray[np.bool_]]:
        """The varint at the offset, its size, and whether it is a valid one of at most nine bytes."""
        words = self._words[self.place]
        ninth = self._raw[self.place + 8].astype(np.uint64)
        ends = ~words & _TOP_BITS
        lowest = ends & (~ends + _ONE)
        value = words & (lowest | (lowest - _ONE)) & ~_TOP_BITS
        for low, high, gap in _FOLDS:
            value = (value & low) | ((value & high) >> gap)
        size = (np.bitwise_count(lowest - _ONE) + np.uint8(1)).astype(np.int64) >> 3
        nine = ends == 0
        value = np.where(nine, value | ninth << _NINTH, value)
        size = np.where(nine, 9, size)
        shortest = (size == 1) | (value >> (7 * (size - 1)).astype(np.uint64) > 0)
        fine = shortest & (~nine | (ninth < 0x80))
        return value.view(np.int64), size, fine

    def _move(self, ahead: Ints | int) -> None:
        self.place = np.minimum(self.place + ahead, self._last)
