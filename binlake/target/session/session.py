"""A connection to the target with the settings that the generated statements and literals assume (hazards R-12).

SIGTERM requests that a process's work on a target stops, and slow statements are then killed (S4-35, R-60): between two
batches the transaction is rolled back and the lease released. A statement may wait for a lock, or alter a table, for
longer than the requester waits. If it is killed, the server rolls its transaction back at once, and no session with an
open transaction outlives the process.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from types import FrameType
from typing import Any, TypeVar

import pymysql
import structlog
from pymysql import err
from pymysql.constants import CLIENT

from binlake.common.sql import Dialect
from binlake.common.sqllink import SqlLink, build_tls_arguments, show_bytes_too
from binlake.config.servers import TargetSection
from binlake.errors import BinlakeError, TargetRefused, TargetUnavailable, Transient, UnknownOutcome
from binlake.statements.render import render_lenient
from binlake.target.session.failures import (
    COLUMNS_SQL,
    TargetColumn,
    are_about_virtual,
    build_condition_query,
    find_refused_table,
    get_error_code,
    translate_error,
)

log = structlog.get_logger()

SQL_MODE = "STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION"
"""Strict, so that too long a value fails and is never truncated (S0-72); id 0 stays 0; zero and invalid dates of the
source are accepted (no NO_ZERO_*); backslashes escape; no ANSI_QUOTES."""

READ_TIMEOUT_S = 4 * 3600
"""The longest time a working server may be silent: an ADD INDEX may take hours. TCP keepalive finds a dead peer."""

_SETTINGS = (
    f"SET SESSION sql_mode = '{SQL_MODE}', time_zone = '+00:00', foreign_key_checks = 0",
    "SET NAMES utf8mb4 COLLATE utf8mb4_bin",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
)
_OPTIONAL = ("SET SESSION explicit_defaults_for_timestamp = 1",)
"""Some servers have it only as a global setting."""

_OPTIONAL_MARIADB = (
    # Rows satisfied the source's checks. A check that only the target has must not reject them (JSON over 32 levels).
    "SET SESSION check_constraint_checks = 0",
)
"""Settings that not every MariaDB has."""

_OPTIONAL_MYSQL = (
    # A source table without a key must neither be refused nor get a key.
    "SET SESSION sql_require_primary_key = 0",
    "SET SESSION sql_generate_invisible_primary_key = 0",
)
"""Settings that not every MySQL has, and that need SESSION_VARIABLES_ADMIN."""

_OPTIONAL_TIDB = (
    "SET SESSION allow_auto_random_explicit_insert = 1",
    "SET SESSION tidb_placement_mode = 'IGNORE'",
    # The fence needs row locks.
    "SET SESSION tidb_txn_mode = 'pessimistic'",
)
"""Settings that not every TiDB has."""

_OWN_OPTIONAL = {"mariadb": _OPTIONAL_MARIADB, "mysql": _OPTIONAL_MYSQL, "tidb": _OPTIONAL_TIDB}

_SAVEPOINT, _MOST_WARNINGS = "binlake_row", 65_535
_UNKNOWN_SETTING = frozenset({1193, 1227, 1229, 1231, 1238})
_NO_SUCH_SESSION = 1094

Record = TypeVar("Record")
_LOOK_S = 0.2


class TargetSession:
    """One connection. Statements outside `begin` and `commit` are committed at once.

    Methods raise TargetRefused, TargetBusy or TargetUnavailable.
    """

    def __init__(self, target: TargetSection) -> None:
        self.place = f"{target.host}:{target.port}"
        self._dialect: Dialect = target.db_type
        self._open = False
        self._link = self._connect(target)
        for statement in _SETTINGS:
            self.execute(statement)
        for statement in (*_OPTIONAL, *_OWN_OPTIONAL.get(target.db_type, ())):
            self._try(statement)

    @property
    def connection_id(self) -> int:
        """The server's id of this connection."""
        return int(self._link.thread_id())  # type: ignore[no-untyped-call]

    def fetch_max_packet(self) -> int:
        """Bytes that the server accepts in one packet (max_allowed_packet)."""
        return int(self.fetch_value("SELECT @@max_allowed_packet"))

    def begin(self) -> None:
        """Start a transaction."""
        self.execute("START TRANSACTION")
        self._open = True

    def commit(self) -> None:
        """Commit. Raises UnknownOutcome when the connection breaks: check the outcome before a retry (hazards R-61)."""
        try:
            self._link.query("COMMIT")
        except err.MySQLError as error:
            translated = translate_error(error, self.place, "COMMIT")
            if isinstance(translated, TargetUnavailable):
                raise UnknownOutcome("the connection broke at COMMIT", where=translated.where) from error
            raise translated from error
        self._open = False

    def commit_repeatable(self) -> None:
        """Commit a transaction that may run twice. Raises TargetUnavailable instead of UnknownOutcome."""
        try:
            self.commit()
        except UnknownOutcome as error:
            raise TargetUnavailable(error.message, where=error.where) from error

    def rollback(self) -> None:
        """Roll back; does nothing if no transaction is open."""
        if self._open:
            self.execute("ROLLBACK")
            self._open = False

    def execute(self, sql: str) -> int:
        """Run one statement without arguments. Returns the number of rows written, for an UPDATE of rows matched.

        In a transaction, rows whose virtual columns a strict session refuses are written all the same.
        """
        try:
            return self._run(sql)
        except TargetRefused as refusal:
            table = find_refused_table(sql, refusal) if self._open else None
            columns = self.fetch_records(TargetColumn, COLUMNS_SQL, table) if table is not None else ()
            if not any(column.is_virtual for column in columns):
                raise
            log.info("virtual_columns_not_strict", target=self.place, table=".".join(table or ()), reason=str(refusal))
            return self._write_leniently(sql, columns, refusal)

    def _run(self, sql: str) -> int:
        try:
            return int(self._link.query(sql.encode("utf-8", "surrogateescape")))
        except (err.MySQLError, OSError) as error:
            raise translate_error(_as_mysql(error), self.place, sql) from error

    def _write_leniently(self, sql: str, columns: Sequence[TargetColumn], refusal: TargetRefused) -> int:
        """Run `sql` not strict. Raises `refusal` if values do not fit columns that are not virtual."""
        self._try(f"SET SESSION max_error_count = {_MOST_WARNINGS}")
        only_values = self._reads_without_warning(build_condition_query(sql))
        self._run(f"SAVEPOINT {_SAVEPOINT}")
        written = self._run(render_lenient(sql, self._dialect))
        count = self.fetch_value("SHOW COUNT(*) WARNINGS")
        warnings = self.fetch_rows("SHOW WARNINGS")
        if len(warnings) != count or not are_about_virtual(columns, warnings, only_values=only_values):
            self._run(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
            raise refusal
        return written

    def _reads_without_warning(self, query: str | None) -> bool:
        if query is None:
            return True
        self.fetch_rows(query)
        return bool(self.fetch_value("SHOW COUNT(*) WARNINGS") == 0)

    def write(self, sql: str, arguments: Sequence[object]) -> int:
        """Run one statement with `%s` arguments; returns what `execute` does."""
        return self.execute(self._mogrify(sql, arguments))

    def fetch_rows(self, sql: str, arguments: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query; for small results."""
        with self._link.cursor() as cursor:
            try:
                cursor.execute(self._mogrify(sql, arguments) if arguments else sql)
                return list(cursor.fetchall())
            except (err.MySQLError, OSError) as error:
                raise translate_error(_as_mysql(error), self.place, sql) from error

    def fetch_mappings(self, sql: str, arguments: Sequence[object] = ()) -> list[dict[str, Any]]:
        """All rows of a query as {upper-case column: value}; empty for other statements; for small results."""
        with self._link.cursor() as cursor:
            try:
                cursor.execute(self._mogrify(sql, arguments) if arguments else sql)
                names = [str(column[0]).upper() for column in cursor.description or ()]
                return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
            except (err.MySQLError, OSError) as error:
                raise translate_error(_as_mysql(error), self.place, sql) from error

    def fetch_records(self, kind: Callable[..., Record], sql: str, arguments: Sequence[object] = ()) -> list[Record]:
        """All rows of a query, each as `kind(*columns)`; for small results."""
        return [kind(*row) for row in self.fetch_rows(sql, arguments)]

    def fetch_column(self, sql: str, arguments: Sequence[object] = ()) -> list[Any]:
        """The only column of a query; for small results."""
        return [value for (value,) in self.fetch_rows(sql, arguments)]

    def fetch_value(self, sql: str, arguments: Sequence[object] = ()) -> Any:
        """The first value of a query of one column; None if it has no rows."""
        return next(iter(self.fetch_column(sql, arguments)), None)

    def get_last_insert_id(self) -> int:
        """LAST_INSERT_ID of the last statement, as the server reported it."""
        return int(self._link.insert_id())  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Close the connection; the server rolls back an open transaction."""
        self._open = False
        if self._link.open:
            self._link.close()

    def kill(self, connection: int) -> None:
        """Kill another session of the server, whatever it is doing; it may be missing. Raises TargetRefused."""
        try:
            self.execute(f"KILL {connection}")
        except TargetRefused as error:
            # It may have ended by itself in between.
            if get_error_code(error) != _NO_SUCH_SESSION:
                raise

    def _connect(self, target: TargetSection) -> pymysql.Connection[Any]:
        try:
            link = SqlLink(
                host=target.host,
                port=target.port,
                user=target.user,
                password=target.password,
                charset="utf8mb4",
                # Without autocommit, MariaDB's EXCHANGE PARTITION waits for a lock held by its own check of the rows.
                autocommit=True,
                # Count all rows that an UPDATE matches, including unchanged ones.
                client_flag=CLIENT.FOUND_ROWS,
                connect_timeout=max(1, int(target.connect_timeout_s)),
                read_timeout=READ_TIMEOUT_S,
                program_name="binlake",
                **build_tls_arguments(target.security),
            )
            show_bytes_too(link)
            return link
        except (err.MySQLError, OSError) as error:
            raise translate_error(_as_mysql(error), self.place) from error

    def _mogrify(self, sql: str, arguments: Sequence[object]) -> str:
        with self._link.cursor() as cursor:
            return str(cursor.mogrify(sql, tuple(arguments)))

    def _try(self, statement: str) -> None:
        try:
            self.execute(statement)
        except TargetRefused as error:
            if get_error_code(error) not in _UNKNOWN_SETTING:
                raise
            log.debug("setting_not_there", statement=statement)


def _as_mysql(error: err.MySQLError | OSError) -> err.MySQLError:
    return error if isinstance(error, err.MySQLError) else err.OperationalError(2013, str(error))


class StopFlag:
    """Set by SIGTERM while the context is open (in a main thread), or by `set` from anywhere."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._installed = False
        self._before: object = None

    def __enter__(self) -> StopFlag:
        # Python accepts signal handlers only in the main thread.
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._on_signal)
            self._installed = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._installed:
            signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)  # type: ignore[arg-type]
            self._installed = False

    def set(self) -> None:
        """Ask to stop."""
        self._asked.set()

    def is_set(self) -> bool:
        """Whether a stop was requested."""
        return self._asked.is_set()

    def check(self) -> None:
        """Raises Transient when a stop was requested."""
        if self._asked.is_set():
            raise Transient(
                "stopped on request: the open transaction is rolled back",
                hint="run finalize again, it continues from the checkpoint",
            )

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._asked.set()


class StatementKiller:
    """Watches `stop` while the context is open. After the grace time it kills the sessions of `connections` (ids)."""

    def __init__(self, target: TargetSection, stop: StopFlag, connections: Callable[[], list[int]]) -> None:
        self._target = target
        self._stop = stop
        self._connections = connections
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="statement-killer", daemon=True)

    def __enter__(self) -> StatementKiller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=self._target.connect_timeout_s)

    def _run(self) -> None:
        # Poll instead of being notified: a signal handler must not take the locks that starting threads uses.
        while not self._ended.wait(_LOOK_S):
            if self._stop.is_set():
                if not self._ended.wait(self._target.graceful_stop_timeout_s):
                    self._kill()
                return

    def _kill(self) -> None:
        log.warning("statements_killed", after_s=self._target.graceful_stop_timeout_s)
        try:
            with closing(TargetSession(self._target)) as session:
                for connection in self._connections():
                    session.kill(connection)
        except BinlakeError as error:
            log.warning("statements_not_killed", error=str(error))
