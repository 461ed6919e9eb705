"""The session at a tracker: opened when needed, closed when anything breaks it, its errors classified.

A statement whose connection broke may have been executed or not, or may still be executed later. So a session holds a
lock of the server, the next session starts only after the server has ended the previous one, and the caller rebuilds
everything there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

import pymysql
from pymysql.connections import Connection

from binlake.base.sqllink import SqlLink, show_bytes_too
from binlake.errors import SchemaError, SourceUnavailable
from binlake.mysqlbinlog.definitions.descriptions import build_visibility_sql
from binlake.pump_service.feeder.server import ask_by_name

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
