"""One small function per column that reads a datum as canonical text; the row loop calls it for every value.

A reader handles the flag that its column type usually has in rows. For any other flag it calls the general path
(binlake.rows.codec.values), so it is only a shortcut. Get a reader by `build_reader`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import Struct

from binlake.base.varint import read_uvarint
from binlake.rows.codec.decimals import read_decimal
from binlake.rows.codec.values import ReadInvalid, format_enum, format_number, format_set, read_text, refuse_invalid
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.info import ColumnInfo

Reader = Callable[[bytes, int], tuple[str | None, int]]
"""(row, position of the datum's flag) -> (canonical text or None, next position)."""

_DOUBLE = Struct(">d").unpack_from


def build_reader(column: ColumnInfo, invalid: ReadInvalid = refuse_invalid) -> Reader:
    """The reader of `column`; `invalid` returns the text for bytes that are not UTF-8."""
    if column.tp in t.INTEGERS:
        return _build_unsigned_reader(column) if column.unsigned else _build_signed_reader(column)
    if column.tp in t.STRINGS:
        return _build_binary_reader(column) if column.is_binary else _build_text_reader(column, invalid)
    if column.tp in (t.FLOAT, t.DOUBLE):
        return _build_float_reader(column)
    if column.tp in t.MOMENTS or column.tp in t.DATES or column.tp in (t.ENUM, t.SET):
        return _build_cached_uint_reader(column)
    if column.tp == t.NEWDECIMAL:
        return _build_decimal_reader(column)
    return lambda row, pos: read_text(column, row, pos)


def _build_signed_reader(column: ColumnInfo) -> Reader:
    def read(row: bytes, pos: int) -> tuple[str | None, int]:
        if row[pos] != 8:
            return read_text(column, row, pos)
        value, pos = read_uvarint(row, pos + 1)
        return str((value >> 1) ^ -(value & 1)), pos

    return read


def _build_unsigned_reader(column: ColumnInfo) -> Reader:
    def read(row: bytes, pos: int) -> tuple[str | None, int]:
        if row[pos] != 9:
            return read_text(column, row, pos)
        value, pos = read_uvarint(row, pos + 1)
        return str(value), pos

    return read


def _build_text_reader(column: ColumnInfo, invalid: ReadInvalid) -> Reader:
    def read(row: bytes, pos: int) -> tuple[str | None, int]:
        if row[pos] != 2:
            return read_text(column, row, pos, invalid)
        size = row[pos + 1]
        if size < 0x80:
            pos += 2
        else:
            size, pos = read_uvarint(row, pos + 1)
        end = pos + (size >> 1)
        if size & 1 or end > len(row):
            raise ValueError("a string is cut short")
        try:
            return str(row[pos:end], "utf-8"), end
        except UnicodeDecodeError:
            return invalid(column, row[pos:end]), end

    return read


def _build_binary_reader(column: ColumnInfo) -> Reader:
    def read(row: bytes, pos: int) -> tuple[str | None, int]:
        if row[pos] != 2:
            return read_text(column, row, pos)
        size, pos = read_uvarint(row, pos + 1)
        end = pos + (size >> 1)
        if size & 1 or end > len(row):
            raise ValueError("a string is cut short")
        return row[pos:end].hex().upper(), end

    return read


def _build_float_reader(column: ColumnInfo) -> Reader:
    cached = lru_cache(maxsize=1024)(lambda value: format_number(column, value))

    def read(row: bytes, pos: int) -> tuple[str | None, int]:
        # Only positive numbers have the sign bit set and the other bits unchanged.
        if row[pos] != 5 or row[pos + 1] < 0x80:
            return read_text(column, row, pos)
        value: float = -_DOUBLE(row, pos + 1)[0]
        return cached(value), pos + 9

    return read


def _build_cached_uint_reader(column: ColumnInfo) -> Reader:
    """A reader that caches texts by the packed number, because times, enums and sets repeat."""
    if column.tp == t.ENUM:
        return _build_uint_reader(column, lru_cache(maxsize=1024)(lambda value: format_enum(value, column.elems)))
    if column.tp == t.SET:
        return _build_uint_reader(column, lru_cache(maxsize=1024)(lambda value: format_set(value, column.elems)))
    return _build_uint_reader(column, lru_cache(maxsize=4096)(lambda value: format_number(column, value)))


def _build_uint_reader(column: ColumnInfo, show: Callable[[int], str]) -> Reader:
    def read(row: bytes, pos: int) -> tuple[str | None, int]:
        if row[pos] != 9:
            return read_text(column, row, pos)
        value, pos = read_uvarint(row, pos + 1)
        return show(value), pos

    return read


def _build_decimal_reader(column: ColumnInfo) -> Reader:
    scale = max(column.decimal, 0)

    def read(row: bytes, pos: int) -> tuple[str | None, int]:
        if row[pos] != 6:
            return read_text(column, row, pos)
        return read_decimal(row, pos + 1, scale)

    return read
