"""Datums of TiDB's codec: one flag byte and a body (tidb-binlog 1.12). Readers check every length before they use it.

Functions take (buffer, position) and return (value, next position). Truncated input raises IndexError, invalid input
ValueError; binlake.rows.codec.transaction turns both into a WireError that names the position.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from binlake.base.varint import read_uvarint, write_uvarint

NIL, BYTES, COMPACT, INT, UINT, FLOAT, DECIMAL, DURATION, VARINT, UVARINT, JSON = range(11)

_U64 = struct.Struct(">Q")
_SIGN = 1 << 63
_MASK = (1 << 64) - 1


def read_varint(data: bytes, pos: int) -> tuple[int, int]:
    """A zig-zag number of at most 64 bits."""
    value, pos = read_uvarint(data, pos)
    return (value >> 1) ^ -(value & 1), pos


def read_compact(data: bytes, pos: int) -> tuple[bytes, int]:
    """Bytes after a zig-zag length; `pos` is the position after the flag."""
    size, pos = read_varint(data, pos)
    return take(data, pos, size)


def read_comparable(data: bytes, pos: int) -> tuple[bytes, int]:
    """Bytes in groups of 8 with a marker (flag 1); `pos` is the position after the flag."""
    parts = []
    while True:
        marker = data[pos + 8]
        pad = 0xFF - marker
        if pad > 8:
            raise ValueError("a comparable byte group has a bad marker")
        parts.append(data[pos : pos + 8 - pad])
        pos += 9
        if pad:
            return b"".join(parts), pos


def read_u64(data: bytes, pos: int) -> tuple[int, int]:
    """8 bytes, big endian."""
    body, pos = take(data, pos, 8)
    return _U64.unpack(body)[0], pos


def read_i64(data: bytes, pos: int) -> tuple[int, int]:
    """8 bytes, big endian, sign bit flipped."""
    value, pos = read_u64(data, pos)
    return value - _SIGN, pos


def read_float(data: bytes, pos: int) -> tuple[float, int]:
    """A float64 in its comparable form."""
    bits, pos = read_u64(data, pos)
    bits = bits & ~_SIGN if bits & _SIGN else ~bits & _MASK
    return struct.unpack(">d", _U64.pack(bits))[0], pos


_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def compute_decimal_size(precision: int, frac: int) -> int:
    """The number of bytes of a binary decimal; raises ValueError for an impossible layout."""
    whole = precision - frac
    if whole < 0 or precision > 81 or precision == 0:
        raise ValueError(f"a decimal cannot have precision {precision} and scale {frac}")
    return whole // 9 * 4 + _DIGIT_BYTES[whole % 9] + frac // 9 * 4 + _DIGIT_BYTES[frac % 9]


@lru_cache(maxsize=4096)
def list_decimal_groups(precision: int, frac: int) -> tuple[tuple[int, int], ...]:
    """(bytes, digits) of each group of a binary decimal, from the left."""
    whole = precision - frac
    head = ((_DIGIT_BYTES[whole % 9], whole % 9),) if whole % 9 else ()
    tail = ((_DIGIT_BYTES[frac % 9], frac % 9),) if frac % 9 else ()
    return (*head, *((4, 9),) * (whole // 9 + frac // 9), *tail)


def write_varint(value: int) -> bytes:
    """A zig-zag number."""
    return write_uvarint(value << 1 if value >= 0 else ~(value << 1))


def write_int(value: int) -> bytes:
    """The datum of a signed integer (flag 8)."""
    return b"\x08" + write_varint(value)


def write_uint(value: int) -> bytes:
    """The datum of an unsigned integer, packed time, enum, set or bit (flag 9)."""
    return b"\x09" + write_uvarint(value)


def write_bytes(value: bytes) -> bytes:
    """The datum of a string (flag 2)."""
    return b"\x02" + write_varint(len(value)) + value


def write_float(value: float) -> bytes:
    """The datum of a FLOAT or DOUBLE (flag 5)."""
    bits: int = _U64.unpack(struct.pack(">d", value))[0]
    return b"\x05" + _U64.pack(~bits & _MASK if bits & _SIGN else bits | _SIGN)


def write_duration(nanoseconds: int) -> bytes:
    """The datum of a TIME in a handle (flag 7); in rows it is an integer."""
    return b"\x07" + _U64.pack(nanoseconds + _SIGN)


def take(data: bytes, pos: int, size: int) -> tuple[bytes, int]:
    """`size` bytes at `pos`; raises ValueError when fewer are left."""
    end = pos + size
    if size < 0 or end > len(data):
        raise ValueError("a datum is cut short")
    return data[pos:end], end
