"""Converts a column's canonical texts to Debezium's values, according to `schema.py`.

An invalid date or time (with zero parts) becomes 0, or null if the column is nullable, as in TiCDC.
"""

from __future__ import annotations

from base64 import b64encode

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.feed.bytecolumns import Array, Part, bytes_of_hex, map_distinct
from binlake.feed.debezium.schema import MILLIS_DIGITS
from binlake.feed.jsontext import as_binary, base64_text, escape_texts, number_parts, string_parts
from binlake.rows.codec.temporal import parse_duration
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t

_NO_MOMENT = "1970-01-01T00:00:00Z"


def value_parts(column: ColumnInfo, texts: Array) -> list[Part]:
    """The values of `column` in the form for `jsontext.object_parts`."""
    match column.tp:
        case t.LONGLONG if column.unsigned:
            # Connect has no unsigned numbers: numbers beyond a long wrap around.
            return number_parts(pc.cast(texts, pa.uint64()).view(pa.int64()))
        case t.YEAR:
            return number_parts(pc.cast(texts, pa.int64()))
        case _ if column.tp in t.INTEGERS or column.tp in (t.FLOAT, t.DOUBLE, t.NEWDECIMAL):
            return number_parts(texts)
        case t.DATE | t.NEWDATE:
            return _calendar_parts(column, _since_epoch(texts, pa.date32(), "D"))
        case t.DATETIME:
            unit = "ms" if column.fsp <= MILLIS_DIGITS else "us"
            return _calendar_parts(column, _since_epoch(texts, pa.timestamp(unit), unit))
        case t.TIMESTAMP:
            return string_parts(as_binary(_format_zoned(texts)))
        case t.DURATION:
            return number_parts(map_distinct(texts, lambda text: parse_duration(text) // 1000, pa.int64()))
        case t.BIT:
            return _bits(column, texts)
        case _ if column.is_binary:
            return string_parts(base64_text(bytes_of_hex(texts)))
        case _:
            return string_parts(escape_texts(texts))


def _since_epoch(texts: Array, kind: pa.DataType, unit: str) -> Array:
    """Days, or fractions of a second in `unit`, since 1970; NULL for an invalid date."""
    try:
        return pc.cast(texts, kind).view(pa.int32() if unit == "D" else pa.int64()).cast(pa.int64())
    except pa.ArrowInvalid:
        return map_distinct(texts, lambda text: _moment(text, unit), pa.int64())


def _moment(text: str, unit: str) -> int | None:
    try:
        return int(np.datetime64(text).astype(f"datetime64[{unit}]").astype(np.int64))
    except ValueError:
        return None


def _calendar_parts(column: ColumnInfo, numbers: Array) -> list[Part]:
    return number_parts(pc.fill_null(numbers, 0) if column.not_null else numbers)


def _format_zoned(texts: Array) -> Array:
    """A TIMESTAMP, which is in UTC, in ISO 8601."""
    shown = pc.binary_join_element_wise(pc.replace_substring(texts, " ", "T"), "Z", "")
    return pc.if_else(pc.starts_with(texts, "0000-00-00"), _NO_MOMENT, shown)


def _bits(column: ColumnInfo, texts: Array) -> list[Part]:
    if column.flen == 1:
        return number_parts(map_distinct(texts, lambda text: "true" if int(text, 16) else "false", pa.string()))
    # Reverse the bytes, as Connect's bits are little-endian.
    return string_parts(map_distinct(texts, lambda text: b64encode(bytes.fromhex(text)[::-1]), pa.binary()))
