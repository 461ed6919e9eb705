"""Rows as canonical texts, as the lake stores them, read by SQL that shares no code with the product.

Both servers of a world are read by this, and a row of a mirror or a feed is compared with what it returns.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from support.mariadb import MariaDb

from binlake.rows.codec.datum import format_double, format_float
from binlake.statements.literal import quote_name, quote_qualified_name

Row = tuple[str | None, ...]
Name = tuple[str, str]
"""Database and table."""
_OWN_SETTINGS = "SET SESSION time_zone = '+00:00', sql_mode = ''"
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "bit")
_COLUMNS = (
    "SELECT table_schema, table_name, column_name, data_type, column_type FROM information_schema.columns"
    " JOIN information_schema.tables USING (table_schema, table_name)"
    " WHERE table_schema REGEXP '^s[0-9]' AND table_type LIKE '%BASE TABLE%' AND upper(extra) NOT LIKE '%VIRTUAL%'"
    " ORDER BY table_schema, table_name, ordinal_position"
)


@dataclass(frozen=True)
class Table:
    """A table without its virtual columns. `documents`: the places of its JSON columns."""

    columns: tuple[str, ...]
    rows: Sequence[Row]
    documents: Collection[int]

    def spell_comparable(self, rows: Sequence[Row]) -> list[Row]:
        """`rows` sorted, with each document in one spelling: servers write 1e30 in several ways, but 1.0 is not 1."""
        places = self.documents
        written = (tuple(_spell(v) if n in places else v for n, v in enumerate(row)) for row in rows)
        return sorted(written, key=repr)

    def find_difference(self, columns: tuple[str, ...], rows: Sequence[Row]) -> str:
        """How a copy with `columns` and `rows` differs from this table; '' if it does not."""
        one, other = self.spell_comparable(self.rows), self.spell_comparable(rows)
        if columns == self.columns and one == other:
            return ""
        lacking, more = Counter(one) - Counter(other), Counter(other) - Counter(one)
        return (
            f"columns {columns}, without {list(lacking)[:3]} ({lacking.total()}), but with {list(more)[:3]}"
            f" ({more.total()})"
        )


def _spell(document: str | None) -> str | None:
    return None if document is None else repr(json.loads(document))


def read_databases(server: MariaDb) -> dict[Name, Table]:
    """By name, the tables of the stories' databases."""
    with server.connect() as link, link.cursor() as cursor:
        cursor.execute(_OWN_SETTINGS)
        cursor.execute(_COLUMNS)
        columns: dict[Name, list[tuple[str, str, str]]] = {}
        for db, table, column, kind, full in cursor.fetchall():
            columns.setdefault((str(db), str(table)), []).append((str(column), str(kind).lower(), str(full)))
        found = {}
        for name, listed in columns.items():
            shown = ", ".join(_show(quote_name(column), kind, full) for column, kind, full in listed)
            cursor.execute(f"SELECT {shown} FROM {quote_qualified_name(*name)}")
            kinds = [kind for _, kind, _ in listed]
            rows = [tuple(map(_text, kinds, row)) for row in cursor.fetchall()]
            documents = {place for place, kind in enumerate(kinds) if kind == "json"}
            found[name] = Table(tuple(column for column, _, _ in listed), rows, documents)
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
