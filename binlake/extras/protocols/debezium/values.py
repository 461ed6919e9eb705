"""Converts a column's canonical texts to Debezium's values, according to `schema.py`.

An invalid date or time (with zero parts) becomes 0, or null if the column is nullable, as in TiCDC.
"""

from __future__ import annotations

from base64 import b64encode

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.extras.protocols.debezium.schema import MILLIS_DIGITS
from binlake.feed.bytecolumns import Array, Part, decode_hex, map_distinct
from binlake.feed.jsontext import as_binary, encode_base64, encode_numbers, encode_strings, escape_texts
from binlake.feed.values import show_members
from binlake.rows.codec.temporal import parse_duration
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t

_NO_MOMENT = "1970-01-01T00:00:00Z"


def encode_values(column: ColumnInfo, texts: Array) -> list[Part]:
    """The values of `column` in the form for `jsontext.encode_object`."""
    match column.tp:
        case t.LONGLONG if column.unsigned:
            # Connect has no unsigned numbers: numbers beyond a long wrap around.
            return encode_numbers(pc.cast(texts, pa.uint64()).view(pa.int64()))
        case t.YEAR:
            return encode_numbers(pc.cast(texts, pa.int64()))
        case _ if column.tp in t.INTEGERS or column.tp in (t.FLOAT, t.DOUBLE, t.NEWDECIMAL):
            return encode_numbers(texts)
        case t.DATE | t.NEWDATE:
            return _encode_calendar(column, _count_since_epoch(texts, pa.date32(), "D"))
        case t.DATETIME:
            unit = "ms" if column.fsp <= MILLIS_DIGITS else "us"
            return _encode_calendar(column, _count_since_epoch(texts, pa.timestamp(unit), unit))
        case t.TIMESTAMP:
            return encode_strings(as_binary(_format_zoned(texts)))
        case t.DURATION:
            return encode_numbers(map_distinct(texts, lambda text: parse_duration(text) // 1000, pa.int64()))
        case t.BIT:
            return _encode_bits(column, texts)
        case _ if column.is_binary:
            return encode_strings(encode_base64(decode_hex(texts)))
        case _:
            return encode_strings(escape_texts(show_members(column, texts)))


def _count_since_epoch(texts: Array, kind: pa.DataType, unit: str) -> Array:
    """Days, or fractions of a second in `unit`, since 1970; NULL for an invalid date."""
    try:
        return pc.cast(texts, kind).view(pa.int32() if unit == "D" else pa.int64()).cast(pa.int64())
    except pa.ArrowInvalid:
        return map_distinct(texts, lambda text: _parse_moment(text, unit), pa.int64())


def _parse_moment(text: str, unit: str) -> int | None:
    try:
        return int(np.datetime64(text).astype(f"datetime64[{unit}]").astype(np.int64))
    except ValueError:
        return None


def _encode_calendar(column: ColumnInfo, numbers: Array) -> list[Part]:
    return encode_numbers(pc.fill_null(numbers, 0) if column.not_null else numbers)


def _format_zoned(texts: Array) -> Array:
    """A TIMESTAMP, which is in UTC, in ISO 8601."""
    shown = pc.binary_join_element_wise(pc.replace_substring(texts, " ", "T"), "Z", "")
    return pc.if_else(pc.starts_with(texts, "0000-00-00"), _NO_MOMENT, shown)


def _encode_bits(column: ColumnInfo, texts: Array) -> list[Part]:
    if column.flen == 1:
        return encode_numbers(map_distinct(texts, lambda text: "true" if int(text, 16) else "false", pa.string()))
    # Reverse the bytes, as Connect's bits are little-endian.
    return encode_strings(map_distinct(texts, lambda text: b64encode(bytes.fromhex(text)[::-1]), pa.binary()))
