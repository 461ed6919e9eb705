"""Read a stored value from a server as its canonical text: the SQL to select, and the reader of its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from binlake.rows.codec.numbers import format_double, format_float
from binlake.rows.codec.values import name_error_value
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t
from binlake.statements.literal import quote_name

_CHARACTERS = t.STRINGS | {t.ENUM, t.SET, t.JSON}


def render_column_sql(column: ColumnInfo) -> str:
    """The SQL whose result `build_text_reader` converts to the canonical text of a value of `column`."""
    # HEX of a large value may exceed a packet, so bytes are sent unchanged.
    return quote_name(column.name) if is_bytes(column) else render_text_sql(column)


def build_text_reader(column: ColumnInfo) -> Callable[[Any], str | None]:
    """The function that converts a server's result of `render_column_sql` to the canonical text."""
    if is_bytes(column):
        return lambda value: None if value is None else bytes(value).hex().upper()
    if column.tp == t.FLOAT:
        return lambda value: None if value is None else format_float(float(value))
    if column.tp == t.DOUBLE:
        return lambda value: None if value is None else format_double(float(value))
    return lambda value: value.decode() if isinstance(value, bytes) else value


def is_bytes(column: ColumnInfo) -> bool:
    """True for columns whose values a server sends as bytes."""
    return column.is_binary and column.tp != t.BIT


def render_text_sql(column: ColumnInfo) -> str:
    """The SQL of the text of a value that is not bytes."""
    name = quote_name(column.name)
    if column.tp == t.BIT:
        return f"LPAD(HEX({name} + 0),{_count_bit_digits(column)},'0')"
    if column.has_empty_member:
        name = _render_member_sql(column)
    if column.tp in _CHARACTERS:
        return f"CONVERT({name} USING utf8mb4)"
    if column.tp == t.FLOAT:
        # The text of a FLOAT is cut to 6 digits, so convert it to a DOUBLE.
        return f"CONCAT({name} + 0e0)"
    # `+ 0` removes the padding of ZEROFILL.
    return f"CONCAT({name} + 0)" if column.tp in t.INTEGERS else f"CONCAT({name})"


def _render_member_sql(column: ColumnInfo) -> str:
    """The canonical text of an ENUM or SET with an empty member."""
    name = quote_name(column.name)
    if column.tp == t.ENUM:
        return f"IF({name} = 0,'{name_error_value(column.elems)}',{name})"
    # MySQL and MariaDB, not TiDB, omit an empty member that comes first, with its comma.
    own = 1 << column.elems.index("")
    first = f"{name} & {own} AND NOT {name} & {own - 1}"
    return f"IF({first},CONCAT(',',TRIM(LEADING ',' FROM {name})),{name})"


def _count_bit_digits(column: ColumnInfo) -> int:
    return (max(column.flen, 1) + 7) // 8 * 2
