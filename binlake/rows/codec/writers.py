"""Write canonical texts as datums, column by column (the inverse of the readers), and give the texts of defaults."""

from __future__ import annotations

from functools import lru_cache
from math import isfinite

from binlake.base.redaction import redact_value
from binlake.errors import SchemaError
from binlake.rows.codec import datum as d
from binlake.rows.codec.casts import CastMoment, cast_text
from binlake.rows.codec.casttimes import round_moment
from binlake.rows.codec.decimals import write_decimal
from binlake.rows.codec.floats import as_float32
from binlake.rows.codec.jsons import write_json
from binlake.rows.codec.temporal import pack_moment, parse_duration
from binlake.rows.codec.values import format_bit, name_error_value, read_text
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.info import ColumnInfo

_NUMERIC = t.INTEGERS | {t.NEWDECIMAL, t.FLOAT, t.DOUBLE, t.YEAR}
_WHOLE_SECONDS = 19
_WRITTEN = ColumnInfo(
    id=0, name="", offset=0, tp=t.VARCHAR, flag=0, flen=-1, decimal=-1, charset="utf8mb4", collate="utf8mb4_bin",
    elems=(), state=5, default=None, default_bit=None, default_is_expr=False, origin_default=None,
    origin_default_bit=None, generated_expr="", generated_stored=False, hidden=False, comment="",
)  # fmt: skip
"""A text column that stands for the text of a default."""
_BITS = {t.TINY: 8, t.SHORT: 16, t.INT24: 24, t.LONG: 32, t.LONGLONG: 64}


def write_text(column: ColumnInfo, text: str | None) -> bytes:
    """The datum of a canonical text; raises ValueError if the text is not valid for the column's type."""
    if text is None:
        return b"\x00"
    if column.tp in t.STRINGS:
        return d.write_bytes(bytes.fromhex(text) if column.is_binary else text.encode())
    if column.tp == t.NEWDECIMAL:
        return b"\x06" + write_decimal(text, *derive_decimal_layout(column))
    if column.tp == t.JSON:
        return b"\x0a" + write_json(text)
    if column.tp in (t.FLOAT, t.DOUBLE):
        return d.write_float(_parse_float(column, text))
    number = parse_flat_number(column, text)
    signed = (column.tp in t.INTEGERS and not column.unsigned) or column.tp in (t.DURATION, t.YEAR)
    return d.write_int(number) if signed else d.write_uint(number)


def derive_decimal_layout(column: ColumnInfo) -> tuple[int, int]:
    """(precision, scale) of a DECIMAL column; MySQL's default is (10, 0)."""
    return (column.flen if column.flen > 0 else 10), max(column.decimal, 0)


def parse_flat_number(column: ColumnInfo, text: str) -> int:
    """The number that TiDB stores for an integer, temporal, ENUM, SET or BIT text."""
    if column.tp in t.INTEGERS or column.tp == t.YEAR:
        return _parse_integer(column, text)
    if column.tp in t.MOMENTS or column.tp in t.DATES:
        return pack_moment(text)
    if column.tp == t.DURATION:
        return parse_duration(text)
    if column.tp == t.ENUM:
        return 0 if text == name_error_value(column.elems) else _find_position(column, text) + 1
    if column.tp == t.SET:
        return sum({1 << _find_position(column, name) for name in text.split(",")}) if text else 0
    if column.tp == t.BIT:
        return _parse_bits(column, text)
    raise ValueError(f"the type of column {column.name} ({column.tp}) is not a number")


def _parse_integer(column: ColumnInfo, text: str) -> int:
    number, bits = int(text), _BITS.get(column.tp, 64)
    low, high = (0, 1 << bits) if column.unsigned else (-1 << bits - 1, 1 << bits - 1)
    if column.tp == t.YEAR:
        low, high = 0, 2156
    if not low <= number < high:
        raise ValueError(f"{text} is out of range for column {column.name}")
    return number


def _parse_float(column: ColumnInfo, text: str) -> float:
    number = as_float32(text) if column.tp == t.FLOAT else float(text)
    if not isfinite(number):
        raise ValueError(f"{text} is out of range for column {column.name}")
    return number


def _parse_bits(column: ColumnInfo, text: str) -> int:
    number = int(text, 16)
    format_bit(number, column.flen)
    return number


def _find_position(column: ColumnInfo, name: str) -> int:
    if name not in column.elems:
        raise ValueError(f"{redact_value(name)} is not an element of column {column.name}")
    return column.elems.index(name)


@lru_cache(maxsize=4096)
def derive_filled_text(column: ColumnInfo) -> str | None:
    """The value of `column` in a row that lacks it: the origin default, else NULL, else the type's zero (tidb-binlog
    5.5).

    Raises SchemaError naming the column if the origin default is not a value of its type.
    """
    try:
        if column.tp == t.BIT and column.origin_default_bit is not None:
            return format_bit(int.from_bytes(column.origin_default_bit, "big"), column.flen)
        if column.tp in t.STRINGS and column.is_binary and column.origin_default_bit is not None:
            # Only a feeder states bytes here: TiDB stores U+FFFD for those that are not UTF-8.
            return _pad_bytes(column, column.origin_default_bit)
        if column.origin_default is not None:
            return _convert_default(column, column.origin_default)
    except ValueError as error:
        raise SchemaError(
            f"the origin default of a column cannot be read: {error}",
            where={"column": column.name, "default": column.origin_default},
        ) from error
    return format_zero(column) if column.not_null else None


def _convert_default(column: ColumnInfo, default: str) -> str | None:
    if column.tp in t.STRINGS:
        return _convert_default_string(column, default)
    if column.tp == t.BIT:
        return format_bit(int.from_bytes(default.encode(), "big"), column.flen)
    if column.tp in _NUMERIC:
        # TiDB stores some defaults as they were written, `1.555` or `1e2`, and converts them when it fills a row.
        return cast_text(_WRITTEN, column, default, CastMoment())
    if column.tp in t.MOMENTS and len(default) > _WHOLE_SECONDS:
        default = round_moment(default, column.fsp)
    return read_text(column, write_text(column, default), 0)[0]


def _convert_default_string(column: ColumnInfo, default: str) -> str:
    if not column.is_binary:
        return default.rstrip(" ") if column.tp == t.STRING else default
    return _pad_bytes(column, default.encode())


def _pad_bytes(column: ColumnInfo, value: bytes) -> str:
    width = column.flen if column.tp == t.STRING else 0
    return value.ljust(width, b"\0").hex().upper()


def format_zero(column: ColumnInfo) -> str:
    """The zero value of a column's type: 0, "", the zero date, the first element of an ENUM."""
    if column.tp == t.ENUM:
        return column.elems[0] if column.elems else ""
    if column.tp == t.JSON:
        return "null"
    if column.tp in t.STRINGS:
        return _convert_default_string(column, "")
    if column.tp == t.NEWDECIMAL:
        return _convert_default(column, "0") or ""
    if column.tp in (t.FLOAT, t.DOUBLE):
        return "0"
    signed = column.tp in (t.DURATION, t.YEAR) or (column.tp in t.INTEGERS and not column.unsigned)
    return read_text(column, (d.write_int if signed else d.write_uint)(0), 0)[0] or ""
