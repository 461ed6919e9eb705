"""Opens a consistent snapshot: sessions that all see the source as it was at one position of its log, and its
definitions.

MariaDB shows each session the position of its snapshot, so its sessions are opened without a lock and compared. MySQL
does not: a lock blocks commits while the sessions are opened.

A snapshot, its position and its definitions belong to one server's log. Another server may be behind, or lack what the
first one has; a name or an address may lead to either.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

import structlog
from pymysql import err
from pymysql.constants import ER

from binlake.errors import SourceRefused, SourceUnavailable
from binlake.mysqlbinlog.definitions.descriptions import DatabaseDescription
from binlake.mysqlbinlog.definitions.writer import DefinitionChange
from binlake.mysqlbinlog.events.gtid import parse_gtid_set
from binlake.mysqlbinlog.model import BinlogPosition, Flavor
from binlake.mysqlbinlog.tablerows.link import Name
from binlake.pump_service.feeder.dump import ServerIdentity, read_identity
from binlake.pump_service.feeder.publisher import Outgoing, PublishedDdl
from binlake.pump_service.feeder.server import (
    Address,
    Link,
    ask,
    build_source_error,
    connect,
    derive_flavor,
    read_log_end,
)
from binlake.pump_service.feeder.settings import SourceFile
from binlake.pump_service.feeder.snapshot.structures import LOCK_WAIT_S, count_moves, describe_source
from binlake.statements.literal import quote_qualified_name

log = structlog.get_logger()

_TRIES = 20
"""Times MariaDB's sessions are opened without a lock before a lock is taken."""

_REFUSED = (ER.SPECIFIC_ACCESS_DENIED_ERROR, ER.ACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR)
_SETTINGS = (
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "SET NAMES utf8mb4",
    "SET time_zone = '+00:00', sql_mode = '', net_write_timeout = 3600, wait_timeout = 86400",
)

_LIMITS = {
    Flavor.MARIADB: "SET max_statement_time = 0",
    Flavor.MYSQL: "SET max_execution_time = 0",
}
"""Removes the server's limit on statement time, because reading a table takes long."""

_READ_TIMEOUT_S = 600  # for one answer: finding the bound of a chunk may take long
_DESCRIPTION_TRIES = 10  # times a snapshot is opened before giving up because DDL keeps running


class DescribedSnapshot(NamedTuple):
    """An open snapshot, the definitions of its tables, and the count of moved names before it (`count_moves`)."""

    snapshot: SourceSnapshots
    databases: list[DatabaseDescription]
    moves: tuple[int, ...]


def open_described_snapshot(source: SourceFile, threads: int = 0) -> DescribedSnapshot:
    """A snapshot with at most `threads` sessions (0 = those of the settings), which the caller closes.

    Raises SourceUnavailable, SourceRefused.
    """
    server = OneServer(source)
    with closing(server.connect()) as link:
        before = describe_source(link)
        for _ in range(_DESCRIPTION_TRIES):
            moves = count_moves(link)
            names = [(table.db, table.name) for database in before for table in database.tables]
            sessions = threads or source.snapshot.threads
            snapshot = open_snapshot(server.connect, derive_flavor(link), sessions, names)
            try:
                after = describe_source(link)
            except BaseException:
                snapshot.close()
                raise
            if after == before:
                return DescribedSnapshot(snapshot, after, moves)
            snapshot.close()
            before = after
    raise SourceUnavailable(
        "the source's definitions keep changing", hint="the load begins as soon as its DDL has finished"
    )


@dataclass(frozen=True, slots=True)
class SourceSnapshots:
    """`sessions` that see the source at `position`, each used by one reader at a time."""

    flavor: Flavor
    position: BinlogPosition
    sessions: tuple[Link, ...]

    def close(self) -> None:
        """End the sessions."""
        for session in self.sessions:
            with contextlib.suppress(err.Error):
                session.close()

    def __enter__(self) -> SourceSnapshots:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_snapshot(
    connect: Callable[[], Link], flavor: Flavor, sessions: int, tables: Sequence[Name]
) -> SourceSnapshots:
    """A snapshot with at most `sessions` sessions; `tables` are locked if the server does not grant a global lock.

    Raises SourceUnavailable if the source does not answer or is locked, SourceRefused without its log or a privilege.
    """
    links: list[Link] = []
    try:
        for _ in range(max(sessions, 1)):
            links.append(open_session(connect, flavor))
        if flavor is Flavor.MARIADB:
            return _open_mariadb(connect, links)
        with _block_commits(connect, tables):
            _begin(links)
            return SourceSnapshots(flavor, read_log_end(links[0]), tuple(links))
    except BaseException as error:
        SourceSnapshots(flavor, BinlogPosition("", 0), tuple(links)).close()
        if isinstance(error, err.Error):
            raise build_source_error(error) from error
        raise


def open_session(connect: Callable[[], Link], flavor: Flavor) -> Link:
    """A session with the settings of a snapshot's sessions: it shows values and compares keys the same way."""
    link = connect()
    for statement in (*_SETTINGS, f"SET lock_wait_timeout = {LOCK_WAIT_S}", _LIMITS[flavor]):
        ask(link, statement)
    return link


def _begin(links: Sequence[Link]) -> None:
    for link in links:
        ask(link, "ROLLBACK")
        ask(link, "START TRANSACTION WITH CONSISTENT SNAPSHOT")


def _open_mariadb(connect: Callable[[], Link], links: list[Link]) -> SourceSnapshots:
    for _ in range(_TRIES):
        _begin(links)
        positions = [_read_mariadb_position(link) for link in links]
        if len(set(positions)) == 1:
            return _build_mariadb_snapshot(positions[0], links)
    try:
        with _hold_global_lock(connect):
            _begin(links)
    except err.Error as error:
        if error.args[0] not in _REFUSED:
            raise
        log.warning(
            "snapshot_has_one_session", reason="commits come too fast, and the user may not lock", code=error.args[0]
        )
        for link in links[1:]:
            link.close()
        del links[1:]
        _begin(links)
    return _build_mariadb_snapshot(_read_mariadb_position(links[0]), links)


def _read_mariadb_position(link: Link) -> tuple[str, int]:
    status = {name.lower(): value for name, value in ask(link, "SHOW STATUS LIKE 'binlog_snapshot_%'")}
    if not status.get("binlog_snapshot_file"):
        raise SourceRefused("the server writes no binary log", hint="start it with --log-bin and binlog_format = ROW")
    return status["binlog_snapshot_file"], int(status["binlog_snapshot_position"])


def _build_mariadb_snapshot(file_offset: tuple[str, int], links: Sequence[Link]) -> SourceSnapshots:
    file, offset = file_offset
    gtids = str(ask(links[0], "SELECT BINLOG_GTID_POS(%s, %s)", file_offset)[0][0] or "")
    position = BinlogPosition(file, offset, parse_gtid_set(Flavor.MARIADB, gtids).format_text())
    return SourceSnapshots(Flavor.MARIADB, position, tuple(links))


@contextlib.contextmanager
def _block_commits(connect: Callable[[], Link], tables: Sequence[Name]) -> Iterator[None]:
    """Block commits: on the whole server, or to `tables` if the user may not lock the server (as in most clouds)."""
    with contextlib.ExitStack() as locks:
        try:
            locks.enter_context(_hold_global_lock(connect))
        except err.Error as error:
            if error.args[0] not in _REFUSED:
                raise
            log.info("snapshot_locks_tables", tables=len(tables), code=error.args[0])
            locks.enter_context(_hold_table_locks(connect, tables))
        yield


@contextlib.contextmanager
def _hold_global_lock(connect: Callable[[], Link]) -> Iterator[None]:
    with contextlib.closing(connect()) as link:
        ask(link, f"SET lock_wait_timeout = {LOCK_WAIT_S}")
        ask(link, "FLUSH TABLES WITH READ LOCK")
        yield


@contextlib.contextmanager
def _hold_table_locks(connect: Callable[[], Link], tables: Sequence[Name]) -> Iterator[None]:
    with contextlib.closing(connect()) as link:
        ask(link, f"SET lock_wait_timeout = {LOCK_WAIT_S}")
        if tables:
            ask(link, "LOCK TABLES " + ", ".join(f"{quote_qualified_name(*name)} READ" for name in tables))
        yield


class OneServer:
    """The first of `source`'s servers that answers, and from then on only that one. Not thread-safe."""

    def __init__(self, source: SourceFile) -> None:
        self._source = source
        self._address: Address | None = None
        self._identity: ServerIdentity | None = None

    def connect(self) -> Link:
        """A session. Raises pymysql's errors and SourceUnavailable, also if another server answers at the address."""
        link = self._open()
        try:
            identity = read_identity(link, derive_flavor(link))
            if identity != (self._identity or identity):
                raise SourceUnavailable(
                    "two servers answer at one address of the source, and a snapshot is read from one server",
                    hint="if a proxy or a name leads to several servers, list each one in `addresses` of the source",
                    where={"address": ":".join(map(str, self._address or ())), "server": identity.uuid},
                )
        except BaseException:
            link._force_close()  # type: ignore[attr-defined]
            raise
        self._identity = identity
        return link

    def _open(self) -> Link:
        addresses = [self._address] if self._address else self._source.servers
        for address in addresses[:-1]:
            try:
                return self._open_at(address)
            except SourceUnavailable as error:
                log.warning("server_unavailable", source=self._source.name, error=str(error))
        return self._open_at(addresses[-1])

    def _open_at(self, address: Address) -> Link:
        link = connect(self._source, address, read_timeout=_READ_TIMEOUT_S)
        self._address = address
        return link


def build_id_prefix(position: BinlogPosition) -> str:
    """The beginning of the identities of a snapshot's transactions."""
    return f"snapshot-{position.file}:{position.offset}"


def build_definitions(changes: Sequence[DefinitionChange], prefix: str, began_ms: int) -> list[Outgoing]:
    """`changes` as transactions with the identities `prefix`-N; N is negative: these come before the rows."""
    return [
        Outgoing(
            f"{prefix}-{n - len(changes)}", began_ms,
            ddl=PublishedDdl(change.query, change.job_id, change.build_job, change.schema_state),
        )
        for n, change in enumerate(changes)
    ]  # fmt: skip
