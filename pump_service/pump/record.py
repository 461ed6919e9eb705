"""The bytes of the value log; nothing here touches a file. All little endian, crc is crc32-Castagnoli.

A file begins with a head: magic, file id, the file's marker (8 random bytes), the end of the previous file, crc. A
record: marker u64, payload length u32, crc u32, `back` u32, payload. `back` is the distance back to the offset where
the record's write began; that write came after a successful sync of everything before it. The crc is that of the
payload, seeded with the marker, the record's offset and `back`. Footer of a sealed file: the marker inverted, greatest
ts in the file i64, crc.

Writers do not know the marker, so nothing in a payload can pass for a record or a footer; and a record is valid only at
its own offset in its own file. In the original's format (tidb-binlog 2.2: no head; magic u32, length u64, crc u32;
footer of greatest ts and end magic) neither holds: such files are read, but only a footer is ever added to them.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import google_crc32c

from binlake.errors import WireError

MAGIC = 0x823A56E8
END_MAGIC = 0x123AB922
OLD_RECORD = struct.Struct("<IQI")
OLD_FOOTER = struct.Struct("<qI")

HEAD_MAGIC = b"BLvlog\0\x02"
HEAD = struct.Struct("<8sIQQI")
RECORD = struct.Struct("<QIII")
FOOTER = struct.Struct("<QqI")
_RECORD_BYTES = RECORD.size

_POINTER = struct.Struct("<Iq")
_WINDOW = 512 << 10  # bytes read, scanned and indexed while they are in the processor's cache
_LOOKS = 4  # how many times, at most, the bytes of a stretch are read in search of a record
_U32 = (1 << 32) - 1
_U64 = (1 << 64) - 1
BACK_FACTOR = 0x9E3779B1  # any odd number: if an offset and its `back` differ by one bit, the seed differs

Read = Callable[[int, int], bytes]
"""`read(offset, size)`: the bytes at that offset; fewer at the end of the file."""


class Pointer(NamedTuple):
    """Where a record starts: file number and byte offset. In the index: fid u32 + offset i64, little endian."""

    fid: int
    offset: int

    def to_bytes(self) -> bytes:
        """The 12 bytes of the index."""
        return _POINTER.pack(self.fid, self.offset)

    @classmethod
    def from_bytes(cls, data: bytes) -> Pointer:
        """Read the 12 bytes of the index."""
        return cls(*_POINTER.unpack(data))


class RecordHeader(NamedTuple):
    """The fields of a record's header, and the seed of its crc; length 0 = no record begins there."""

    length: int
    crc: int
    back: int
    seed: int


_NONE = RecordHeader(0, 0, 0, 0)


class RecordFrame:
    """How the records of file `fid` are framed; without a marker in the original's format.

    `previous_end`: the offset that the records of the previous file had reached, at least, when this file was created.
    """

    __slots__ = ("begin", "fid", "footer_bytes", "header_bytes", "marker", "needle", "previous_end", "salt")

    def __init__(self, fid: int, marker: int = 0, previous_end: int = 0) -> None:
        self.fid = fid
        self.previous_end = previous_end
        self.marker = marker or MAGIC
        self.salt = marker >> 32
        self.begin = HEAD.size if marker else 0
        self.header_bytes = RECORD.size if marker else OLD_RECORD.size
        self.footer_bytes = FOOTER.size if marker else OLD_FOOTER.size
        self.needle = struct.pack("<Q" if marker else "<I", self.marker)

    @property
    def old(self) -> bool:
        """Whether this is the original's format."""
        return not self.begin

    def decode_header(self, data: bytes, at: int, offset: int) -> RecordHeader:
        """The header at `data[at]`, which is at `offset` of the file."""
        if len(data) - at < self.header_bytes:
            return _NONE
        if self.old:
            magic, length, crc = OLD_RECORD.unpack_from(data, at)
            return RecordHeader(length, crc, 0, 0) if magic == MAGIC else _NONE
        marker, length, crc, back = RECORD.unpack_from(data, at)
        return RecordHeader(length, crc, back, self.compute_seed(offset, back)) if marker == self.marker else _NONE

    def compute_seed(self, offset: int, back: int) -> int:
        """The seed of the crc of the record at `offset`."""
        return (self.salt + offset + back * BACK_FACTOR) & _U32

    def encode_header(self, payload: bytes, offset: int, back: int) -> bytes:
        """The header of a payload to be written at `offset`, in a write that began `back` bytes before."""
        if not self.begin:
            return OLD_RECORD.pack(MAGIC, len(payload), extend_crc(0, payload))
        seed = (self.salt + offset + back * BACK_FACTOR) & _U32
        return RECORD.pack(self.marker, len(payload), extend_crc(seed, payload), back)

    def encode_footer(self, max_ts: int, offset: int) -> bytes:
        """The bytes that seal a file whose greatest ts is `max_ts` at `offset`, its end."""
        if self.old:
            return OLD_FOOTER.pack(max_ts, END_MAGIC)
        body = FOOTER.pack(self.marker ^ _U64, max_ts, 0)[:-4]
        return body + struct.pack("<I", google_crc32c.extend(self.compute_seed(offset, 0), body))

    def decode_footer(self, tail: bytes, size: int) -> int | None:
        """The greatest ts of a sealed file of `size` bytes, read from its last bytes; None when it is not sealed.

        In the original's format, the end of a payload may look like a footer.
        """
        if len(tail) < self.footer_bytes or size < self.begin + self.footer_bytes:
            return None
        tail = tail[-self.footer_bytes :]
        if self.old:
            max_ts, magic = OLD_FOOTER.unpack(tail)
            return int(max_ts) if magic == END_MAGIC else None
        max_ts = FOOTER.unpack(tail)[1]
        return int(max_ts) if tail == self.encode_footer(max_ts, size - self.footer_bytes) else None

    def check(self, header: bytes, payload: bytes, offset: int) -> None:
        """Raise WireError with the position when magic, length or crc do not fit."""
        expected = self.decode_header(header, 0, offset)
        if len(header) < self.header_bytes:
            raise self._build_damage_error("the record's header is cut off", offset)
        if not expected.length:
            raise self._build_damage_error(f"no record starts here ({header[:8].hex()})", offset)
        if len(payload) != expected.length:
            raise self._build_damage_error(f"record is cut off: {len(payload)} of {expected.length} bytes", offset)
        if google_crc32c.extend(expected.seed, payload) != expected.crc:
            raise self.build_crc_error(offset)

    def build_crc_error(self, offset: int) -> WireError:
        """The error for a record at `offset` whose bytes are not those that were written."""
        return self._build_damage_error("the record's crc does not match", offset)

    def build_where(self, offset: int) -> dict[str, object]:
        """`offset` of this file, for the `where` of an error."""
        return {"value_log": f"{self.fid:06d}.vlog", "offset": offset}

    def _build_damage_error(self, message: str, offset: int) -> WireError:
        return WireError(message, where=self.build_where(offset))


def extend_crc(crc: int, payload: bytes) -> int:
    """The crc after the bytes of `payload`, which may be a view."""
    if isinstance(payload, bytes):
        return int(google_crc32c.extend(crc, payload))
    for begin in range(0, len(payload), _WINDOW):
        crc = int(google_crc32c.extend(crc, bytes(payload[begin : begin + _WINDOW])))
    return crc


def build_head(fid: int, previous_end: int) -> tuple[bytes, RecordFrame]:
    """The head of a new file, and how its records are framed."""
    marker = secrets.randbits(63) | 1 << 63
    body = HEAD.pack(HEAD_MAGIC, fid, marker, previous_end, 0)[:-4]
    return body + struct.pack("<I", google_crc32c.value(body)), RecordFrame(fid, marker, previous_end)


def frame_of(fid: int, head: bytes) -> RecordFrame | None:
    """How file `fid`, which begins with `head`, is framed; None if the head is not valid."""
    if len(head) >= HEAD.size and head.startswith(HEAD_MAGIC):
        _, file_id, marker, previous_end, crc = HEAD.unpack_from(head)
        is_intact = file_id == fid and crc == google_crc32c.value(head[: HEAD.size - 4])
        return RecordFrame(fid, marker, previous_end) if is_intact else None
    return RecordFrame(fid) if head.startswith(struct.pack("<I", MAGIC)) else None


class Stretch(NamedTuple):
    """Whole records in file order, each as (offset in the file, begin, end); the payload is `data[begin:end]`."""

    data: bytes
    places: list[tuple[int, int, int]]


class Walk:
    """Iterates over the records between the offsets `start` and `end`, up to the first incomplete one.

    `at`: the offset of that record, or `end` if all were complete. `synced`: everything before this offset was synced
    when the last record was written (`start` while nothing is known). `accepted`: damage at these offsets, accepted by
    an operator, is skipped if a record follows. Uses memory for one window (512 KiB), or for one larger record.
    """

    def __init__(
        self, frame: RecordFrame, read: Read, start: int, end: int, accepted: Collection[Pointer] = frozenset()
    ) -> None:
        self.at = self.synced = start
        self.passed_over: list[tuple[int, int]] = []
        self._frame = frame
        self._read = read
        self._end = end
        self._accepted = {place.offset for place in accepted if place.fid == frame.fid}

    def __iter__(self) -> Iterator[Stretch]:
        while self.at < self._end:
            window = self._read(self.at, min(_WINDOW, self._end - self.at))
            places = self._read_complete(window)
            if places:
                yield Stretch(window, places)
                continue
            payload = self._read_large(window)
            if payload:
                yield Stretch(payload, [(self.at - self._frame.header_bytes - len(payload), 0, len(payload))])
            elif not self._skip_damage():
                return

    def _skip_damage(self) -> bool:
        record = (
            find_next_record(self._frame, self._read, self.at + 1, self._end) if self.at in self._accepted else None
        )
        if record is None:
            return False
        self.passed_over.append((self.at, record[0] - self.at))
        self.at = record[0]
        return True

    def _read_complete(self, window: bytes) -> list[tuple[int, int, int]]:
        if self._frame.old:
            return self._read_complete_old(window)
        frame, base, at, last = self._frame, self.at, 0, 0
        places: list[tuple[int, int, int]] = []
        # Inlined, because a start may read a hundred million records.
        unpack, crc_of, marker, size = RECORD.unpack_from, google_crc32c.extend, frame.marker, len(window)
        seed = frame.salt + base
        while at + _RECORD_BYTES <= size:
            start_marker, length, crc, back = unpack(window, at)
            begin = at + _RECORD_BYTES
            end = begin + length
            if start_marker != marker or end > size or not length:
                break
            if crc_of((seed + at + back * BACK_FACTOR) & _U32, window[begin:end]) != crc:
                break
            places.append((base + at, begin, end))
            last = base + at - back
            at = end
        self.synced = max(self.synced, last)
        self.at = base + at
        return places

    def _read_complete_old(self, window: bytes) -> list[tuple[int, int, int]]:
        frame, base, at = self._frame, self.at, 0
        places: list[tuple[int, int, int]] = []
        while True:
            header = frame.decode_header(window, at, base + at)
            begin = at + frame.header_bytes
            end = begin + header.length
            if not header.length or end > len(window) or google_crc32c.value(window[begin:end]) != header.crc:
                break
            places.append((base + at, begin, end))
            at = end
        self.at = base + at
        return places

    def _read_large(self, window: bytes) -> bytes:
        """The payload of a record that is larger than the window; empty if no complete record begins there."""
        length, crc, back, seed = self._frame.decode_header(window, 0, self.at)
        size = self._frame.header_bytes + length
        if not length or size <= len(window) or self.at + size > self._end:
            return b""
        payload = self._read(self.at + self._frame.header_bytes, length)  # not copied, as a payload may be huge
        if len(payload) != length or google_crc32c.extend(seed, payload) != crc:
            return b""
        if not self._frame.old:
            self.synced = max(self.synced, self.at - back)
        self.at += size
        return payload


def find_next_record(frame: RecordFrame, read: Read, start: int, end: int) -> tuple[int, int] | None:
    """The first complete record at or after `start`, as (its offset, where its write began); None when there is none
    before `end`.

    A match is certain only with a marker. In the original's format a payload may contain bytes that look like a record,
    or so many of them that the search would not end: then WireError.
    """
    at, left = start, _LOOKS * (end - start) + _WINDOW
    while at < end:
        window = read(at, min(_WINDOW, end - at))
        place = window.find(frame.needle)
        while place >= 0:
            offset = at + place
            header = frame.decode_header(read(offset, frame.header_bytes), 0, offset)
            if 0 < header.length <= end - offset - frame.header_bytes:
                left -= header.length
                if left < 0:
                    raise WireError("too much of the file looks like a record", where=frame.build_where(offset))
                payload = read(offset + frame.header_bytes, header.length)
                if google_crc32c.extend(header.seed, payload) == header.crc:
                    return offset, offset - header.back
            place = window.find(frame.needle, place + 1)
        at += max(len(window) - len(frame.needle) + 1, 1)
    return None
