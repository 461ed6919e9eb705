"""Connections to the target: one session for every writer, and each of the server's errors told apart once, here.

Sources: hazards R-12 (session settings), R-38 (deadlocks), R-61 (lost at COMMIT); tidb-binlog 5.10.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pymysql
from pymysql.connections import Connection

from binlake.config.model import Target
from binlake.errors import BinlakeError, TargetRefused, TargetUnavailable, Transient, UnknownOutcome

# Without NO_ZERO_*: the source may hold zero dates. With NO_AUTO_VALUE_ON_ZERO: id 0 stays 0.
SQL_MODE = "STRICT_TRANS_TABLES,NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION"
_SESSION = (
    f"SET SESSION time_zone = '+00:00', sql_mode = '{SQL_MODE}', foreign_key_checks = 0, unique_checks = 1,"
    " autocommit = 0"
)
_TIDB_SESSION = (
    "SET SESSION allow_auto_random_explicit_insert = 1",
    # The fence needs row locks.
    "SET SESSION tidb_txn_mode = 'pessimistic'",
    "SET SESSION tidb_placement_mode = 'ignore'",
)
_UNKNOWN_VARIABLE = 1193

# No connection, too many of them, shutting down, killed, lost, read-only after a switch.
_UNAVAILABLE = frozenset({0, 1040, 1053, 1152, 1158, 1159, 1160, 1161, 1203, 1290, 1317, 1927, 2002, 2003, 2006, 2013})
_LOST = frozenset({0, 1053, 1152, 1158, 1159, 1160, 1161, 1927, 2006, 2013, 4031})
_REPEATABLE = frozenset({1205, 1213})
_CREDENTIALS = frozenset({1044, 1045, 1698})

# A dead peer shows after about 90 s; a statement that runs for hours (a DDL) is left alone.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}


class TargetBusy(Transient):
    """A deadlock or a lock wait (1213, 1205): the transaction is rolled back and may be run again."""


def connect(target: Target, *, autocommit: bool = False) -> Connection[Any]:
    """A session on the target: UTC, strict, no foreign key checks, utf8mb4, autocommit off unless asked for.

    Raises TargetUnavailable (nobody answers) or TargetRefused (credentials, privileges).
    """
    with translated(target):
        connection = pymysql.connect(
            host=target.host,
            port=target.port,
            user=target.user,
            password=target.password,
            charset="utf8mb4",
            autocommit=None,
            defer_connect=True,
        )
        connection.connect(sock=_socket(target))
        _prepare(connection, target, autocommit)
        return connection


def _socket(target: Target) -> socket.socket:
    opened = socket.create_connection((target.host, target.port), timeout=target.connect_timeout_s)
    opened.settimeout(None)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    # The server speaks first; one that accepts and stays silent would hold us for ever.
    if not select.select([opened], [], [], target.connect_timeout_s)[0]:
        opened.close()
        raise TimeoutError("it accepts connections but does not greet")
    return opened


def _prepare(connection: Connection[Any], target: Target, autocommit: bool) -> None:
    execute(connection, _SESSION)
    if target.db_type == "tidb":
        for statement in _TIDB_SESSION:
            _try_setting(connection, statement)
    if autocommit:
        connection.autocommit(True)


def _try_setting(connection: Connection[Any], statement: str) -> None:
    try:
        execute(connection, statement)
    except pymysql.err.MySQLError as error:
        # Older servers do not have it, and then do not need it (tidb-binlog 5.10).
        if _code(error) != _UNKNOWN_VARIABLE:
            raise


def execute(connection: Connection[Any], sql: str, arguments: Sequence[object] = ()) -> int:
    """Run one statement; affected rows. Without arguments the text goes out as it is, `%` included."""
    with connection.cursor() as cursor:
        return int(cursor.execute(sql, tuple(arguments) or None))


def query(connection: Connection[Any], sql: str, arguments: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """All rows of one query."""
    with connection.cursor() as cursor:
        cursor.execute(sql, tuple(arguments) or None)
        return list(cursor.fetchall())


def commit(connection: Connection[Any], target: Target) -> None:
    """COMMIT. Raises UnknownOutcome when the connection breaks in it: then look before anything is repeated."""
    try:
        connection.commit()
    except (pymysql.err.MySQLError, OSError) as error:
        if is_lost(error):
            raise UnknownOutcome(
                f"the connection broke at COMMIT: {_text(error)}", where=_place(target), hint="run finalize again"
            ) from error
        raise classify(error, target) from error


def close(connection: Connection[Any]) -> None:
    """Close without a word: an open transaction is rolled back by the server."""
    with contextlib.suppress(pymysql.err.MySQLError, OSError):
        connection.close()


@contextlib.contextmanager
def translated(target: Target, where: Mapping[str, object] | None = None) -> Iterator[None]:
    """Inside, errors of the driver become BinlakeErrors by `classify`."""
    try:
        yield
    except (pymysql.err.MySQLError, OSError) as error:
        raise classify(error, target, where) from error


def classify(error: BaseException, target: Target, where: Mapping[str, object] | None = None) -> BinlakeError:
    """The BinlakeError for an error of the driver or socket; `where` is added to the target's place."""
    place = {**_place(target), **(where or {})}
    code = _code(error)
    if code in _REPEATABLE:
        return TargetBusy(f"the target rolled back: {_text(error)}", where=place)
    if isinstance(error, OSError) or is_lost(error) or code in _UNAVAILABLE:
        return TargetUnavailable(
            f"the target cannot be reached: {_text(error)}", where=place, hint="is it up, and is its address right?"
        )
    hint = "check target.user and target.password" if code in _CREDENTIALS else "see the server's message"
    return TargetRefused(f"the target refuses: {_text(error)}", where=place, hint=hint)


def is_lost(error: BaseException) -> bool:
    """True when the connection is gone, so that what it was doing may or may not have happened."""
    return isinstance(error, OSError | pymysql.err.InterfaceError) or _code(error) in _LOST


def _code(error: BaseException) -> int:
    first = error.args[0] if error.args else None
    return first if isinstance(first, int) and isinstance(error, pymysql.err.MySQLError) else -1


def _text(error: BaseException) -> str:
    if isinstance(error, pymysql.err.MySQLError) and len(error.args) > 1:
        return f"{error.args[1]} ({error.args[0]})"
    return str(error) or type(error).__name__


def _place(target: Target) -> dict[str, object]:
    return {"target": f"{target.host}:{target.port}", "user": target.user}
