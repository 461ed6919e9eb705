"""Rows of a SELECT as TiDB's rows: what is asked of each column, and the datum of its text.

Texts are the server's own in a session of `opening`: UTF-8 whatever the column's charset, UTC, numbers in full. ENUM,
SET and BIT are asked for as numbers, and FLOAT as the DOUBLE that it is: its own text has six digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from binlake.rows.codec import datum as d
from binlake.rows.codec.decimals import write_decimal
from binlake.rows.codec.jsons import write_json
from binlake.rows.codec.temporal import pack_moment, parse_duration
from binlake.rows.codec.writers import decimal_layout
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.statements.literal import quote_name
from pump_service.feeder.snapshot.textrows import row_values

_AS_NUMBER = frozenset({t.ENUM, t.SET, t.BIT})
_NIL = bytes((d.NIL,))

Write = Callable[[bytes], bytes]
"""The datum of a text."""


def select_columns(table: TableDef) -> str:
    """What a SELECT asks of `table` so that `RowWriter` reads it."""
    return ", ".join(_expression(column) for column in table.row_columns)


class RowWriter:
    """Inserts of `table` from the packets of its rows. `next_handle` is the row id of the next row without a key."""

    def __init__(self, table: TableDef, next_handle: int = 1) -> None:
        self.next_handle = next_handle
        columns = table.row_columns
        self._count = len(columns)
        self._parts: list[tuple[bytes, Write]] = [(d.write_int(c.id), _writer(c)) for c in columns]
        keys = [n for n, c in enumerate(columns) if table.pk_is_handle and c.flag & t.FLAG_PRIMARY]
        self._handle = keys[0] if keys else None

    def write(self, rows: Sequence[bytes]) -> list[bytes]:
        """The bytes of an insert for each row, in their order."""
        return [self._insert(row_values(row, self._count)) for row in rows]

    def _insert(self, values: Sequence[bytes | None]) -> bytes:
        parts = [self._handle_of(values)]
        for (name, write), value in zip(self._parts, values, strict=True):
            parts.append(name)
            parts.append(_NIL if value is None else write(value))
        return b"".join(parts)

    def _handle_of(self, values: Sequence[bytes | None]) -> bytes:
        if self._handle is None:
            self.next_handle += 1
            return d.write_int(self.next_handle - 1)
        number = int(values[self._handle] or 0)
        return d.write_int(number - (1 << 64) if number >> 63 > 0 else number)


def _expression(column: ColumnInfo) -> str:
    name = quote_name(column.name)
    if column.tp in _AS_NUMBER:
        return f"CAST({name} AS UNSIGNED)"
    return f"{name} + 0e0" if column.tp == t.FLOAT else name


def _writer(column: ColumnInfo) -> Write:
    if column.tp in t.STRINGS:
        return d.write_bytes
    if column.tp in _AS_NUMBER or (column.tp in t.INTEGERS and column.unsigned):
        return lambda text: d.write_uint(int(text))
    if column.tp in t.INTEGERS or column.tp == t.YEAR:
        return lambda text: d.write_int(int(text))
    if column.tp in (t.FLOAT, t.DOUBLE):
        return lambda text: d.write_float(float(text))
    if column.tp == t.NEWDECIMAL:
        precision, scale = decimal_layout(column)
        return lambda text: b"\x06" + write_decimal(text.decode(), precision, scale)
    if column.tp == t.JSON:
        return lambda text: b"\x0a" + write_json(text.decode())
    if column.tp == t.DURATION:
        return lambda text: d.write_int(parse_duration(text.decode()))
    return lambda text: d.write_uint(pack_moment(text.decode()))
