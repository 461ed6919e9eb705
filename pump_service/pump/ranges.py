"""Reads many records of the value log at once: whole stretches of the files, their heads as columns.

Nothing is taken on trust: a row is `plain` only when magic, length and layout are those of `heads.layout_of`; every
other row is left to the caller, who reads it by itself and gets the error, if there is one, from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pump_service.pump.record import HEADER, MAGIC, Pointer

NEAR_BYTES = 64 << 10  # a larger record, or hole, is not read along
_POINTERS = np.dtype([("fid", "<u4"), ("offset", "<i8")])
_HEADERS = np.dtype([("magic", "<u4"), ("length", "<u8"), ("crc", "<u4")])
_FAR = np.int64(1) << 62
_PAD = 64  # zero bytes behind the data, so that no look-ahead leaves it

Ints = NDArray[np.int64]
ReadBytes = Callable[[Pointer, int], bytes]


Row = tuple[bool, int, int, int, int, int, int, int]
"""(plain, begin, cut, end, crc, tp, start_ts, commit_ts): `data[begin:end]` is the payload, `cut` as in heads.Layout.

Only if `plain` is any of it sure, and the crc is still to be checked.
"""


class Block(NamedTuple):
    """The bytes of some stretches, and a row for each of the first `size` pointers that were asked for."""

    data: bytes
    size: int
    rows: Iterator[Row]


def read_block(pointers: Sequence[bytes], read: ReadBytes, limit: int) -> Block:
    """Read the records at `pointers` (as in the index), the first ones up to some `limit` bytes but at least one."""
    places = np.frombuffer(b"".join(pointers), _POINTERS)
    fids, offsets = places["fid"].astype(np.int64), places["offset"].astype(np.int64)
    sizes = _sizes(fids, offsets, read)
    count = max(1, int(np.searchsorted(np.cumsum(sizes), limit, side="right")))
    data, at = _stretches(fids[:count], offsets[:count], sizes[:count], read)
    return Block(data, count, _rows(data, at))


def _sizes(fids: Ints, offsets: Ints, read: ReadBytes) -> Ints:
    """For each record the bytes to its neighbour, or its own size where that is far."""
    order = np.lexsort((offsets, fids))
    ahead = np.full(len(order), _FAR, np.int64)
    same = fids[order][1:] == fids[order][:-1]
    ahead[:-1][same] = np.diff(offsets[order])[same]
    sizes = np.empty_like(ahead)
    sizes[order] = ahead
    for one in np.nonzero(sizes > NEAR_BYTES)[0]:
        header = read(Pointer(int(fids[one]), int(offsets[one])), HEADER.size)
        length = HEADER.unpack(header)[1] if len(header) == HEADER.size else 0
        sizes[one] = HEADER.size + min(length, int(sizes[one]))
    return sizes


def _stretches(fids: Ints, offsets: Ints, sizes: Ints, read: ReadBytes) -> tuple[bytes, Ints]:
    """The bytes of the records that are not large, and where each begins in them (-1: not there)."""
    at = np.full(len(fids), -1, np.int64)
    order = np.lexsort((offsets, fids))
    order = order[sizes[order] <= NEAR_BYTES]
    if not len(order):
        return bytes(_PAD), at
    fid, begin = fids[order], offsets[order]
    end = begin + sizes[order]
    breaks = np.nonzero((fid[1:] != fid[:-1]) | (begin[1:] - end[:-1] > NEAR_BYTES))[0] + 1
    pieces, base = list[bytes](), 0
    for first, last in zip([0, *breaks.tolist()], [*breaks.tolist(), len(order)], strict=True):
        start = int(begin[first])
        piece = read(Pointer(int(fid[first]), start), int(end[first:last].max()) - start)
        at[order[first:last]] = begin[first:last] - start + base
        pieces.append(piece)
        base += len(piece)
    return b"".join((*pieces, bytes(_PAD))), at


def _rows(data: bytes, at: Ints) -> Iterator[Row]:
    raw = np.frombuffer(data, np.uint8)
    safe = np.clip(at, 0, len(raw) - _PAD)
    header = raw[safe[:, None] + np.arange(HEADER.size)].copy().view(_HEADERS).ravel()
    begin = safe + HEADER.size
    length = header["length"].astype(np.int64)
    end = begin + length
    plain = (at >= 0) & (header["magic"] == MAGIC) & (length > 0) & (end <= len(raw) - _PAD)
    look = _Look(raw, begin, plain)
    look.tag(0x08)
    tp = look.byte(3)
    look.tag(0x10)
    start_ts = look.varint(10)
    look.tag(0x18)
    commit_ts = look.varint(10)
    look.field(0x22)
    cut = look.place
    look.field(0x2A)
    look.tag(0x38)
    look.byte(0x80)
    look.tag(0x40)
    look.byte(0x80)
    plain = look.plain & (look.place == end)
    columns = (plain, begin, cut, end, header["crc"], tp, start_ts, commit_ts)
    return zip(*(column.tolist() for column in columns), strict=True)


class _Look:
    """A place in each row that moves on field by field; `plain` falls where a row is not as expected."""

    def __init__(self, raw: NDArray[np.uint8], place: Ints, plain: NDArray[np.bool_]) -> None:
        self._raw, self._last = raw, len(raw) - 1
        self.place, self.plain = place, plain

    def tag(self, tag: int) -> None:
        """The byte `tag`."""
        self.plain &= self._here() == tag
        self.place = self.place + 1

    def byte(self, below: int) -> Ints:
        """A one-byte varint less than `below`."""
        value = self._here().astype(np.int64)
        self.plain &= value < below
        self.place = self.place + 1
        return value

    def varint(self, width: int) -> Ints:
        """A varint of at most `width` bytes in its shortest form, as a signed number."""
        value = np.zeros(len(self.place), np.uint64)
        going = np.ones(len(self.place), np.bool_)
        size = np.zeros(len(self.place), np.int64)
        for step in range(width):
            byte = self._here(size)
            value[going] |= (byte[going] & 0x7F).astype(np.uint64) << np.uint64(7 * step)
            ends = going & (byte < 0x80)
            self.plain &= ~(ends & (byte == 0) & (step > 0))
            if step == 9:
                self.plain &= ~(going & (byte > 1))
            size += going
            going = going & ~ends
            if not going.any():
                break
        self.plain &= ~going
        self.place = self.place + size
        return value.view(np.int64)

    def field(self, tag: int) -> None:
        """A field of bytes, where it is present."""
        present = self._here() == tag
        before = self.place
        self.place = self.place + 1
        fine = self.plain.copy()
        length = self.varint(5)
        self.plain = np.where(present, self.plain, fine)
        self.place = np.where(present, self.place + length, before)

    def _here(self, ahead: Ints | int = 0) -> NDArray[np.uint8]:
        found: NDArray[np.uint8] = self._raw[np.clip(self.place + ahead, 0, self._last)]
        return found
