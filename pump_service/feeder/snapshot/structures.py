"""What databases and tables a source has, as the statements that make them: read before and after a snapshot opens.

Two readings that are equal have no DDL between them, so that the snapshot in their middle has these definitions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pymysql import err
from pymysql.constants import ER

from binlake.errors import ConfigError
from binlake.statements.literal import quote_name
from pump_service.feeder.snapshot.opening import Link, Name, ask

Wanted = Callable[[str, str], bool]
"""Whether the feeder takes table (database, name)."""

SYSTEM_DATABASES = ("information_schema", "mysql", "performance_schema", "sys")
_NEXT_NUMBER = re.compile(r"^(\) ENGINE=\w+) AUTO_INCREMENT=\d+", re.MULTILINE)
"""Behind the columns of SHOW CREATE TABLE: it is of the rows, not of the definition."""
_CONSISTENT = frozenset({"InnoDB", "ROCKSDB"})
"""Engines whose tables a snapshot shows as of its own time."""
_TABLES = (
    "SELECT table_schema, table_name, engine, table_rows FROM information_schema.tables"
    " WHERE table_type IN ('BASE TABLE', 'SYSTEM VERSIONED')"
    f" AND table_schema NOT IN ({', '.join(repr(name) for name in SYSTEM_DATABASES)})"
    " ORDER BY table_schema, table_name"
)


@dataclass(frozen=True, slots=True)
class Structures:
    """`databases`: CREATE DATABASE by name; `tables`: CREATE TABLE by name; `rows`: the server's guess of each."""

    databases: Mapping[str, str]
    tables: Mapping[Name, str]
    rows: Mapping[Name, int]

    def same_as(self, other: Structures) -> bool:
        """Whether no definition differs."""
        return self.databases == other.databases and self.tables == other.tables


def read_structures(link: Link, wanted: Wanted) -> Structures:
    """The databases and tables of a source that are wanted; views and tables of no rows are none of them.

    Raises ConfigError naming a wanted table whose engine has no snapshots.
    """
    tables: dict[Name, str] = {}
    guesses: dict[Name, int] = {}
    for db, table, engine, guess in ask(link, _TABLES):
        if not wanted(db, table):
            continue
        text = table_text(link, (db, table))
        if text is None:
            continue  # dropped since it was listed: the second reading tells
        if engine not in _CONSISTENT:
            raise ConfigError(
                "a table's engine has no consistent snapshot",
                where={"table": f"{db}.{table}", "engine": engine},
                hint="ALTER TABLE ... ENGINE = InnoDB, or leave the table out",
            )
        tables[db, table], guesses[db, table] = text, int(guess or 0)
    databases = {db: _database_text(link, db) for db in dict.fromkeys(db for db, _ in tables)}
    return Structures({db: text for db, text in databases.items() if text is not None}, tables, guesses)


def table_text(link: Link, name: Name) -> str | None:
    """CREATE TABLE of a table without its next AUTO_INCREMENT; None where there is no such table."""
    try:
        text = ask(link, f"SHOW CREATE TABLE {quote_name(name[0])}.{quote_name(name[1])}")[0][1]
    except err.ProgrammingError as error:
        if error.args[0] in (ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR):
            return None
        raise
    return _NEXT_NUMBER.sub(r"\1", str(text))


def _database_text(link: Link, db: str) -> str | None:
    try:
        return str(ask(link, f"SHOW CREATE DATABASE {quote_name(db)}")[0][1])
    except err.MySQLError as error:
        if error.args[0] == ER.BAD_DB_ERROR:
            return None
        raise
