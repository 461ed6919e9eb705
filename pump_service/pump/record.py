"""Bytes of the value log, layout of the original (tidb-binlog 2.2); nothing here touches a file.

Record, little endian: magic u32, payload length u64, crc32-Castagnoli of the payload u32, payload.
Footer of a sealed file: greatest ts in it i64, end magic u32. A damaged stretch is left behind a byte at a
time until the next magic, so records after a torn tail are still found.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import google_crc32c

from binlake.errors import WireError

MAGIC = 0x823A56E8
END_MAGIC = 0x123AB922
HEADER = struct.Struct("<IQI")
FOOTER = struct.Struct("<qI")
_POINTER = struct.Struct("<Iq")
_MAGIC_BYTES = struct.pack("<I", MAGIC)


@dataclass(frozen=True, slots=True, order=True)
class Pointer:
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


@dataclass(frozen=True, slots=True)
class Found:
    """What a scan meets: a record's payload at `offset`, or (payload None) `size` damaged bytes."""

    offset: int
    size: int
    payload: bytes | None


def encode_record(payload: bytes) -> bytes:
    """A record: header and payload."""
    return HEADER.pack(MAGIC, len(payload), google_crc32c.value(payload)) + payload


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
    if len(payload) != length:
        raise _damaged(f"record is cut off: {len(payload)} of {length} bytes", pointer)
    if google_crc32c.value(payload) != crc:
        raise _damaged("crc of the record does not fit", pointer)


def scan(data: mmap.mmap | bytes, start: int, end: int) -> Iterator[Found]:
    """Every record of `data[start:end]` in file order, and the damaged stretches between them."""
    at = start
    while at < end:
        payload = _record_at(data, at, end)
        if payload is None:
            following = data.find(_MAGIC_BYTES, at + 1, end)
            stop = end if following < 0 else following
            yield Found(at, stop - at, None)
            at = stop
        else:
            yield Found(at, HEADER.size + len(payload), payload)
            at += HEADER.size + len(payload)


def _record_at(data: mmap.mmap | bytes, at: int, end: int) -> bytes | None:
    body = at + HEADER.size
    if body > end:
        return None
    magic, length, crc = HEADER.unpack_from(data, at)
    if magic != MAGIC or body + length > end:
        return None
    payload = data[body : body + length]
    return payload if google_crc32c.value(payload) == crc else None


def _damaged(message: str, pointer: Pointer) -> WireError:
    return WireError(message, where={"value_log": f"{pointer.fid:06d}.vlog", "offset": pointer.offset})
