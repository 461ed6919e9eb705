"""Columns of a mirror: the Arrow (Delta) type of each source type, and canonical texts to typed values and back.

Rule: lose nothing, and stay readable by Spark and delta-rs. A value that the type cannot store (zero and partly zero
dates, year 0) is NULL in its column, and its text is stored in the map `_text`. The table of types is in
docs/reference/lake-tables.md; hazards R-44 on floats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Schema

from binlake.common.lakecolumns import Mirror
from binlake.rows.codec.datum import format_double, format_float
from binlake.rows.codec.encode import derive_decimal_layout
from binlake.rows.codec.lanes import read_text_bytes
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t

TEXT_TYPE = pa.map_(pa.string(), pa.string())
_SMALL = frozenset({t.TINY, t.SHORT, t.INT24})
# The maximum precision of Spark's and Arrow's 128-bit decimals; MySQL's maximum is 65.
_MAX_PRECISION = 38

Texts = Sequence[str | None]


def choose_arrow_type(column: ColumnInfo) -> pa.DataType:
    """The type of `column` in its mirror."""
    if column.is_binary:
        return pa.binary()
    return _TYPES.get(column.tp, _choose_text_type)(column)


def _choose_integer_type(column: ColumnInfo) -> pa.DataType:
    if column.tp == t.LONGLONG:
        return pa.decimal128(20, 0) if column.unsigned else pa.int64()
    return pa.int64() if column.unsigned and column.tp not in _SMALL else pa.int32()


def _choose_decimal_type(column: ColumnInfo) -> pa.DataType:
    precision, scale = derive_decimal_layout(column)
    return pa.decimal128(precision, scale) if precision <= _MAX_PRECISION else pa.string()


def _choose_text_type(_column: ColumnInfo) -> pa.DataType:
    return pa.string()


_TYPES: dict[int, Callable[[ColumnInfo], pa.DataType]] = {
    **dict.fromkeys(t.INTEGERS, _choose_integer_type),
    **dict.fromkeys(t.DATES, lambda _: pa.date32()),
    t.YEAR: lambda _: pa.int32(),
    t.FLOAT: lambda _: pa.float32(),
    t.DOUBLE: lambda _: pa.float64(),
    t.NEWDECIMAL: _choose_decimal_type,
    t.DATETIME: lambda _: pa.timestamp("us"),
    t.TIMESTAMP: lambda _: pa.timestamp("us", tz="UTC"),
}


def build_schema(table: TableDef) -> pa.Schema:
    """The mirror's columns: those of a row change (no virtual columns), then Binlake's own columns."""
    own_fields = [
        _build_own_field(Mirror.COMMIT_TS, pa.int64(), "commit_ts of the last change of the row"),
        _build_own_field(
            Mirror.ROWKEY,
            pa.string(),
            "JSON array of the identity's texts: primary key, unique key, else the whole row",
        ),
        _build_own_field(Mirror.COPY, pa.int32(), "0; equal rows of a table without a key are numbered 0, 1, ..."),
        _build_own_field(Mirror.TEXT, TEXT_TYPE, "texts of the values that the typed column cannot hold, by column"),
    ]
    return pa.schema([*(pa.field(c.name, choose_arrow_type(c)) for c in table.row_columns), *own_fields])


def list_delta_columns(table: TableDef) -> list[tuple[str, str]]:
    """(name, Delta's type name, such as `long`) of the mirror's columns."""
    # A map is only called `map`, as in OpenLineage's Spark integration.
    return [(field.name, str(field.type.type)) for field in Schema.from_arrow(build_schema(table)).fields]


def _build_own_field(name: str, kind: pa.DataType, comment: str) -> pa.Field:
    # delta-rs stores the comment where Spark's DESCRIBE finds it.
    return pa.field(name, kind, metadata={"comment": comment})


def parse_texts(column: ColumnInfo, texts: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """(typed values, {position: text} of the values that the type cannot store) of canonical `texts`."""
    kind = choose_arrow_type(column)
    if pa.types.is_string(kind):
        return texts, {}
    try:
        return _parse_all(kind, texts), {}
    except (pa.ArrowInvalid, ValueError):
        return _parse_each(kind, texts.to_pylist())


def _parse_all(kind: pa.DataType, texts: pa.Array) -> pa.Array:
    if pa.types.is_binary(kind):
        return _parse_hex(texts)
    if not pa.types.is_temporal(kind):
        return pc.cast(texts, kind)
    if pc.any(pc.starts_with(texts, "0000")).as_py():
        raise ValueError("year 0 is outside the range that readers of dates support")
    if pa.types.is_timestamp(kind) and kind.tz:
        return pc.assume_timezone(pc.cast(texts, pa.timestamp("us")), kind.tz)
    return pc.cast(texts, kind)


def _parse_hex(texts: pa.Array) -> pa.Array:
    """The bytes of hexadecimal `texts`, converted all at once. Raises ValueError."""
    offsets, digits = read_text_bytes(texts)
    data = bytes.fromhex(digits.tobytes().decode("ascii"))
    # A text with an odd number of digits would move those after it; `fromhex` skips spaces.
    if (offsets % 2).any() or 2 * len(data) != len(digits):
        raise ValueError("bytes are written as pairs of hexadecimal digits")
    valid = pa.py_buffer(np.packbits(np.asarray(texts.is_valid()), bitorder="little")) if texts.null_count else None
    return pa.BinaryArray.from_buffers(pa.binary(), len(texts), [valid, pa.py_buffer(offsets // 2), pa.py_buffer(data)])


def _parse_each(kind: pa.DataType, texts: Texts) -> tuple[pa.Array, dict[int, str]]:
    read = _choose_parser(kind)
    values: list[Any] = []
    unfit: dict[int, str] = {}
    for place, text in enumerate(texts):
        try:
            values.append(None if text is None else read(text))
        except (ValueError, ArithmeticError):
            values.append(None)
            unfit[place] = text or ""
    return pa.array(values, kind), unfit


def _choose_parser(kind: pa.DataType) -> Callable[[str], Any]:
    if pa.types.is_date(kind):
        return date.fromisoformat
    if pa.types.is_timestamp(kind):
        return _parse_moment if kind.tz is None else lambda text: _parse_moment(text).replace(tzinfo=UTC)
    if pa.types.is_decimal(kind):
        return lambda text: _parse_decimal(text, kind.precision, kind.scale)
    if pa.types.is_floating(kind):
        return np.float32 if kind == pa.float32() else float
    if pa.types.is_binary(kind):
        return bytes.fromhex
    low, high = (-(1 << 31), (1 << 31) - 1) if kind == pa.int32() else (-(1 << 63), (1 << 63) - 1)
    return lambda text: _parse_integer(text, low, high)


def _parse_moment(text: str) -> datetime:
    # Python parses a fraction of a second only with 3 or 6 digits.
    seconds, _, fraction = text.partition(".")
    return datetime.fromisoformat(f"{seconds}.{fraction:0<6}" if fraction else seconds)


def _parse_decimal(text: str, precision: int, scale: int) -> Decimal:
    value = Decimal(text)
    fits = value == round(value, scale) and abs(value) < Decimal(10) ** (precision - scale)
    if not fits:
        raise ValueError(text)
    return value


def _parse_integer(text: str, low: int, high: int) -> int:
    value = int(text)
    if not low <= value <= high:
        raise ValueError(text)
    return value


def format_texts(column: ColumnInfo, values: pa.Array, unfit: Sequence[str | None]) -> list[str | None]:
    """Canonical texts of a mirror's `values`. `unfit`: each row's text from `_text`, or None."""
    texts = None if any(unfit) else _cast(column, values)
    if texts is not None:
        result: list[str | None] = texts.to_pylist()
        return result
    show = _choose_formatter(column, values.type)
    return [
        text if text is not None else None if value is None else show(value)
        for value, text in zip(values.to_pylist(), unfit, strict=True)
    ]


def _cast(column: ColumnInfo, values: pa.Array) -> pa.Array | None:
    """The texts, without an object per value, for types that Arrow formats correctly; else None."""
    kind = values.type
    if pa.types.is_timestamp(kind):
        # UTC values are shown in UTC; the six digits are cut to the column's precision.
        texts = pc.cast(pc.cast(values, pa.timestamp("us")), pa.string())
        return pc.utf8_slice_codeunits(texts, 0, 19 + (column.fsp + 1 if column.fsp else 0))
    # Arrow formats decimals smaller than 0.000001 with an exponent.
    plain = pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date(kind)
    plain = plain or (pa.types.is_decimal(kind) and kind.scale <= 6)
    return pc.cast(values, pa.string()) if plain and column.tp != t.YEAR else None


def _choose_formatter(column: ColumnInfo, kind: pa.DataType) -> Callable[[Any], str]:
    if pa.types.is_timestamp(kind):
        return lambda value: _format_moment(value, column.fsp)
    if pa.types.is_floating(kind):
        return format_float if kind == pa.float32() else format_double
    if pa.types.is_decimal(kind):
        return lambda value: format(value, "f")
    if pa.types.is_binary(kind):
        return lambda value: value.hex().upper()
    if column.tp == t.YEAR:
        return lambda value: f"{value:04d}"
    return str


def _format_moment(value: datetime, fsp: int) -> str:
    text = value.strftime("%m-%d %H:%M:%S")
    fraction = f".{value.microsecond:06d}"[: fsp + 1] if fsp else ""
    return f"{value.year:04d}-{text}{fraction}"


@lru_cache(maxsize=4096)
def _build_name_scalar(name: str) -> pa.Scalar:
    return pa.scalar(name)


def select_image_column(images: pa.MapArray, name: str) -> pa.Array:
    """The texts of column `name` in a map column of row images; NULL where the column is absent."""
    return pc.map_lookup(images, _build_name_scalar(name), "first")
