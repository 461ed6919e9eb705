"""The tracker: a server of the source's family that executes DDL on empty tables, to see the resulting definitions.

Each database of a source has a scratch database there; the tracker owns the databases with that prefix and nothing
else. It stores nothing: its contents are rebuilt from the catalog at each start, and after a failed call (`rebuild`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

from binlake.dialect.names import put_target_names
from binlake.dialect.tokens import render
from binlake.mysqlbinlog.definitions.columntext import create_tokens
from binlake.mysqlbinlog.definitions.descriptions import (
    SCRATCH_PREFIX,
    SESSION,
    DatabaseDescription,
    TableDescription,
    describe_database,
    describe_table,
)
from binlake.mysqlbinlog.definitions.statements import NO_BACKSLASH_ESCAPES, SingleStatement
from binlake.mysqlbinlog.model import Flavor, LoggedSession
from binlake.pump_service.feeder.trackerlink import TrackerLink
from binlake.statements.literal import quote, quote_name

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
