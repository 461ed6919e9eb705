"""A table in SQLite that follows the messages of a feed in Avro; both consumers of this folder use it.

Rows and the reader's position are stored in one transaction, so a consumer that is killed loses and repeats nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

Row = Mapping[str, Any]
# What the feed adds to the columns with enable-tidb-extension.
_EXTENSION = ("_tidb_op", "_tidb_commit_ts", "_tidb_commit_physical_time")


class Replica:
    """The table `name` in the database `path`; `positions`: how far each source (partition, folder) is read."""

    def __init__(self, path: str, name: str) -> None:
        self._name = name
        self._columns: list[str] = []
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("CREATE TABLE IF NOT EXISTS _position (source TEXT PRIMARY KEY, place INTEGER NOT NULL)")
        self.positions: dict[str, int] = dict(self._database.execute("SELECT source, place FROM _position"))
        self._database.execute("BEGIN")

    def apply(self, key: Row, value: Row | None, schema: Mapping[str, Any] | None) -> None:
        """Take one message: a row as it is now, or the deletion of its key (`value` None).

        `schema`: the one that the value was written with.
        """
        if value is None or schema is None:
            if self._known_columns():
                where = " AND ".join(f"{_quoted(column)} IS ?" for column in key)
                self._execute(
                    f"DELETE FROM {_quoted(self._name)} WHERE {where}", [_stored(one) for one in key.values()]
                )
            return
        row = {name: one for name, one in value.items() if name not in _EXTENSION}
        self._follow(list(key), schema, row)
        columns = ", ".join(map(_quoted, row))
        marks = ", ".join("?" * len(row))
        self._execute(
            f"INSERT OR REPLACE INTO {_quoted(self._name)} ({columns}) VALUES ({marks})",
            [_stored(one) for one in row.values()],
        )

    def commit(self, positions: Mapping[str, int]) -> None:
        """Store what was taken, and how far its sources are read, together."""
        for source, place in positions.items():
            self._execute("INSERT OR REPLACE INTO _position VALUES (?, ?)", [source, place])
        self.positions.update(positions)
        self._database.execute("COMMIT")
        self._database.execute("BEGIN")

    def close(self) -> None:
        """Leave out what was not committed."""
        self._database.execute("ROLLBACK")
        self._database.close()

    def _follow(self, key: list[str], schema: Mapping[str, Any], row: Row) -> None:
        """Make the table as its first message says, and add the columns that later ones have.

        A feed sends no DDL and does not send rows again: a new column has its default in rows from before.
        """
        known = self._known_columns()
        if not known:
            columns = ", ".join(map(_quoted, row))
            primary = ", ".join(map(_quoted, key))
            self._execute(f"CREATE TABLE {_quoted(self._name)} ({columns}, PRIMARY KEY ({primary}))", [])
        elif set(row) <= set(known):
            return
        defaults = {field["name"]: field.get("default") for field in schema["fields"]}
        for column in row if known else ():
            if column not in known:
                default = _literal(defaults[column])
                self._execute(f"ALTER TABLE {_quoted(self._name)} ADD COLUMN {_quoted(column)} DEFAULT {default}", [])
        self._columns = []

    def _known_columns(self) -> list[str]:
        if not self._columns:
            found = self._database.execute(f"PRAGMA table_info({_quoted(self._name)})")
            self._columns = [column[1] for column in found]
        return self._columns

    def _execute(self, statement: str, values: list[Any]) -> None:
        self._database.execute(statement, values)


def _stored(value: Any) -> Any:
    # SQLite's own numbers would round a DECIMAL.
    return str(value) if isinstance(value, Decimal) else value


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
