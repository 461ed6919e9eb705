"""Rows as canonical texts, as the lake stores them, read by SQL that shares no code with the product.

Both servers of a world are read by this, and a row of a mirror or a feed is compared with what it returns.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from support.mariadb import MariaDb

from binlake.rows.codec.floats import format_double, format_float
from binlake.statements.literal import quote_name, quote_qualified_name

Row = tuple[str | None, ...]
_OWN_SETTINGS = "SET SESSION time_zone = '+00:00', sql_mode = ''"
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "bit")
_TABLES = (
    "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND table_type LIKE '%%BASE TABLE%%'"
)
_COLUMNS = (
    "SELECT column_name, data_type, column_type FROM information_schema.columns"
    " WHERE table_schema = %s AND table_name = %s AND upper(extra) NOT LIKE '%%VIRTUAL%%' ORDER BY ordinal_position"
)


@dataclass(frozen=True)
class Table:
    """A table without its virtual columns. `documents`: the places of its JSON columns."""

    columns: tuple[str, ...]
    rows: Sequence[Row]
    documents: Collection[int]

    def make_comparable(self, rows: Sequence[Row]) -> list[Row]:
        """`rows` sorted, with each document in one spelling: servers write 1e30 in several ways, but 1.0 is not 1."""
        places = self.documents
        written = (tuple(_spell(v) if n in places else v for n, v in enumerate(row)) for row in rows)
        return sorted(written, key=repr)

    def find_difference(self, columns: tuple[str, ...], rows: Sequence[Row]) -> str:
        """How a copy with `columns` and `rows` differs from this table; '' if it does not."""
        one, other = self.make_comparable(self.rows), self.make_comparable(rows)
        if columns == self.columns and one == other:
            return ""
        lacking, more = Counter(one) - Counter(other), Counter(other) - Counter(one)
        return (
            f"columns {columns}, without {list(lacking)[:3]} ({lacking.total()}), but with {list(more)[:3]}"
            f" ({more.total()})"
        )


def _spell(document: str | None) -> str | None:
    return None if document is None else repr(json.loads(document))


def read_database(server: MariaDb, db: str) -> Mapping[str, Table]:
    """The tables of `db`."""
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
            documents = {place for place, kind in enumerate(kinds) if kind == "json"}
            found[name] = Table(tuple(column for column, _, _ in columns), rows, documents)
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
