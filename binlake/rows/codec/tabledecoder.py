"""Decode the rows of one table definition: the decoder is built once per definition and then runs a tight loop per row.

Rule (R-19): a row is decoded with the definition that is valid at its commit_ts. Column ids that the definition does
not have are ignored. Columns that the row does not have get the origin default in inserts and updates, and stay absent
in deletes. Values of a clustered key are read from the row if it contains them, because the handle may contain a sort
key instead of the text; otherwise they are read from the handle (tidb-binlog 1.11).

The loop calls one small function per column for every value (`build_reader`). It handles the flag that the column type
usually has in rows. For any other flag it calls the general path (`values`), so it is only a shortcut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache, lru_cache
from struct import Struct
from typing import cast

from binlake.common.varint import read_uvarint
from binlake.rows.codec.datum import VARINT, read_decimal, read_varint
from binlake.rows.codec.encode import derive_filled_text
from binlake.rows.codec.values import (
    InvalidText,
    ReadInvalid,
    build_latin1_reader,
    format_enum,
    format_integer,
    format_number,
    format_set,
    read_text,
    refuse_invalid,
    skip,
)
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.info import ColumnInfo, TableDef

Reader = Callable[[bytes, int], tuple[str | None, int]]
"""(row, position of the datum's flag) -> (canonical text or None, next position)."""

_DOUBLE = Struct(">d").unpack_from
Names = tuple[str, ...]
Values = list[str | None]
Image = tuple[Names, Values]
"""Column names (one shared tuple per shape) and their canonical texts, in the same order."""
_EMPTY_ROW = b"\x00"
KNOWN_DECODERS = 1024
"""Number of cached decoders. It is limited because a worker runs many windows, each with new definitions."""
_MISSING = cast("str | None", object())
"""Marks a slot whose column is not in the row."""
_Entry = tuple[int, Reader]


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


class TableDecoder:
    """Decodes insert, update and delete rows of `table`. Raises ValueError or IndexError for damaged rows.

    `invalid` returns the text for bytes that are not UTF-8.
    """

    def __init__(self, table: TableDef, invalid: ReadInvalid = refuse_invalid) -> None:
        columns = table.row_columns
        self.table = table
        self._invalid = invalid
        self.names: Names = tuple(c.name for c in columns)
        self._entries: dict[int, _Entry] = {c.id: (slot, build_reader(c, invalid)) for slot, c in enumerate(columns)}
        # Ids up to 63 take one byte on the wire (zig-zag), so this list gives their reader without parsing.
        self._codes: list[_Entry | None] = [
            self._entries.get(code >> 1) if not code & 1 else None for code in range(128)
        ]
        self._codes += [None] * 128
        self.filled: Values = [derive_filled_text(c) for c in columns]
        self._absent: Values = [_MISSING] * len(columns)
        self.handle = _list_handle_columns(table, columns)
        self._insert = self.filled[:]
        for slot, _ in self.handle:
            if slot >= 0:
                self._insert[slot] = _MISSING
        self.key_slots = [self.names.index(name) for name in table.find_identity().columns if name in self.names]
        self._subset = lru_cache(maxsize=256)(_select_names)

    def insert(self, row: bytes) -> Image:
        """The image of an insert: handle datums, then column ids and values."""
        values = self._insert[:]
        if not self.handle:
            _, pos = read_varint(row, 1) if row[0] == VARINT else (0, skip(row, 0))
            self._read(row, pos, values)
            return self.names, values
        starts, pos = [], 0
        for _ in self.handle:
            starts.append(pos)
            pos = skip(row, pos)
        self._read(row, pos, values)
        for (slot, column), start in zip(self.handle, starts, strict=True):
            if slot >= 0 and values[slot] is _MISSING:
                values[slot] = _read_handle_text(column, row, start, self._invalid)
        return self.names, values

    def update(self, row: bytes) -> tuple[Image, Image]:
        """The images before and after; both halves contain the same column ids in the same order."""
        before, after = self.filled[:], self.filled[:]
        if row == _EMPTY_ROW:
            return (self.names, before), (self.names, after)
        first = row[1]
        entry = self._codes[first]
        if entry is None:
            return self._update_by_halves(row, before, after)
        middle, half = self._read_until(row, before, first)
        if self._read(row, middle, after) != half:
            raise ValueError("the halves of an update row hold different columns")
        return (self.names, before), (self.names, after)

    def delete(self, row: bytes) -> Image:
        """The image before a delete; columns that are not in the row are absent."""
        values = self._absent[:]
        self._read(row, 0, values)
        if _MISSING not in values:
            return self.names, values
        names = self._subset(self.names, tuple(value is not _MISSING for value in values))
        return names, [value for value in values if value is not _MISSING]

    def select_key(self, image: Image) -> Values:
        """The key texts of an image: those of the identity's columns, or of all columns if one of these is absent."""
        names, values = image
        if names is self.names:
            return [values[slot] for slot in self.key_slots]
        wanted = self.table.find_identity().columns
        if set(wanted) <= set(names):
            return [values[names.index(name)] for name in wanted]
        return values

    def _read(self, row: bytes, pos: int, values: Values) -> int:
        """Fill `values` from `pos` to the end of the row; returns the number of columns on the wire."""
        codes, end, count = self._codes, len(row), 0
        if end - pos == 1 and row[pos] == 0:
            return 0
        while pos < end:
            if row[pos] != VARINT:
                raise ValueError(f"a column id was expected, not a datum with flag {row[pos]}")
            entry = codes[row[pos + 1]]
            count += 1
            if entry is None:
                pos = self._read_other_column(row, pos, values)
                continue
            pos += 2
            if row[pos]:
                values[entry[0]], pos = entry[1](row, pos)
            else:
                values[entry[0]] = None
                pos += 1
        return count

    def _read_until(self, row: bytes, values: Values, first: int) -> tuple[int, int]:
        """Like `_read`, up to the second occurrence of the id byte `first`; returns (its position, columns)."""
        codes, end, count, pos = self._codes, len(row), 0, 0
        while pos < end:
            if row[pos] != VARINT:
                raise ValueError(f"a column id was expected, not a datum with flag {row[pos]}")
            code = row[pos + 1]
            if code == first and count:
                return pos, count
            entry = codes[code]
            count += 1
            if entry is None:
                pos = self._read_other_column(row, pos, values)
                continue
            pos += 2
            if row[pos]:
                values[entry[0]], pos = entry[1](row, pos)
            else:
                values[entry[0]] = None
                pos += 1
        raise ValueError("an update row has no second half")

    def _read_other_column(self, row: bytes, pos: int, values: Values) -> int:
        """Read a column whose id has more than one byte or is not in the definition, or the row id (-1)."""
        column_id, pos = read_varint(row, pos + 1)
        entry = self._entries.get(column_id)
        if entry is None:
            return skip(row, pos)
        values[entry[0]], pos = (None, pos + 1) if row[pos] == 0 else entry[1](row, pos)
        return pos

    def _update_by_halves(self, row: bytes, before: Values, after: Values) -> tuple[Image, Image]:
        """Decode an update whose first id is not a plain one: find the two halves first, then read each."""
        ids, starts, pos = [], [], 0
        while pos < len(row):
            if row[pos] != VARINT:
                raise ValueError(f"a column id was expected, not a datum with flag {row[pos]}")
            starts.append(pos)
            column_id, pos = read_varint(row, pos + 1)
            ids.append(column_id)
            pos = skip(row, pos)
        half = len(ids) // 2
        if ids[:half] != ids[half:]:
            raise ValueError("the halves of an update row hold different columns")
        self._read(row[: starts[half]], 0, before)
        self._read(row[starts[half] :], 0, after)
        return (self.names, before), (self.names, after)


@lru_cache(KNOWN_DECODERS)
def look_up_decoder(table: TableDef) -> TableDecoder:
    """The decoder of a definition, from an LRU cache."""
    return TableDecoder(table)


def build_decoder_lookup(invalid_text: InvalidText, counted: Counter[str]) -> Callable[[TableDef], TableDecoder]:
    """A function definition -> decoder; `counted` counts the values that are read as latin1 (`build_latin1_reader`)."""
    if invalid_text == "refuse":
        return look_up_decoder
    return cache(lambda table: TableDecoder(table, build_latin1_reader(table, counted)))


def _list_handle_columns(table: TableDef, columns: tuple[ColumnInfo, ...]) -> list[tuple[int, ColumnInfo]]:
    """(slot or -1, column) of each handle datum; slot -1 if the key holds only a prefix of the value (tidb-binlog
    5.5)."""
    slots = {c.name: slot for slot, c in enumerate(columns)}
    if table.pk_is_handle:
        return [(slot, c) for slot, c in enumerate(columns) if c.flag & t.FLAG_PRIMARY]
    index = table.primary_index
    if not table.is_common_handle or index is None:
        return []
    return [
        (slots.get(c.name, -1) if c.length == t.UNSPECIFIED_LENGTH else -1, table.all_columns[c.offset])
        for c in index.columns
    ]


def _read_handle_text(column: ColumnInfo, row: bytes, pos: int, invalid: ReadInvalid) -> str | None:
    if row[pos] == VARINT and column.tp in t.INTEGERS:
        return format_integer(column, read_varint(row, pos + 1)[0])
    return read_text(column, row, pos, invalid)[0]


def _select_names(names: Names, present: tuple[bool, ...]) -> Names:
    return tuple(name for name, here in zip(names, present, strict=True) if here)
