"""Decimals and floating-point numbers as TiDB stores them, and their texts, without loss in either direction.

FLOAT and DOUBLE have the shortest text that reads back as the same number (R-44). TiDB writes plain decimals, but an
exponent (`1.5e20`) from 1e15 up and below 1e-15. TiDB cuts the exponent form of a FLOAT to 6 digits; Binlake writes all
digits. DECIMAL has MySQL's binary form (tidb-binlog 1.12).
"""

from __future__ import annotations

import re
from decimal import Decimal
from math import isfinite

import numpy as np

from binlake.base.redaction import redact_value
from binlake.rows.codec.datum import compute_decimal_size, list_decimal_groups

_DOUBLE_LIMITS = (1e-15, 1e15)
# TiDB compares a FLOAT with the limits converted to float32, which differ from the doubles.
_FLOAT_LIMITS = (float(np.float32(1e-15)), float(np.float32(1e15)))
FLOAT_MAX = 3.4028235677973366e38
"""The largest double that rounds to a finite float32 value."""
_TEXT = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?")


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
