"""Unsigned LEB128 numbers: protobuf's varints, and those inside TiDB's datums and binary JSON."""

from __future__ import annotations

_MASK = (1 << 64) - 1


def read_uvarint(data: bytes, pos: int) -> tuple[int, int]:
    """An unsigned LEB128 number of at most 64 bits."""
    byte = data[pos]
    if byte < 0x80:
        return byte, pos + 1
    value, shift, pos = byte & 0x7F, 7, pos + 1
    while (byte := data[pos]) >= 0x80:
        value |= (byte & 0x7F) << shift
        shift += 7
        pos += 1
        if shift > 63:
            raise ValueError("a varint is longer than 64 bits")
    value |= byte << shift
    if value > _MASK:
        raise ValueError("a varint is longer than 64 bits")
    return value, pos + 1


def write_uvarint(value: int) -> bytes:
    """An unsigned LEB128 number."""
    # Most are short: creating the byte string in one step takes a third of the time.
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
