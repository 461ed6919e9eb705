"""Rows as canonical texts, as the lake stores them, read by SQL that shares no code with the product.

Both servers of a world are read by this, and a row of a mirror or a feed is compared with what it returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from support.mariadb import MariaDb

from binlake.rows.codec.floats import format_double, format_float
from binlake.statements.literal import quote_name, quote_qualified_name

Rows = list[tuple[str | None, ...]]
_OWN_SETTINGS = (
    "SET SESSION time_zone = '+00:00', sql_mode = '', sql_select_limit = 18446744073709551615, max_join_size ="
    " 18446744073709551615, sql_big_selects = 1"
)
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "bit")
_TABLES = (
    "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND table_type LIKE '%%BASE TABLE%%'"
)
_COLUMNS = (
    "SELECT column_name, data_type, column_type FROM information_schema.columns"
    " WHERE table_schema = %s AND table_name = %s AND upper(extra) NOT LIKE '%%VIRTUAL%%' ORDER BY ordinal_position"
)


def read_database(server: MariaDb, db: str) -> Mapping[str, tuple[tuple[str, ...], Rows]]:
    """Of each table of `db`: its columns without virtual ones, and its rows, sorted."""
    with server.connect() as link, link.cursor() as cursor:
        cursor.execute(_OWN_SETTINGS)
        cursor.execute(_TABLES, (db,))
        names = [str(name) for (name,) in cursor.fetchall()]
        found = {}
        for name in names:
            cursor.execute(_COLUMNS, (db, name))
            columns = [(str(column), str(kind).lower(), str(full)) for column, kind, full in cursor.fetchall()]
            shown = ", ".join(_show(quote_name(column), kind, full) for column, kind, full in columns)
            cursor.execute(f"SELECT {shown} FROM {quote_qualified_name(db, name)}")
            kinds = [kind for _, kind, _ in columns]
            rows = [tuple(map(_text, kinds, row)) for row in cursor.fetchall()]
            found[name] = (tuple(column for column, _, _ in columns), sorted(rows, key=repr))
        return found


def _show(column: str, kind: str, full: str) -> str:
    if kind == "bit":
        bits = int(full[4:-1])
        return f"LPAD(HEX({column}), {(bits + 7) // 8 * 2}, '0')"
    if kind in _BYTES:
        return f"HEX({column})"
    if kind == "float":
        return f"CAST({column} AS DOUBLE)"
    return column if kind == "double" else f"CAST({column} AS CHAR CHARACTER SET utf8mb4)"


def _text(kind: str, value: object) -> str | None:
    if value is None:
        return None
    if kind == "float":
        return format_float(float(np.float32(value)))  # type: ignore[arg-type]
    return format_double(float(value)) if kind == "double" else str(value)  # type: ignore[arg-type]


def describe_difference(one: Sequence[object], other: Sequence[object]) -> str:
    """The rows of `one` that `other` lacks, and the reverse; at most three of each."""
    left, right = list(one), list(other)
    for row in one:
        if row in right:
            right.remove(row)
            left.remove(row)
    return f"only the first has {left[:3]} ({len(left)}), only the second {right[:3]} ({len(right)})"
