"""Canonical texts after a column changed its type, as the source converts stored values at MODIFY COLUMN.

The source logs no row change for a MODIFY, so the mirror converts. What has no plain conversion keeps its text, which
then lands in `_text` when the new type cannot hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal, InvalidOperation

from binlake.codec.floats import double_text, float_text
from binlake.codec.writers import decimal_layout
from binlake.schema import ColumnInfo
from binlake.schema import mysqltypes as t

_NUMBERS = t.INTEGERS | {t.NEWDECIMAL, t.FLOAT, t.DOUBLE, t.YEAR}


def text_form(column: ColumnInfo) -> tuple[object, ...]:
    """What decides how a value of `column` is written: equal forms keep their texts."""
    width = column.flen if column.tp in (t.BIT, t.NEWDECIMAL) or (column.tp == t.STRING and column.is_binary) else 0
    digits = column.decimal if column.tp == t.NEWDECIMAL or column.tp in t.MOMENTS | {t.DURATION} else 0
    kind = "text" if column.tp in t.STRINGS and not width else column.tp
    return kind, column.unsigned, column.is_binary, width, digits


def recast(source: ColumnInfo, target: ColumnInfo, texts: Sequence[str | None]) -> list[str | None]:
    """`texts` of column `source` as texts of column `target`."""
    if text_form(source) == text_form(target):
        return list(texts)
    convert = _conversion(source, target)
    return [None if text is None else _tried(convert, text) for text in texts]


def _tried(convert: Callable[[str], str], text: str) -> str:
    try:
        return convert(text)
    except (ValueError, InvalidOperation):
        return text


def _conversion(source: ColumnInfo, target: ColumnInfo) -> Callable[[str], str]:
    if source.is_binary != target.is_binary:
        return _from_binary(source) if source.is_binary else _to_binary(target)
    if target.is_binary:
        return _to_binary(target, lambda text: bytes.fromhex(text))
    if target.tp in _NUMBERS:
        return _to_number(source, target)
    if target.tp in t.MOMENTS:
        return lambda text: _moment(text, target.fsp)
    return (lambda text: text[:10]) if target.tp in t.DATES else str


def _from_binary(source: ColumnInfo) -> Callable[[str], str]:
    if source.tp == t.BIT:
        return lambda text: str(int(text, 16))
    return lambda text: bytes.fromhex(text).decode()


def _to_binary(target: ColumnInfo, read: Callable[[str], bytes] = str.encode) -> Callable[[str], str]:
    width = max(target.flen, 0) if target.tp == t.STRING else 0
    if target.tp == t.BIT:
        digits = (max(target.flen, 1) + 7) // 8 * 2
        return lambda text: f"{int(text) if read is str.encode else int(text, 16):0{digits}X}"
    return lambda text: read(text).ljust(width, b"\0").hex().upper()


def _to_number(source: ColumnInfo, target: ColumnInfo) -> Callable[[str], str]:
    if target.tp == t.FLOAT:
        return lambda text: float_text(float(text))
    if target.tp == t.DOUBLE:
        return lambda text: double_text(float(text))
    scale = decimal_layout(target)[1] if target.tp == t.NEWDECIMAL else 0
    step = Decimal(1).scaleb(-scale)
    # A FLOAT or DOUBLE becomes an integer by C's rint, so 6.5 is 6; a DECIMAL or a text of 6.5 is 7.
    even = source.tp in (t.FLOAT, t.DOUBLE) and target.tp != t.NEWDECIMAL
    rounding = ROUND_HALF_EVEN if even else ROUND_HALF_UP
    return lambda text: format(Decimal(text.strip()).quantize(step, rounding), "f")


def _moment(text: str, fsp: int) -> str:
    if text.startswith("0000") or "-00" in text:
        return text
    whole, _, fraction = (text if len(text) > 10 else f"{text} 00:00:00").partition(".")
    value = datetime.fromisoformat(f"{whole}.{fraction:0<6}")
    step = 10 ** (6 - fsp)
    value += timedelta(microseconds=(value.microsecond + step // 2) // step * step - value.microsecond)
    digits = f".{value.microsecond:06d}"[: fsp + 1] if fsp else ""
    return f"{value.year:04d}-{value:%m-%d %H:%M:%S}{digits}"
