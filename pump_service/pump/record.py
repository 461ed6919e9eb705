"""Bytes of the value log, layout of the original (tidb-binlog 2.2); nothing here touches a file.

Record, little endian: magic u32, payload length u64, crc32-Castagnoli of the payload u32, payload.
Footer of a sealed file: greatest ts in it i64, end magic u32. A damaged stretch is left behind a byte at a
time until the next magic, so records after a torn tail are still found.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import google_crc32c

from binlake.errors import WireError

MAGIC = 0x823A56E8
END_MAGIC = 0x123AB922
HEADER = struct.Struct("<IQI")
FOOTER = struct.Struct("<qI")
_POINTER = struct.Struct("<Iq")
_MAGIC_BYTES = struct.pack("<I", MAGIC)
_WINDOW = 4 << 20

Read = Callable[[int, int], bytes]
"""`read(offset, size)`: the bytes there, fewer at the end of the file."""


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


class Found(NamedTuple):
    """What a scan meets: a record's payload at `offset`, or (payload None) `size` damaged bytes."""

    offset: int
    size: int
    payload: bytes | None


def encode_record(payload: bytes) -> bytes:
    """A record: header and payload."""
    return encode_header(payload) + payload


def encode_header(payload: bytes) -> bytes:
    """The 16 bytes before a payload."""
    return HEADER.pack(MAGIC, len(payload), google_crc32c.value(payload))


def encode_footer(max_ts: int) -> bytes:
    """The 12 bytes that seal a file whose greatest ts is `max_ts`."""
    return FOOTER.pack(max_ts, END_MAGIC)


def decode_footer(tail: bytes) -> int | None:
    """The greatest ts of a sealed file from its last 12 bytes; None when the file is not sealed."""
    if len(tail) < FOOTER.size:
        return None
    max_ts, magic = FOOTER.unpack(tail[-FOOTER.size :])
    return int(max_ts) if magic == END_MAGIC else None


def check_payload(header: bytes, payload: bytes, pointer: Pointer) -> None:
    """Raise WireError naming the place when magic, length or crc do not fit."""
    if len(header) < HEADER.size:
        raise _damaged("record header is cut off", pointer)
    magic, length, crc = HEADER.unpack(header)
    if magic != MAGIC:
        raise _damaged(f"no record starts here (magic {magic:#010x})", pointer)
    if not length or len(payload) != length:
        raise _damaged(f"record is cut off: {len(payload)} of {length} bytes", pointer)
    if google_crc32c.value(payload) != crc:
        raise _damaged("crc of the record does not fit", pointer)


def scan(read: Read, start: int, end: int) -> Iterator[Found]:
    """Every record between the offsets `start` and `end` in file order, and the damaged stretches between them.

    Memory is that of one window (4 MiB), or of one larger record.
    """
    at = base = start
    window = b""
    while at < end:
        if base + len(window) < min(at + HEADER.size, end):
            window, base = read(at, min(_WINDOW, end - at)), at
        size, crc = _header_at(window, at - base, end - at)
        if size > _WINDOW:
            body = read(at + HEADER.size, size - HEADER.size)  # as it is: a huge payload is not copied
        else:
            if base + len(window) < at + size:
                window, base = read(at, min(_WINDOW, end - at)), at
            body = window[at - base + HEADER.size : at - base + size]
        payload = body if size and len(body) == size - HEADER.size and google_crc32c.value(body) == crc else None
        if payload is None:
            size = _next_magic(read, at + 1, end) - at
        yield Found(at, size, payload)
        at += size


def _header_at(window: bytes, at: int, left: int) -> tuple[int, int]:
    """Size and crc of the record that begins at `at`, `left` bytes before the end; size 0 = none does."""
    if len(window) - at < HEADER.size:
        return 0, 0
    magic, length, crc = HEADER.unpack_from(window, at)
    # A header torn to its magic and zeros would pass for an empty payload, whose crc is 0: no binlog is empty.
    return (HEADER.size + length, crc) if magic == MAGIC and 0 < length <= left - HEADER.size else (0, 0)


def _next_magic(read: Read, at: int, end: int) -> int:
    while at < end:
        window = read(at, min(_WINDOW, end - at))
        found = window.find(_MAGIC_BYTES)
        if found >= 0:
            return at + found
        at += max(len(window) - len(_MAGIC_BYTES) + 1, 1)
    return end


def _damaged(message: str, pointer: Pointer) -> WireError:
    return WireError(message, where={"value_log": f"{pointer.fid:06d}.vlog", "offset": pointer.offset})
