"""How the log writes the values of a column: by the type number and the metadata of its table map.

A value has a fixed size, or is preceded by a length of 1 to 4 bytes (little endian) (MySQL internals manual,
"Table_map_event"; MariaDB KB, "Rows_event_v1"). A string's real type is in its metadata; old temporal types have no
metadata, so the definition gives the number of digits.
"""

from __future__ import annotations

from dataclasses import dataclass

from binlake.errors import SchemaError
from binlake.rows.codec.datum import compute_decimal_size
from binlake.rows.codec.encode import derive_decimal_layout
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.info import ColumnInfo

TIMESTAMP2, DATETIME2, TIME2 = 17, 18, 19
"""The temporal types of MySQL 5.6 and later, with fractions; a definition has them under the older numbers."""

_SIZES = {
    t.TINY: 1, t.SHORT: 2, t.INT24: 3, t.LONG: 4, t.LONGLONG: 8, t.FLOAT: 4, t.DOUBLE: 8, t.YEAR: 1,
    t.DATE: 3, t.NEWDATE: 3,
}  # fmt: skip
_BIG_ENDIAN = frozenset((t.STRING, t.NEWDECIMAL))
"""Types whose two bytes of metadata are a big-endian number, not a little-endian one."""
_NEW_TEMPORALS = {TIMESTAMP2: 4, DATETIME2: 5, TIME2: 3}
# By digits of the fraction: MariaDB's formats before it adopted MySQL's (mysql56_temporal_format=OFF).
_OLD_TEMPORALS = {
    t.TIMESTAMP: (4, 5, 5, 6, 6, 7, 7),
    t.DATETIME: (8, 6, 6, 7, 7, 7, 8),
    t.DURATION: (3, 4, 4, 5, 5, 5, 6),
}
_DEFINED_AS = {
    TIMESTAMP2: {t.TIMESTAMP}, DATETIME2: {t.DATETIME}, TIME2: {t.DURATION}, t.DATE: t.DATES, t.NEWDATE: t.DATES,
    t.VARCHAR: {t.VARCHAR, t.VARSTRING}, t.VARSTRING: {t.VARCHAR, t.VARSTRING}, t.BLOB: t.BLOBS | {t.JSON},
}  # fmt: skip
_NAMES = {
    140: "compressed BLOB or TEXT", 141: "compressed VARCHAR or VARBINARY", 242: "VECTOR", 255: "geometry",
    0: "DECIMAL of MySQL 4",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ValueLayout:
    """`tp`: the type of the values, for a string the real one; `size`: bytes of a value, or 0 if preceded by a length
    of `prefix` bytes; `first`, `second`: the bytes of the metadata in the order of the event."""

    tp: int
    size: int
    prefix: int
    first: int
    second: int


def derive_layout(column: ColumnInfo, tp: int, metadata: int) -> ValueLayout:
    """The layout of `column`'s values. Raises SchemaError, naming the column, for a type that TiDB does not have or
    that contradicts the definition."""
    low, high = metadata & 0xFF, metadata >> 8
    layout = _find_layout(column, tp, *((high, low) if tp in _BIG_ENDIAN else (low, high)))
    if layout is None:
        raise SchemaError(
            f"column {column.name} has a type that cannot be replicated: {_NAMES.get(tp, f'type number {tp}')}",
            hint="exclude the table at the feeder, or change the column's type at the source",
        )
    if column.tp not in _DEFINED_AS.get(layout.tp, {layout.tp}) or not _agrees(column, layout):
        raise SchemaError(
            f"column {column.name} is {column.type_text} in the definition, and another type in the log"
            f" (number {layout.tp}, metadata {metadata})",
            hint="the definition is not the one that the table had at this position of the log",
        )
    return layout


def _find_layout(column: ColumnInfo, tp: int, first: int, second: int) -> ValueLayout | None:
    if tp in _SIZES:
        return ValueLayout(tp, _SIZES[tp], 0, first, second)
    if tp in _NEW_TEMPORALS:
        return ValueLayout(tp, _NEW_TEMPORALS[tp] + (first + 1) // 2, 0, first, second)
    if tp in _OLD_TEMPORALS:
        return ValueLayout(tp, _OLD_TEMPORALS[tp][min(column.fsp, 6)], 0, column.fsp, 0)
    if tp in (t.VARCHAR, t.VARSTRING):
        return ValueLayout(tp, 0, 1 if first | second << 8 < 256 else 2, first, second)
    if tp in (t.BLOB, t.JSON):
        return ValueLayout(tp, 0, first, first, second)
    if tp == t.NEWDECIMAL:
        return ValueLayout(tp, compute_decimal_size(first, second), 0, first, second)
    if tp == t.BIT:
        return ValueLayout(tp, second + (first > 0), 0, first, second)
    return _find_string_layout(first, second) if tp == t.STRING else None


def _find_string_layout(first: int, second: int) -> ValueLayout | None:
    if first in (t.ENUM, t.SET):
        return ValueLayout(first, second, 0, first, second)
    # Two bits of a length above 255 are in the type, inverted.
    length = second | ((first & 0x30) ^ 0x30) << 4
    return (
        ValueLayout(t.STRING, 0, 1 if length < 256 else 2, length & 0xFF, length >> 8)
        if first | 0x30 == t.STRING
        else None
    )


def _agrees(column: ColumnInfo, layout: ValueLayout) -> bool:
    if layout.tp == t.NEWDECIMAL:
        return (layout.first, layout.second) == derive_decimal_layout(column)
    if layout.tp == t.BIT:
        return layout.first + 8 * layout.second == max(column.flen, 1)
    if layout.tp in _NEW_TEMPORALS:
        return layout.first == column.fsp
    if layout.tp in (t.STRING, t.VARCHAR, t.VARSTRING) and column.flen > 0:
        # The length in bytes is a multiple of the number of characters.
        length = layout.first | layout.second << 8
        return length == column.flen if column.is_binary else length % column.flen == 0 and length >= column.flen
    return True
