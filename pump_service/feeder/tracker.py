"""The tracker: a server of the source's family that executes DDL on empty tables, to see the resulting definitions.

Each database of a source has a scratch database there; the tracker owns the databases with that prefix and nothing
else. It stores nothing: its contents are rebuilt from the catalog at each start, and after a failed call (`rebuild`).

A statement whose connection broke may have been executed or not, or may still be executed later. So a session holds a
lock of the server, the next session starts only after the server has ended the previous one, and the caller rebuilds
everything there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Protocol

import pymysql
from pymysql.connections import Connection

from binlake.common.sqllink import SqlLink, show_bytes_too
from binlake.dialect.names import put_target_names
from binlake.dialect.tokens import render
from binlake.errors import SchemaError, SourceUnavailable
from binlake.mysqlbinlog.definitions.columntext import create_tokens
from binlake.mysqlbinlog.definitions.descriptions import (
    SCRATCH_PREFIX,
    SESSION,
    DatabaseDescription,
    TableDescription,
    build_visibility_sql,
    describe_database,
    describe_table,
)
from binlake.mysqlbinlog.definitions.statements import NO_BACKSLASH_ESCAPES, SingleStatement
from binlake.mysqlbinlog.model import Flavor, LoggedSession
from binlake.pump_service.feeder.server import ask_by_name
from binlake.statements.literal import quote, quote_name

_CONNECTION_LOST = frozenset(
    {0, 1053, 1077, 1079, 1152, 1184, 1317, 1927, 2002, 2003, 2006, 2013, 2014, 2055, 3169, 4031}
)
"""Errors of a lost session: the server shuts down, the session was killed, the network broke."""

_TEMPORARY = frozenset({1021, 1030, 1037, 1038, 1040, 1041, 1114, 1203, 1205, 1213, 1226, 1290, 1836, 1969, 3024, 3168})
"""Errors of a server that temporarily accepts no statements: no disk, no memory, locks, limits, read-only."""

_TABLE_WAIT_S = 20
"""How long to wait for a table that another session holds: the servers' own limits are a day and a year."""

_SESSION_WAIT_S = 5
_NO_SUCH_SESSION = 1094
_ZONES = (
    "the session's time zone has a name that the tracker does not know: load its time zones there"
    " (`mariadb-tzinfo-to-sql /usr/share/zoneinfo | mariadb mysql`, for MySQL `mysql_tzinfo_to_sql`) and restart the"
    " feeder"
)
_CASE = (
    "the tracker needs the source's lower_case_table_names, or it takes names that differ in letter case for one, or"
    " one for two: `binlake feeder check` compares them"
)
_OTHER_VERSION = "the tracker should be of the source's family and version ([tracker] in feeder.toml)"

_REMEDIES = {1298: _ZONES, **dict.fromkeys((1007, 1008, 1049, 1050, 1051, 1146), _CASE)}
"""By error: unknown zone; a database or table that exists already, or does not exist."""

_MAX_NAME = 64

_LONGEST = 24
"""Characters of a source's name that are in the names of its scratch databases."""

_DROPPED_MODES = {
    Flavor.MARIADB: NO_BACKSLASH_ESCAPES | 1 << 30,
    Flavor.MYSQL: NO_BACKSLASH_ESCAPES | 1 << 30 | 1 << 28 | 0x7FF00,
}
"""Bits removed from sql_mode: how strings are read (they are in standard form), NO_ENGINE_SUBSTITUTION (the tracker
needs no particular engine), and for MySQL what version 8 no longer knows (NO_AUTO_CREATE_USER, modes of other
databases)."""

_KEEP_TIME_DEFAULTS = {Flavor.MARIADB: (), Flavor.MYSQL: ("SET SESSION explicit_defaults_for_timestamp = 1",)}
"""Lets each TIMESTAMP keep its defaults: MySQL logs the setting only for a statement that names a TIMESTAMP."""


class SourceTracker(Protocol):
    """Executes DDL on empty tables and describes the result, both under the source's names."""

    def run(self, statement: SingleStatement, session: LoggedSession) -> None:
        """Execute one statement. Raises SchemaError if the server refuses it, SourceUnavailable if it is down."""

    def describe_table(self, db: str, table: str) -> TableDescription | None:
        """The table's present definition at the tracker; None if there is no such table."""

    def describe_database(self, db: str) -> DatabaseDescription | None:
        """The database's present definition (without tables) at the tracker, under its name there; None if it has
        none."""

    def rebuild(self, databases: Iterable[DatabaseDescription]) -> None:
        """Recreate everything: exactly these databases and tables."""


class ScratchServer:
    """The tracker of one source on a real server. `connect`: keyword arguments of pymysql. Not thread-safe.

    Each method raises SchemaError if the server refuses, SourceUnavailable if it is down.
    """

    def __init__(self, source: str, flavor: Flavor, connect: Mapping[str, Any]) -> None:
        self._flavor = flavor
        self._scratch = _Scratch(source)
        self._to_scratch, self._to_source = _Names(self._scratch.map_database), _Names(self._scratch.find_original)
        self._link = TrackerLink(connect, self._scratch.prefix)

    def close(self) -> None:
        """Close the connection; the scratch databases stay until the next start."""
        self._link.close()

    def run(self, statement: SingleStatement, session: LoggedSession) -> None:
        """See `SourceTracker.run`; the session's settings apply to this statement."""
        text = put_target_names(statement.text, statement.db, self._to_scratch)
        settings = [
            *_build_session_statements(session, self._flavor),
            *self._build_time_statements(session.explicit_defaults_for_timestamp),
            *self._build_utf8mb4_statements(session.utf8mb4_collation),
        ]
        self._link.execute([*settings, text], statement.text)

    def _build_time_statements(self, is_explicit: bool | None) -> Iterable[str]:
        """Sets which defaults a TIMESTAMP has; not sent if already so: before MariaDB 10.8 no session may set it."""
        if is_explicit is None:
            return _KEEP_TIME_DEFAULTS[self._flavor]
        name = "explicit_defaults_for_timestamp"
        same = int(self._link.query(f"SELECT @@{name} AS IS_SET")[0]["IS_SET"]) == is_explicit
        return [] if same else [f"SET SESSION {name} = {int(is_explicit)}"]

    def _build_utf8mb4_statements(self, collation: int | None) -> list[str]:
        """Sets what `CHARACTER SET utf8mb4` alone means; not sent if already so, since it needs a privilege."""
        name = "default_collation_for_utf8mb4"
        if collation is None or not self._link.query(f"SHOW VARIABLES LIKE '{name}'"):
            return []
        ids = f"SELECT ID FROM information_schema.COLLATIONS WHERE COLLATION_NAME = @@SESSION.{name}"
        same = [row["ID"] for row in self._link.query(ids)] == [collation]
        return [] if same else [f"SET SESSION {name} = {collation}"]

    def describe_table(self, db: str, table: str) -> TableDescription | None:
        """See `SourceTracker.describe_table`."""
        self._link.execute(SESSION)
        there = self._scratch.map_database(db)
        description = describe_table(self._link.query, self._flavor, there, table, self._link.visible)
        if description is None:
            return None
        create = render(create_tokens(description.create, self._flavor))
        return replace(description, db=db, create=put_target_names(create, there, self._to_source))

    def describe_database(self, db: str) -> DatabaseDescription | None:
        """See `SourceTracker.describe_database`."""
        # With lower_case_table_names = 1 a server stores the name in lower case.
        for name in (db, db.lower()):
            description = describe_database(self._link.query, self._scratch.map_database(name))
            if description is not None:
                return replace(description, name=name)
        return None

    def rebuild(self, databases: Iterable[DatabaseDescription]) -> None:
        """See `SourceTracker.rebuild`."""
        self._link.execute(self._build_drop_statements())
        for database in databases:
            name = quote_name(self._scratch.map_database(database.name))
            self._link.execute([f"CREATE DATABASE {name} CHARACTER SET {database.charset} COLLATE {database.collate}"])
            for table in database.tables:
                create = render(create_tokens(table.create, self._flavor))
                text = put_target_names(create, database.name, self._to_scratch)
                self._link.execute([*SESSION, *_KEEP_TIME_DEFAULTS[self._flavor], text], text)

    def _build_drop_statements(self) -> list[str]:
        rows = self._link.query("SELECT SCHEMA_NAME FROM information_schema.SCHEMATA")
        names = [row["SCHEMA_NAME"] for row in rows]
        return [f"DROP DATABASE {quote_name(name)}" for name in names if name.startswith(self._scratch.prefix)]


class _Names:
    """Renames databases by the function `map_database`; tables have the same name on both sides."""

    def __init__(self, map_database: Callable[[str], str]) -> None:
        self.map_database = map_database

    def map_table(self, db: str, table: str, *, new: bool = False) -> tuple[str, str]:  # noqa: ARG002
        """(db, table) on the other side."""
        return self.map_database(db), table


class _Scratch:
    """Maps a source's database names to its scratch databases, and back."""

    def __init__(self, source: str) -> None:
        self.prefix = f"{SCRATCH_PREFIX}{_build_source_tag(source)}__"
        self._known: dict[str, str] = {}

    def map_database(self, db: str) -> str:
        """The scratch database of `db`."""
        name = f"{self.prefix}{db}"
        if len(name) > _MAX_NAME:
            name = f"{name[: _MAX_NAME - 9]}_{_compute_digest(name)}"
        self._known[name] = db
        return name

    def find_original(self, name: str) -> str:
        """The source's name of a scratch database; any other name is returned unchanged."""
        return self._known.get(name, name)


def _build_source_tag(source: str) -> str:
    """The source in a prefix that is unique to it and that the server returns unchanged, also in lower case."""
    is_plain = source == source.lower() and len(source) <= _LONGEST and "__" not in source and not source.endswith("_")
    return (
        source if is_plain else f"{source.lower()[:_LONGEST].strip('_')}-{_compute_digest(source)}".replace("__", "-")
    )


def _compute_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _build_session_statements(session: LoggedSession, flavor: Flavor) -> Iterator[str]:
    """Statements that set up the source's session, as far as it affects definitions."""
    mode = session.sql_mode
    yield ("SET SESSION sql_mode = ''" if mode is None else f"SET SESSION sql_mode = {mode & ~_DROPPED_MODES[flavor]}")
    zone = session.time_zone or "+00:00"
    yield f"SET SESSION time_zone = {quote('+00:00' if zone.upper() == 'SYSTEM' else zone)}"
    for name, value in (
        ("collation_connection", session.connection_collation),
        ("collation_server", session.server_collation),
    ):
        if value is not None:
            yield f"SET SESSION {name} = {value}"


class TrackerLink:
    """`arguments`: for pymysql; `lock`: name of the lock that lets one session work at a time. Not thread-safe."""

    def __init__(self, arguments: Mapping[str, Any], lock: str) -> None:
        self._arguments = dict(arguments)
        self._lock = lock
        self._last_session = 0
        self._connection: Connection[Any] | None = None
        self.visible = ""

    def close(self) -> None:
        """End the session; the next call opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._last_session = connection.thread_id()  # type: ignore[no-untyped-call]
            connection._force_close()  # type: ignore[attr-defined]

    def execute(self, texts: Iterable[str], statement: object = "") -> None:
        """Execute `texts`; errors name `statement`. Raises SchemaError, SourceUnavailable."""
        link = self._ensure_connected()
        try:
            with closing(link.cursor()) as cursor:
                for text in texts:
                    cursor.execute(text)
        except pymysql.err.Error as error:
            raise self._translate_error(error, statement) from error

    def query(self, sql: str, arguments: Sequence[object] = ()) -> list[dict[str, Any]]:
        """All rows, by upper-case column name. Raises SchemaError, SourceUnavailable."""
        link = self._ensure_connected()
        try:
            return ask_by_name(link, sql, arguments)
        except pymysql.err.Error as error:
            raise self._translate_error(error, sql) from error

    def _ensure_connected(self) -> Connection[Any]:
        if self._connection is None:
            try:
                self._connection = SqlLink(**{"charset": "utf8mb4", **self._arguments, "autocommit": True})
                show_bytes_too(self._connection)
            except pymysql.err.Error as error:
                raise SourceUnavailable(
                    f"the tracker cannot be reached: {error}", hint="look at the tracker in feeder.toml"
                ) from error
            try:
                self._prepare_session()
            except BaseException:
                self.close()
                raise
        return self._connection

    def _prepare_session(self) -> None:
        self._take_lock()
        settings = ("foreign_key_checks = 0", "sql_log_bin = 0", f"lock_wait_timeout = {_TABLE_WAIT_S}")
        self.execute(f"SET SESSION {setting}" for setting in settings)
        self.visible = build_visibility_sql(self.query)

    def _take_lock(self) -> None:
        if self._last_session and self._lock_holder() == self._last_session:
            self._end_session(self._last_session)
        if self.query("SELECT GET_LOCK(%s, %s) AS HELD", (self._lock, _SESSION_WAIT_S))[0]["HELD"] != 1:
            holder = self._lock_holder()
            raise SourceUnavailable(
                "another session at the tracker uses the databases of this source", where={"session": holder},
                hint=f"another feeder with a source of this name uses the same tracker, or a feeder died without the"
                f" server noticing: then KILL {holder} there",
            )  # fmt: skip

    def _lock_holder(self) -> int:
        return int(self.query("SELECT IS_USED_LOCK(%s) AS HOLDER", (self._lock,))[0]["HOLDER"] or 0)

    def _end_session(self, session: int) -> None:
        assert self._connection is not None
        try:
            with closing(self._connection.cursor()) as cursor:
                cursor.execute("KILL %s", (session,))
        except pymysql.err.Error as error:
            if error.args[:1] != (_NO_SUCH_SESSION,):
                raise self._translate_error(error, "KILL") from error

    def _translate_error(self, error: pymysql.err.Error, statement: object) -> SchemaError | SourceUnavailable:
        code = error.args[0] if error.args else 0
        if code in _CONNECTION_LOST or not isinstance(code, int):  # no number: the error is not a server's answer
            self.close()
            return SourceUnavailable(f"the connection to the tracker was lost: {error}")
        if code in _TEMPORARY:
            return SourceUnavailable(
                f"the tracker accepts no statements now: {error}", hint="look at the server and its error log"
            )
        return SchemaError(
            f"the tracker refuses a statement of the source: {error}",
            hint=f"{_REMEDIES.get(code, _OTHER_VERSION)}; or set in [[source.replace]] of feeder.toml what to follow"
            " instead (nothing: the statement is skipped)",
            where={"statement": statement},
        )
