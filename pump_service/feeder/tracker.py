"""The tracker: a server of the source's family on which DDL is carried out on empty tables, to see what it makes.

Each database of a source has a scratch database there; the tracker owns all of that name and nothing else. It is no
store: what it holds is made again from the catalog at each start, and whenever a call failed (`rebuild`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

from binlake.dialect.names import put_target_names
from binlake.dialect.tokens import render
from binlake.mysqlbinlog.definitions.columntext import create_tokens
from binlake.mysqlbinlog.definitions.described import (
    SCRATCH_PREFIX,
    SESSION,
    DatabaseDescription,
    TableDescription,
    describe_database,
    describe_table,
)
from binlake.mysqlbinlog.definitions.statements import NO_BACKSLASH_ESCAPES, SingleStatement
from binlake.mysqlbinlog.model import Flavor, Session
from binlake.statements.literal import quote, quote_name
from pump_service.feeder.trackerlink import TrackerLink

_MOST = 64
_LONGEST = 24
"""Characters of a source's name that are in the names of its scratch databases."""
_NOT_KEPT_MODES = {
    Flavor.MARIADB: NO_BACKSLASH_ESCAPES | 1 << 30,
    Flavor.MYSQL: NO_BACKSLASH_ESCAPES | 1 << 30 | 1 << 28 | 0x7FF00,
}
"""sql_mode without: how strings are read (they are in standard form), NO_ENGINE_SUBSTITUTION (the tracker needs no
engine), and in MySQL what version 8 does not know any more (NO_AUTO_CREATE_USER, modes of other databases)."""

_OWN_TIMES = {Flavor.MARIADB: (), Flavor.MYSQL: ("SET SESSION explicit_defaults_for_timestamp = 1",)}
"""What leaves each TIMESTAMP the defaults that it has; MySQL's log says no other value where a statement names none."""


class Tracker(Protocol):
    """Carries out DDL on empty tables and describes what is there, both under the source's names."""

    def run(self, statement: SingleStatement, session: Session) -> None:
        """Carry out one statement. Raises SchemaError where the server refuses, SourceUnavailable where it is away."""

    def table(self, db: str, table: str) -> TableDescription | None:
        """The table as it is there now; None where there is none."""

    def database(self, db: str) -> DatabaseDescription | None:
        """The database (without tables) as it is there now, under the name it has there; None where there is none."""

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
        self.prefix = f"{SCRATCH_PREFIX}{_tag(source)}__"
        self._known: dict[str, str] = {}

    def database(self, db: str) -> str:
        """The scratch database of `db`."""
        name = f"{self.prefix}{db}"
        if len(name) > _MOST:
            name = f"{name[: _MOST - 9]}_{_digest(name)}"
        self._known[name] = db
        return name

    def original(self, name: str) -> str:
        """The source's name of a scratch database; any other name is itself."""
        return self._known.get(name, name)


def _tag(source: str) -> str:
    """The source in a prefix that is of no other source and that the server returns as it is, also in lower case."""
    is_plain = source == source.lower() and len(source) <= _LONGEST and "__" not in source and not source.endswith("_")
    return source if is_plain else f"{source.lower()[:_LONGEST].strip('_')}-{_digest(source)}".replace("__", "-")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


class ScratchServer:
    """The tracker of one source on a real server. `connect`: keyword arguments of pymysql. Not thread-safe.

    Each method raises SchemaError where the server refuses, SourceUnavailable where it is away.
    """

    def __init__(self, source: str, flavor: Flavor, connect: Mapping[str, Any]) -> None:
        self._flavor = flavor
        self._scratch = _Scratch(source)
        self._there, self._back = _Names(self._scratch.database), _Names(self._scratch.original)
        self._link = TrackerLink(connect, self._scratch.prefix)

    def close(self) -> None:
        """End the connection; the scratch databases stay until the next start."""
        self._link.close()

    def run(self, statement: SingleStatement, session: Session) -> None:
        """As the protocol says; the session's settings hold for this statement."""
        text = put_target_names(statement.text, statement.db, self._there)
        settings = [*_settings(session, self._flavor), *self._utf8mb4_setting(session.utf8mb4_collation)]
        self._link.execute([*settings, text], statement.text)

    def _utf8mb4_setting(self, collation: int | None) -> list[str]:
        """What `CHARACTER SET utf8mb4` alone means: not sent where it is so already, for it takes a privilege."""
        name = "default_collation_for_utf8mb4"
        if collation is None or not self._link.query(f"SHOW VARIABLES LIKE '{name}'"):
            return []
        ids = f"SELECT ID FROM information_schema.COLLATIONS WHERE COLLATION_NAME = @@SESSION.{name}"
        same = [row["ID"] for row in self._link.query(ids)] == [collation]
        return [] if same else [f"SET SESSION {name} = {collation}"]

    def table(self, db: str, table: str) -> TableDescription | None:
        """As the protocol says."""
        self._link.execute(SESSION)
        there = self._scratch.database(db)
        found = describe_table(self._link.query, self._flavor, there, table, self._link.visible)
        if found is None:
            return None
        create = render(create_tokens(found.create, self._flavor))
        return replace(found, db=db, create=put_target_names(create, there, self._back))

    def database(self, db: str) -> DatabaseDescription | None:
        """As the protocol says."""
        # With lower_case_table_names = 1 a server has another name than the statement said.
        for name in (db, db.lower()):
            found = describe_database(self._link.query, self._scratch.database(name))
            if found is not None:
                return replace(found, name=name)
        return None

    def rebuild(self, databases: Iterable[DatabaseDescription]) -> None:
        """As the protocol says."""
        self._link.execute(self._drops())
        for database in databases:
            name = quote_name(self._scratch.database(database.name))
            self._link.execute([f"CREATE DATABASE {name} CHARACTER SET {database.charset} COLLATE {database.collate}"])
            for table in database.tables:
                create = render(create_tokens(table.create, self._flavor))
                text = put_target_names(create, database.name, self._there)
                self._link.execute([*SESSION, *_OWN_TIMES[self._flavor], text], text)

    def _drops(self) -> list[str]:
        rows = self._link.query("SELECT SCHEMA_NAME FROM information_schema.SCHEMATA")
        names = [row["SCHEMA_NAME"] for row in rows]
        return [f"DROP DATABASE {quote_name(name)}" for name in names if name.startswith(self._scratch.prefix)]


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
    is_explicit = session.explicit_defaults_for_timestamp
    if is_explicit is not None:
        yield f"SET SESSION explicit_defaults_for_timestamp = {int(is_explicit)}"
    else:
        yield from _OWN_TIMES[flavor]
