"""Datums of TiDB's codec: one flag byte and a body (tidb-binlog 1.12), and the texts of decimals and floats in them.

Functions take (buffer, position) and return (value, next position); they check every length before they use it.
Truncated input raises IndexError, invalid input ValueError; `transaction` turns both into a WireError that names the
position.

FLOAT and DOUBLE have the shortest text that reads back as the same number (R-44). TiDB writes plain decimals, but an
exponent (`1.5e20`) from 1e15 up and below 1e-15. TiDB cuts the exponent form of a FLOAT to 6 digits; Binlake writes all
digits. DECIMAL has MySQL's binary form; its text is exact in both directions.
"""

from __future__ import annotations

import re
import struct
from decimal import Decimal
from functools import lru_cache
from math import isfinite

import numpy as np

from binlake.common.redaction import redact_value
from binlake.common.varint import read_uvarint, write_uvarint

NIL, BYTES, COMPACT, INT, UINT, FLOAT, DECIMAL, DURATION, VARINT, UVARINT, JSON = range(11)

_U64 = struct.Struct(">Q")
_SIGN = 1 << 63
_MASK = (1 << 64) - 1
_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_DOUBLE_LIMITS = (1e-15, 1e15)
# TiDB compares a FLOAT with the limits converted to float32, which differ from the doubles.
_FLOAT_LIMITS = (float(np.float32(1e-15)), float(np.float32(1e15)))
FLOAT_MAX = 3.4028235677973366e38
"""The largest double that rounds to a finite float32 value."""
_TEXT = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?")


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


def format_double(value: float) -> str:
    """The text of a DOUBLE; raises ValueError for NaN and infinity, which no column holds."""
    return _format_as_tidb(value, repr(value), _DOUBLE_LIMITS)


def format_float(value: float) -> str:
    """The text of a FLOAT: the shortest that reads back as the same float32."""
    if abs(value) > FLOAT_MAX:
        raise ValueError(f"{value!r} is not a FLOAT value")
    single = np.float32(value)
    return _format_as_tidb(float(single), str(single), _FLOAT_LIMITS)


def as_float32(text: str) -> float:
    """The number that a FLOAT column holds for `text`; raises ValueError for text that is not a number."""
    return float(np.float32(float(text)))


def _format_as_tidb(value: float, shortest: str, limits: tuple[float, float]) -> str:
    if not isfinite(value):
        raise ValueError(f"{value!r} is not a value of a column")
    size = abs(value)
    if size >= limits[1] or (size and size < limits[0]):
        return _format_exponent(shortest)
    if "e" in shortest:
        return format(Decimal(shortest), "f")
    return shortest[:-2] if shortest.endswith(".0") else shortest


def _format_exponent(shortest: str) -> str:
    sign, digits, exponent = Decimal(shortest).as_tuple()
    text = "".join(map(str, digits)).rstrip("0")
    power = int(exponent) + len(digits) - 1
    mantissa = f"{text[0]}.{text[1:]}" if len(text) > 1 else text
    return f"{'-' if sign else ''}{mantissa}e{power}"


def format_json_double(value: float) -> str:
    """A double inside JSON as text that reads back as a double: `5.0`, not `5`, which is an integer to every reader."""
    shown = show_json_double(value)
    return shown if "." in shown or "e" in shown else f"{shown}.0"


def show_json_double(value: float) -> str:
    """A double inside JSON: plain, but with an exponent from 1e21 up and below 1e-6 (as TiDB 7.5 prints it)."""
    if not isfinite(value):
        raise ValueError(f"{value!r} is not a JSON number")
    size = abs(value)
    if size and (size < 1e-6 or size >= 1e21):
        text = _format_exponent(repr(value))
        mantissa, _, power = text.partition("e")
        return text if power.startswith("-") else f"{mantissa}e+{power}"
    shortest = repr(value)
    if "e" in shortest:
        shortest = format(Decimal(shortest), "f")
    return shortest[:-2] if shortest.endswith(".0") else shortest


def read_decimal(data: bytes, pos: int, scale: int) -> tuple[str, int]:
    """(text with at least `scale` decimals, next position); `pos` is at the precision byte, after the flag."""
    precision, frac = data[pos], data[pos + 1]
    pos += 2
    size = compute_decimal_size(precision, frac)
    end = pos + size
    if end > len(data):
        raise ValueError("a decimal is cut short")
    bits = int.from_bytes(data[pos:end], "big")
    mask = (1 << size * 8) - 1
    negative = not bits >> (size * 8 - 1)
    # The first bit is flipped, and negative numbers have all bits inverted.
    body = ((bits ^ 1 << (size * 8 - 1)) ^ (mask if negative else 0)).to_bytes(size, "big")
    digits = _read_digits(body, precision, frac)
    return _format_decimal(negative, digits[: precision - frac], digits[precision - frac :], scale), end


def _read_digits(body: bytes, precision: int, frac: int) -> str:
    out, at = [], 0
    for size, count in list_decimal_groups(precision, frac):
        digits = str(int.from_bytes(body[at : at + size], "big")).rjust(count, "0")
        if len(digits) > count:
            raise ValueError("a decimal group holds too many digits")
        out.append(digits)
        at += size
    return "".join(out)


def _format_decimal(negative: bool, whole: str, frac: str, scale: int) -> str:
    whole, frac = whole.lstrip("0") or "0", frac.ljust(scale, "0")
    number = f"{whole}.{frac}" if frac else whole
    return f"-{number}" if negative and number.strip("0.") else number


def write_decimal(text: str, precision: int, frac: int) -> bytes:
    """Precision byte, scale byte and binary decimal of `text`; raises ValueError when it does not fit."""
    match = _TEXT.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        raise ValueError(f"{redact_value(text)} is not a decimal")
    whole, tail = (match[2] or "").lstrip("0"), (match[3] or "").ljust(frac, "0")
    if len(whole) > precision - frac or len(tail) > frac:
        raise ValueError(f"{redact_value(text)} does not fit DECIMAL({precision},{frac})")
    body = _pack(whole.rjust(precision - frac, "0") + tail, precision, frac)
    if match[1] == "-" and (whole + tail).strip("0"):
        body = bytes(byte ^ 0xFF for byte in body)
    return bytes((precision, frac, body[0] ^ 0x80)) + body[1:]


def _pack(digits: str, precision: int, frac: int) -> bytes:
    out, at = [], 0
    for size, count in list_decimal_groups(precision, frac):
        out.append(int(digits[at : at + count]).to_bytes(size, "big"))
        at += count
    return b"".join(out)
