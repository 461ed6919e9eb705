"""The session at a tracker: made when it is needed, dropped when anything breaks it, its errors told apart.

A statement that broke off may have been carried out or not, or may be carried out later: so a session holds a lock of
the server, the next one begins when the server has ended the one before, and whoever asked makes everything there anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

import pymysql
from pymysql.connections import Connection

from binlake.errors import SchemaError, SourceUnavailable
from binlake.mysqlbinlog.definitions.described import visible_column
from pump_service.feeder.server import ask_by_name

_LOST = frozenset({0, 1053, 1077, 1079, 1152, 1184, 1317, 1927, 2002, 2003, 2006, 2013, 2014, 2055, 3169, 4031})
"""The session is over: the server ends, somebody killed it, the network broke."""
_NOT_NOW = frozenset({1021, 1030, 1037, 1038, 1040, 1041, 1114, 1203, 1205, 1213, 1226, 1290, 1836, 1969, 3024, 3168})
"""The server takes no statement for a while: no disk, no memory, locks, limits, read-only."""
_TABLE_WAIT_S = 20
"""What another session holds is waited for, and no longer: the servers' own limits are a day and a year."""
_SESSION_WAIT_S = 5
_NO_SUCH_SESSION = 1094


class TrackerLink:
    """`arguments`: of pymysql; `lock`: the name under which one session at a time works. Not thread-safe."""

    def __init__(self, arguments: Mapping[str, Any], lock: str) -> None:
        self._arguments = dict(arguments)
        self._lock = lock
        self._before = 0
        self._connection: Connection[Any] | None = None
        self.visible = ""

    def close(self) -> None:
        """End the session; the next call makes another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._before = connection.thread_id()  # type: ignore[no-untyped-call]
            connection._force_close()  # type: ignore[attr-defined]

    def execute(self, texts: Iterable[str], statement: object = "") -> None:
        """Carry out `texts`, which are those of `statement`. Raises SchemaError, SourceUnavailable."""
        link = self._connected()
        try:
            with closing(link.cursor()) as cursor:
                for text in texts:
                    cursor.execute(text)
        except pymysql.err.Error as error:
            raise self._failed(error, statement) from error

    def query(self, sql: str, arguments: Sequence[object] = ()) -> list[dict[str, Any]]:
        """All rows, by upper-case column name. Raises SchemaError, SourceUnavailable."""
        link = self._connected()
        try:
            return ask_by_name(link, sql, arguments)
        except pymysql.err.Error as error:
            raise self._failed(error, sql) from error

    def _connected(self) -> Connection[Any]:
        if self._connection is None:
            try:
                self._connection = pymysql.connect(**{"charset": "utf8mb4", **self._arguments, "autocommit": True})
            except pymysql.err.Error as error:
                raise SourceUnavailable(
                    f"the tracker cannot be reached: {error}", hint="look at the tracker in feeder.toml"
                ) from error
            try:
                self._begin()
            except BaseException:
                self.close()
                raise
        return self._connection

    def _begin(self) -> None:
        self._take_lock()
        settings = ("foreign_key_checks = 0", "sql_log_bin = 0", f"lock_wait_timeout = {_TABLE_WAIT_S}")
        self.execute(f"SET SESSION {setting}" for setting in settings)
        self.visible = visible_column(self.query)

    def _take_lock(self) -> None:
        if self._before and self._holder() == self._before:
            self._end_session(self._before)
        if self.query("SELECT GET_LOCK(%s, %s) AS HELD", (self._lock, _SESSION_WAIT_S))[0]["HELD"] != 1:
            holder = self._holder()
            raise SourceUnavailable(
                "another session at the tracker has the databases of this source", where={"session": holder},
                hint=f"a feeder with a source of this name uses the same tracker, or one died without its server"
                f" noticing: then KILL {holder} there",
            )  # fmt: skip

    def _holder(self) -> int:
        return int(self.query("SELECT IS_USED_LOCK(%s) AS HOLDER", (self._lock,))[0]["HOLDER"] or 0)

    def _end_session(self, session: int) -> None:
        assert self._connection is not None
        try:
            with closing(self._connection.cursor()) as cursor:
                cursor.execute("KILL %s", (session,))
        except pymysql.err.Error as error:
            if error.args[:1] != (_NO_SUCH_SESSION,):
                raise self._failed(error, "KILL") from error

    def _failed(self, error: pymysql.err.Error, statement: object) -> SchemaError | SourceUnavailable:
        code = error.args[0] if error.args else 0
        if code in _LOST or not isinstance(code, int):  # without a number: what came was no answer of a server
            self.close()
            return SourceUnavailable(f"the tracker went away: {error}")
        if code in _NOT_NOW:
            return SourceUnavailable(
                f"the tracker takes no statement now: {error}", hint="look at the server and its log of errors"
            )
        return SchemaError(
            f"the tracker refuses a statement of the source: {error}",
            hint="the tracker should be of the source's family and version ([tracker] in feeder.toml); or say in"
            " [[source.replace]] of feeder.toml what is to be followed instead (nothing: the statement is passed over)",
            where={"statement": statement},
        )
