"""The tracker: a server of the source's family on which DDL is carried out on empty tables, to see what it makes.

Each database of a source has a scratch database there; the tracker owns all of that name and nothing else. It is no
store: what it holds is made again from the catalog at each start (`rebuild`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Protocol

import pymysql
from pymysql.connections import Connection

from binlake.dialect.names import put_target_names
from binlake.dialect.tokens import render
from binlake.errors import SchemaError, SourceUnavailable
from binlake.mysqlbinlog.definitions.columntext import create_tokens
from binlake.mysqlbinlog.definitions.described import (
    SCRATCH_PREFIX,
    SESSION,
    DatabaseDescription,
    TableDescription,
    describe_database,
    describe_table,
    visible_column,
)
from binlake.mysqlbinlog.definitions.statements import NO_BACKSLASH_ESCAPES, SingleStatement
from binlake.mysqlbinlog.model import Flavor, Session
from binlake.statements.literal import quote, quote_name
from pump_service.feeder.server import ask_by_name

_LOST = frozenset({2002, 2003, 2006, 2013, 1053, 1927, 4031})
_MOST = 64
_NOT_KEPT_MODES = {
    Flavor.MARIADB: NO_BACKSLASH_ESCAPES | 1 << 30,
    Flavor.MYSQL: NO_BACKSLASH_ESCAPES | 1 << 30 | 1 << 28 | 0x7FF00,
}
"""sql_mode without: how strings are read (they are in standard form), NO_ENGINE_SUBSTITUTION (the tracker needs no
engine), and in MySQL what version 8 does not know any more (NO_AUTO_CREATE_USER, modes of other databases)."""


class Tracker(Protocol):
    """Carries out DDL on empty tables and describes what is there, both under the source's names."""

    def run(self, statement: SingleStatement, session: Session) -> None:
        """Carry out one statement. Raises SchemaError where the server refuses, SourceUnavailable where it is away."""

    def table(self, db: str, table: str) -> TableDescription | None:
        """The table as it is there now; None where there is none."""

    def database(self, db: str) -> DatabaseDescription | None:
        """The database (without tables) as it is there now; None where there is none."""

    def rebuild(self, databases: Iterable[DatabaseDescription]) -> None:
        """Make everything again: exactly these databases and tables."""


class _Names:
    """Databases called as `database` says; tables have the same name on both sides."""

    def __init__(self, database: Callable[[str], str]) -> None:
        self.database = database

    def table(self, db: str, table: str, *, new: bool = False) -> tuple[str, str]:  # noqa: ARG002
        """(db, table) on the other side."""
        return self.database(db), table


class _Scratch:
    """The scratch databases of a source: their names, and back to those of the source."""

    def __init__(self, source: str) -> None:
        self.prefix = f"{SCRATCH_PREFIX}{source}__"
        self._known: dict[str, str] = {}

    def database(self, db: str) -> str:
        """The scratch database of `db`."""
        name = f"{self.prefix}{db}"
        if len(name) > _MOST:
            name = name[: _MOST - 9] + "_" + hashlib.sha256(name.encode()).hexdigest()[:8]
        self._known[name] = db
        return name

    def original(self, name: str) -> str:
        """The source's name of a scratch database; any other name is itself."""
        return self._known.get(name, name)


class ScratchServer:
    """The tracker of one source on a real server. `connect`: keyword arguments of pymysql. Not thread-safe."""

    def __init__(self, source: str, flavor: Flavor, connect: Mapping[str, Any]) -> None:
        self._flavor, self._arguments = flavor, dict(connect)
        self._scratch = _Scratch(source)
        self._there, self._back = _Names(self._scratch.database), _Names(self._scratch.original)
        self._connection: Connection[Any] | None = None
        self._visible = ""

    def close(self) -> None:
        """End the connection; the scratch databases stay until the next start."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def run(self, statement: SingleStatement, session: Session) -> None:
        """As the protocol says; the session's settings hold for this statement."""
        text = put_target_names(statement.text, statement.db, self._there)
        try:
            self._execute([*_settings(session, self._flavor), text])
        except pymysql.err.MySQLError as error:
            raise self._refused(error, statement) from error

    def table(self, db: str, table: str) -> TableDescription | None:
        """As the protocol says."""
        self._execute(SESSION)
        found = describe_table(self._query, self._flavor, self._scratch.database(db), table, self._visible)
        if found is None:
            return None
        create = render(create_tokens(found.create, self._flavor))
        return replace(found, db=db, create=put_target_names(create, self._scratch.database(db), self._back))

    def database(self, db: str) -> DatabaseDescription | None:
        """As the protocol says."""
        found = describe_database(self._query, self._scratch.database(db))
        return None if found is None else replace(found, name=db)

    def rebuild(self, databases: Iterable[DatabaseDescription]) -> None:
        """As the protocol says."""
        self._execute(["SET SESSION foreign_key_checks = 0", *self._drops()])
        for database in databases:
            name = quote_name(self._scratch.database(database.name))
            self._execute([f"CREATE DATABASE {name} CHARACTER SET {database.charset} COLLATE {database.collate}"])
            for table in database.tables:
                create = render(create_tokens(table.create, self._flavor))
                text = put_target_names(create, database.name, self._there)
                try:
                    self._execute([*SESSION, text])
                except pymysql.err.MySQLError as error:
                    raise self._refused(error, text) from error

    def _drops(self) -> Iterator[str]:
        rows = self._query("SELECT SCHEMA_NAME FROM information_schema.SCHEMATA", ())
        names = [row["SCHEMA_NAME"] for row in rows]
        return (f"DROP DATABASE {quote_name(name)}" for name in names if name.startswith(self._scratch.prefix))

    def _execute(self, texts: Iterable[str]) -> None:
        with closing(self._connected().cursor()) as cursor:
            for text in texts:
                cursor.execute(text)

    def _query(self, sql: str, arguments: Sequence[object]) -> list[dict[str, Any]]:
        return ask_by_name(self._connected(), sql, arguments)

    def _connected(self) -> Connection[Any]:
        if self._connection is None:
            try:
                self._connection = pymysql.connect(**{"charset": "utf8mb4", **self._arguments, "autocommit": True})
            except pymysql.err.OperationalError as error:
                raise SourceUnavailable(
                    f"the tracker cannot be reached: {error}", hint="look at [tracker] in feeder.toml"
                ) from error
            self._execute(["SET SESSION foreign_key_checks = 0", "SET SESSION sql_log_bin = 0"])
            self._visible = visible_column(self._query)
        return self._connection

    def _refused(self, error: pymysql.err.MySQLError, statement: object) -> SchemaError | SourceUnavailable:
        if error.args and error.args[0] in _LOST:
            self._connection = None
            return SourceUnavailable(f"the tracker went away: {error}")
        return SchemaError(
            f"the tracker refuses a statement of the source: {error}",
            hint="the tracker should be of the source's family and version ([tracker] in feeder.toml); or say in"
            " [[source.replace]] of feeder.toml what is to be followed instead (nothing: the statement is passed over)",
            where={"statement": getattr(statement, "text", statement)},
        )


def _settings(session: Session, flavor: Flavor) -> Iterator[str]:
    """The source's session, as far as it decides what a definition becomes."""
    mode = session.sql_mode
    yield (
        "SET SESSION sql_mode = DEFAULT"
        if mode is None
        else f"SET SESSION sql_mode = {mode & ~_NOT_KEPT_MODES[flavor]}"
    )
    zone = session.time_zone or "+00:00"
    yield f"SET SESSION time_zone = {quote('+00:00' if zone.upper() == 'SYSTEM' else zone)}"
    for name, value in (
        ("collation_connection", session.connection_collation),
        ("collation_server", session.server_collation),
    ):
        if value is not None:
            yield f"SET SESSION {name} = {value}"
    if session.explicit_defaults_for_timestamp is not None:
        yield f"SET SESSION explicit_defaults_for_timestamp = {int(session.explicit_defaults_for_timestamp)}"
