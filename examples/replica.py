"""A table in SQLite to which the Avro messages of a feed are applied; both consumers of this folder use it.

Rows and the reader's position are stored in one transaction, so a killed consumer loses and repeats nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

Row = Mapping[str, Any]
# Fields that the feed adds to the columns if enable-tidb-extension is set.
_EXTENSION = ("_tidb_op", "_tidb_commit_ts", "_tidb_commit_physical_time")


class SqliteReplica:
    """The table `name` in the database `path`; `positions`: how far each partition or table has been read."""

    def __init__(self, path: str, name: str) -> None:
        self._name = name
        self._columns: list[str] = []
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("CREATE TABLE IF NOT EXISTS _position (source TEXT PRIMARY KEY, place INTEGER NOT NULL)")
        self.positions: dict[str, int] = dict(self._database.execute("SELECT source, place FROM _position"))
        self._database.execute("BEGIN")

    def apply(self, key: Row, value: Row | None, schema: Mapping[str, Any] | None) -> None:
        """Apply one message: the current row, or the deletion of its key (`value` None).

        `schema`: the schema that the value was written with.
        """
        if value is None or schema is None:
            if self._read_known_columns():
                where = " AND ".join(f"{_quote(column)} IS ?" for column in key)
                self._execute(
                    f"DELETE FROM {_quote(self._name)} WHERE {where}", [_to_sqlite(field) for field in key.values()]
                )
            return
        row = {name: field for name, field in value.items() if name not in _EXTENSION}
        self._create_or_extend(list(key), schema, row)
        columns = ", ".join(map(_quote, row))
        marks = ", ".join("?" * len(row))
        self._execute(
            f"INSERT OR REPLACE INTO {_quote(self._name)} ({columns}) VALUES ({marks})",
            [_to_sqlite(field) for field in row.values()],
        )

    def commit(self, positions: Mapping[str, int]) -> None:
        """Commit the applied messages together with the positions of their sources."""
        for source, position in positions.items():
            self._execute("INSERT OR REPLACE INTO _position VALUES (?, ?)", [source, position])
        self.positions.update(positions)
        self._database.execute("COMMIT")
        self._database.execute("BEGIN")

    def close(self) -> None:
        """Roll back the messages that were not committed, and close the database."""
        self._database.execute("ROLLBACK")
        self._database.close()

    def _create_or_extend(self, key: list[str], schema: Mapping[str, Any], row: Row) -> None:
        """Create the table from its first message, and add columns that later messages have.

        A feed sends no DDL and does not resend rows, so older rows get the default of a new column.
        """
        known = self._read_known_columns()
        if not known:
            columns = ", ".join(map(_quote, row))
            primary = ", ".join(map(_quote, key))
            self._execute(f"CREATE TABLE {_quote(self._name)} ({columns}, PRIMARY KEY ({primary}))", [])
        elif set(row) <= set(known):
            return
        defaults = {field["name"]: field.get("default") for field in schema["fields"]}
        for column in row if known else ():
            if column not in known:
                default = _format_literal(defaults[column])
                self._execute(f"ALTER TABLE {_quote(self._name)} ADD COLUMN {_quote(column)} DEFAULT {default}", [])
        self._columns = []

    def _read_known_columns(self) -> list[str]:
        if not self._columns:
            described = self._database.execute(f"PRAGMA table_info({_quote(self._name)})")
            self._columns = [column[1] for column in described]
        return self._columns

    def _execute(self, statement: str, values: list[Any]) -> None:
        self._database.execute(statement, values)


def _to_sqlite(value: Any) -> Any:
    # SQLite's numbers would round a DECIMAL.
    return str(value) if isinstance(value, Decimal) else value


def _format_literal(value: Any) -> str:
    if value is None:
        return "NULL"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
