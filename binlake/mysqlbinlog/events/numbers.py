"""Numbers and strings inside events: each is read at an offset and returned with the offset after it."""

from __future__ import annotations

from binlake.errors import WireError


def read_length(data: bytes, at: int) -> tuple[int, int]:
    """MySQL's length-encoded integer: 1, 3, 4 or 9 bytes. Raises WireError."""
    first = data[at]
    if first < 251:
        return first, at + 1
    width = {252: 2, 253: 3, 254: 8}.get(first)
    if width is None:
        raise WireError(f"{first} cannot begin a length")
    return int.from_bytes(data[at + 1 : at + 1 + width], "little"), at + 1 + width


def read_text(data: bytes, at: int) -> tuple[bytes, int]:
    """A string after its length-encoded length. Raises WireError."""
    size, at = read_length(data, at)
    if at + size > len(data):
        raise WireError("a string ends after the event that contains it")
    return data[at : at + size], at + size


def read_varlen(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned integer of MySQL's serialization library: trailing ones of the first byte count further bytes."""
    more = 0
    while more < 8 and data[at] >> more & 1:
        more += 1
    if more == 8:
        return int.from_bytes(data[at + 1 : at + 9], "little"), at + 9
    return int.from_bytes(data[at : at + more + 1], "little") >> (more + 1), at + more + 1


def read_signed_varlen(data: bytes, at: int) -> tuple[int, int]:
    """A signed one: its lowest bit is the sign, a negative number is stored as -(n + 1)."""
    number, at = read_varlen(data, at)
    return (~(number >> 1) if number & 1 else number >> 1), at
