"""Rows of a SELECT as TiDB's rows: the expression selected for each column, and the datum of its text.

Texts are as the server sends them in a session of `opening`: UTF-8 whatever the column's charset, UTC, numbers in full.
With `invalid_text`, the bytes of other charsets are selected and read as those of the log are: the server would replace
bytes without a character. ENUM, SET and BIT are selected as numbers; FLOAT and DOUBLE(10,3) as the stored DOUBLE, since
their texts are rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from binlake.mysqlbinlog.charsets import InvalidText, build_text_writer, build_utf8_writer, find_replaced_columns
from binlake.mysqlbinlog.tablerows.link import read_row_values
from binlake.rows.codec import datum as d
from binlake.rows.codec.encode import derive_decimal_layout
from binlake.rows.codec.jsons import write_json
from binlake.rows.codec.temporal import pack_moment, parse_duration
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.statements.literal import quote_name

AS_NUMBER = frozenset({t.ENUM, t.SET, t.BIT})
_NIL = bytes((d.NIL,))
_SECONDS = len("YYYY-MM-DD HH:MM:SS")

Write = Callable[[bytes], bytes]
"""Converts a text to its datum."""


def select_columns(table: TableDef, invalid_text: InvalidText | None = None) -> str:
    """The select list for `table` that `RowWriter` reads."""
    return ", ".join(_build_expression(column, invalid_text) for column in table.row_columns)


def is_read_as_bytes(column: ColumnInfo, invalid_text: InvalidText | None) -> bool:
    """Whether a text is selected as its bytes. (Each byte is a character of latin1.)"""
    if invalid_text is None or column.tp not in t.STRINGS or column.is_binary:
        return False
    return column.charset != "latin1" and build_utf8_writer(column.charset) is not None


class RowWriter:
    """Writes inserts of `table` from the packets of its rows. `next_handle`: row id of the next row without a key."""

    def __init__(self, table: TableDef, next_handle: int = 1, invalid_text: InvalidText | None = None) -> None:
        self.next_handle = next_handle
        columns = table.row_columns
        self._count = len(columns)
        writers = build_row_text_writers(table, invalid_text)
        self._parts = [(d.write_int(c.id), write) for c, write in zip(columns, writers, strict=True)]
        keys = [n for n, c in enumerate(columns) if table.pk_is_handle and c.flag & t.FLAG_PRIMARY]
        self._handle = keys[0] if keys else None
        self._handles = handle_datums(table)

    def write(self, rows: Sequence[bytes]) -> list[bytes]:
        """The bytes of an insert for each row, in their order."""
        return [self._insert(read_row_values(row, self._count)) for row in rows]

    def _insert(self, values: Sequence[bytes | None]) -> bytes:
        parts = [self._handle_of(values)]
        for (name, write), value in zip(self._parts, values, strict=True):
            parts.append(name)
            parts.append(_NIL if value is None else write(value))
        return b"".join(parts)

    def _handle_of(self, values: Sequence[bytes | None]) -> bytes:
        if self._handle is None:
            self.next_handle += 1
            return d.write_int(self.next_handle - 1) * self._handles
        number = int(values[self._handle] or 0)
        return d.write_int(number - (1 << 64) if number >> 63 > 0 else number)


def handle_datums(table: TableDef) -> int:
    """Number of datums that an insert of `table` has before its columns.

    For a clustered key in TiDB, as many as the key has columns. The values of such a key are in the row as well, and
    are read from there: the datums here are only counted.
    """
    return len(table.primary_key) if table.is_common_handle else 1


def build_row_text_writers(table: TableDef, invalid_text: InvalidText | None) -> list[Write]:
    """A function for each column of `select_columns`, as `build_row_text_writer`."""
    replaced = find_replaced_columns(table, invalid_text or "refuse")
    return [
        build_text_writer(column, replaced_in=f"{table.db}.{table.name}" if column.name in replaced else "")
        if is_read_as_bytes(column, invalid_text)
        else build_row_text_writer(column)
        for column in table.row_columns
    ]


def _build_expression(column: ColumnInfo, invalid_text: InvalidText | None) -> str:
    name = quote_name(column.name)
    if is_read_as_bytes(column, invalid_text):
        return f"CAST({name} AS BINARY)"
    if column.tp in AS_NUMBER:
        return f"CAST({name} AS UNSIGNED)"
    is_rounded = column.tp == t.FLOAT or (column.tp == t.DOUBLE and column.decimal >= 0)
    return f"{name} + 0e0" if is_rounded else name


def build_row_text_writer(column: ColumnInfo) -> Write:
    """A function that converts a text selected by `select_columns` to its datum."""
    if column.tp in t.STRINGS:
        return d.write_bytes
    if column.tp in AS_NUMBER or (column.tp in t.INTEGERS and column.unsigned):
        return lambda text: d.write_uint(int(text))
    if column.tp in t.INTEGERS or column.tp == t.YEAR:
        return lambda text: d.write_int(int(text))
    if column.tp in (t.FLOAT, t.DOUBLE):
        return lambda text: d.write_float(float(text))
    if column.tp == t.NEWDECIMAL:
        return _build_decimal_writer(*derive_decimal_layout(column))
    if column.tp == t.JSON:
        return lambda text: b"\x0a" + write_json(text.decode())
    if column.tp == t.DURATION:
        return lambda text: d.write_int(parse_duration(text.decode()))
    return lambda text: d.write_uint(_pack_text(text))


def _build_decimal_writer(precision: int, scale: int) -> Write:
    """Like `write_decimal` for a text with all its decimals, at a third of the cost."""
    head, size = bytes((d.DECIMAL, precision, scale)), d.compute_decimal_size(precision, scale)
    slices, at = list[tuple[int, int, int]](), 0
    for width, digits in d.list_decimal_groups(precision, scale):
        slices.append((at, at + digits, width))
        at += digits
    sign, mask = 1 << 8 * size - 1, (1 << 8 * size) - 1

    def write(text: bytes) -> bytes:
        negative = text[:1] == b"-"
        # A server shows a zero before the point even if the type has no such digit.
        digits = text.lstrip(b"-").replace(b".", b"").rjust(precision, b"0")[-precision:]
        number = 0
        for first, end, width in slices:
            number = number << 8 * width | int(digits[first:end])
        if negative and number:
            number ^= mask
        return head + (number ^ sign).to_bytes(size, "big")

    return write


def _pack_text(text: bytes) -> int:
    """Like `pack_moment`, for a text that a server sent, `YYYY-MM-DD[ HH:MM:SS[.ffffff]]`."""
    day = _pack_day(text[:10])
    if len(text) < _SECONDS:
        return day
    clock = int(text[11:13]) << 12 | int(text[14:16]) << 6 | int(text[17:19])
    micro = int(text[20:].ljust(6, b"0")) if len(text) > _SECONDS else 0
    return day | clock << 24 | micro


@lru_cache(maxsize=65536)
def _pack_day(text: bytes) -> int:
    return pack_moment(text.decode())
