"""MySQL's binary decimal and its text, exact in both directions (tidb-binlog 1.12)."""

from __future__ import annotations

import re

from binlake.base.redaction import redact_value
from binlake.rows.codec.datum import compute_decimal_size, list_decimal_groups

_TEXT = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?")


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
