"""Read a target by plain SQL: its tables, their structure and their rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.converters import conversions
from pymysql.cursors import SSCursor

from binlake.base.sqllink import SqlLink
from binlake.compare import (
    ColumnStructure,
    KeyStructure,
    Raw,
    TableStructure,
    normalize_collation,
    normalize_type,
    parse_base_type,
)
from binlake.errors import TargetUnavailable

SYSTEM_DATABASES = ("information_schema", "mysql", "performance_schema", "sys")
_COLUMNS = """
SELECT column_name, column_type, is_nullable, collation_name, extra
FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position
"""
_KEYS = """
SELECT index_name, non_unique, column_name, sub_part
FROM information_schema.statistics WHERE table_schema = %s AND table_name = %s ORDER BY index_name, seq_in_index
"""


def connect(
    host: str, port: int, user: str, password: str = "", *, unix_socket: str | None = None, timeout_s: float = 10.0
) -> Connection[Any]:
    """A connection that returns every value as the server's text (bytes for binary types). Raises TargetUnavailable."""
    try:
        return SqlLink(
            host=host,
            port=port,
            user=user,
            password=password,
            unix_socket=unix_socket,
            charset="utf8mb4",
            # Use only the encoders: without decoders the server's text stays unchanged.
            conv={kind: encode for kind, encode in conversions.items() if not isinstance(kind, int)},
            cursorclass=SSCursor,
            connect_timeout=int(max(1, timeout_s)),
            autocommit=True,
        )
    except pymysql.err.OperationalError as error:
        raise TargetUnavailable(
            f"the target cannot be compared: {error}", where={"host": host, "port": port}
        ) from error


class TargetView:
    """Reads a target through a connection made by `connect`.

    `dialect`: mariadb, mysql or tidb; `ignored`: databases that are not the source's.
    """

    def __init__(self, connection: Connection[Any], dialect: str, ignored: Sequence[str]) -> None:
        self._connection = connection
        self._dialect = dialect
        self._ignored = {*SYSTEM_DATABASES, *ignored}

    def list_databases(self) -> set[str]:
        """User databases."""
        rows = self._fetch_rows("SELECT schema_name FROM information_schema.schemata")
        return {str(name) for (name,) in rows if str(name).lower() not in self._ignored}

    def list_tables(self) -> set[tuple[str, str, str]]:
        """(database, name, BASE TABLE | VIEW | SEQUENCE) of the user databases."""
        rows = self._fetch_rows("SELECT table_schema, table_name, table_type FROM information_schema.tables")
        return {(str(db), str(name), str(kind)) for db, name, kind in rows if str(db).lower() not in self._ignored}

    def read_structure(self, db: str, name: str) -> TableStructure:
        """Columns and keys of a table."""
        columns = tuple(
            ColumnStructure(
                str(column),
                normalize_type(str(kind), backslash_escapes=self._dialect != "tidb"),
                nullable == "YES",
                normalize_collation(str(collation or "")),
                "GENERATED" in str(extra).upper(),
            )
            for column, kind, nullable, collation, extra in self._fetch_rows(_COLUMNS, (db, name))
        )
        return TableStructure(columns, frozenset(self._read_keys(db, name)))

    def read_rows(self, db: str, name: str, columns: Sequence[str], types: Sequence[str]) -> Iterator[tuple[Raw, ...]]:
        """Every row, with `columns` in this order, each as the server's text."""
        shown = ", ".join(_select_expression(column, kind) for column, kind in zip(columns, types, strict=True))
        return self._fetch_rows(f"SELECT {shown} FROM {_quote(db)}.{_quote(name)}")

    def _read_keys(self, db: str, name: str) -> Iterator[KeyStructure]:
        keys: dict[str, tuple[bool, list[tuple[str, int]]]] = {}
        for key, non_unique, column, prefix in self._fetch_rows(_KEYS, (db, name)):
            keys.setdefault(str(key), (non_unique == "0", []))[1].append((str(column), int(prefix or 0)))
        for key, (unique, columns) in keys.items():
            yield KeyStructure(key.lower(), unique, tuple(columns))

    def _fetch_rows(self, sql: str, args: tuple[str, ...] = ()) -> Iterator[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            # Without arguments pymysql formats nothing, so a % in a name stays unchanged.
            cursor.execute(sql, args or None)
            yield from cursor


def _select_expression(column: str, kind: str) -> str:
    # The text of a FLOAT is cut to 6 digits; as a DOUBLE it shows all of them.
    return f"{_quote(column)} + 0e0" if parse_base_type(kind) == "float" else _quote(column)


def _quote(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
