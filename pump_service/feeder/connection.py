"""The log of one source, read for as long as the feeder runs: `open_log`.

When a connection breaks, reading resumes at the end of the last whole transaction, at the next server of the topology
in turn; an error that no retry can fix is raised, naming the source.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pymysql
import structlog

from binlake.errors import LostRange, SourceUnavailable
from binlake.mysqlbinlog.events.query import Xid
from binlake.mysqlbinlog.events.transactions import GtidOrigin, TransactionReader
from binlake.mysqlbinlog.model import BinlogPosition, Flavor, RowsEvent, SourceTransaction
from binlake.pump_service.feeder.dump import Dump, DumpRequest, LogStart, find_start, read_identity
from binlake.pump_service.feeder.server import (
    Address,
    Link,
    build_dump_error,
    connect,
    derive_flavor,
    format_address,
    read_log_end,
    read_log_files,
    read_logs_cascades,
)
from binlake.pump_service.feeder.settings import SourceFile

log = structlog.get_logger()

_RETRY_S = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Delays before reconnecting after a connection broke; the last one repeats."""
_WHOLE_LOG_WAIT_S = 60.0
_FIRST_EVENT = 4


def open_log(
    source: SourceFile,
    server_id: int,
    position: BinlogPosition,
    *,
    last_uuid: str = "",
    last_id: str = "",
    on_server: Callable[[str], None] = lambda _: None,
    folder: Path | None = None,
) -> SourceLog:
    """The transactions of `source` after `position`; connects on the first read.

    `server_id`: under which the feeder registers; `last_uuid`: the server that `position` was read from, if known;
    `on_server`: called with the UUID (MariaDB: the server id) of a different server before anything is read from it;
    `last_id`: the transaction before `position`; it comes again if `position` lies before a CREATE TABLE and its rows;
    `folder`: where the rows of large transactions are kept until they are published.
    """
    return SourceLog(source, server_id, position, last_uuid, last_id, on_server, folder)


class SourceLog:
    """An iterator over the transactions of a source, and the state of its connection. One thread reads; any thread may
    look at the state.

    `trouble`: why there is no connection, "" while connected; `connections`: number of connections made; `server`,
    `server_uuid`: of the latest connection; `heard`: time.monotonic() when bytes last arrived.
    """

    def __init__(
        self,
        source: SourceFile,
        server_id: int,
        position: BinlogPosition,
        last_uuid: str,
        last_id: str,
        on_server: Callable[[str], None],
        folder: Path | None = None,
    ) -> None:
        self._source = source
        self._server_id = server_id
        self._next_address = 0
        self._tries = 0
        self._stopped = threading.Event()
        self._dump: Dump | None = None
        self._reader: TransactionReader | None = None
        self._events: Iterator[bytes] = iter(())
        self._last_id = last_id
        self._on_server = on_server
        self._folder = folder
        self.position = position
        self.server_uuid = last_uuid
        self.server: Address = source.servers[0]
        self.trouble = "not connected yet"
        self.connections = 0
        self.logs_cascades = False
        self.heard = 0.0

    def __iter__(self) -> Iterator[SourceTransaction]:
        while not self._stopped.is_set():
            yield from self.read(max_transactions=1, wait_s=60.0)

    def read(
        self, max_transactions: int = 1000, max_bytes: int = 8 << 20, wait_s: float = 1.0
    ) -> list[SourceTransaction]:
        """The transactions that have arrived: at least one, unless `wait_s` passed or the log was closed.

        Raises Permanent when no retry helps; an unreachable server is reported in `trouble` and retried.
        """
        deadline = time.monotonic() + wait_s
        transactions: list[SourceTransaction] = []
        size = 0
        while not self._stopped.is_set() and len(transactions) < max_transactions and size < max_bytes:
            try:
                transaction = self._read_next(0.0 if transactions else deadline - time.monotonic())
            except (SourceUnavailable, pymysql.err.Error) as error:
                self._disconnect(error)
                if transactions or self._stopped.wait(
                    min(self._choose_retry_delay(), max(0.0, deadline - time.monotonic()))
                ):
                    break
            else:
                if transaction is None and (transactions or time.monotonic() >= deadline):
                    break
                if transaction is not None:
                    transactions.append(transaction)
                    size += transaction.size
            if not transactions and time.monotonic() >= deadline:
                break
        return transactions

    def close(self) -> None:
        """Stop reading and interrupt a waiting `read`; callable from any thread."""
        self._stopped.set()
        dump = self._dump
        if dump is not None:
            dump.wake()

    def end(self) -> None:
        """Close the connection; called by the reading thread after its last `read`."""
        self._stopped.set()
        self._close_dump()

    @property
    def received_position(self) -> tuple[str, int]:
        """File and offset up to which events have arrived, in a transaction or not; ("", 0) = not connected."""
        return self._reader.event_position if self._reader is not None else ("", 0)

    def _read_next(self, wait_s: float) -> SourceTransaction | None:
        """The next transaction; None if none came in time."""
        deadline = time.monotonic() + wait_s
        while not self._stopped.is_set():
            dump, reader = self._ensure_connected()
            for event in self._events:
                transaction = reader.feed(event)
                if transaction is not None and self._is_new(transaction):
                    self.position = transaction.end
                    return transaction
            self.position = reader.position
            events = dump.receive_events(max(0.0, deadline - time.monotonic()))
            if not events:
                return None
            self.heard, self._tries = time.monotonic(), 0
            self._events = iter(events)
        return None

    def _is_new(self, transaction: SourceTransaction) -> bool:
        # A CREATE TABLE ... SELECT gives its definition first, with the position before it and its rows: a restart
        # in between reads both again.
        if transaction.id == self._last_id:
            return False
        self._last_id = transaction.id
        return True

    def _ensure_connected(self) -> tuple[Dump, TransactionReader]:
        if self._dump is not None and self._reader is not None:
            return self._dump, self._reader
        address = self._source.servers[self._next_address % len(self._source.servers)]
        link = connect(self._source, address)
        try:
            flavor = derive_flavor(link)
            identity = read_identity(link, flavor)
            start = find_start(link, flavor, self.position, identity, self.server_uuid)
            logs_cascades = read_logs_cascades(link)
            reader = self._build_reader(flavor, start, address)
            dump = self._build_dump(link, flavor, self._server_id)
            dump.begin(start.request)
        except BaseException:
            link._force_close()  # type: ignore[attr-defined]
            raise
        self._dump, self._reader, self._events, self.logs_cascades = dump, reader, iter(()), logs_cascades
        self.heard = time.monotonic()
        if identity.uuid != self.server_uuid:
            self._on_server(identity.uuid)
        self.server, self.server_uuid, self.trouble = address, identity.uuid, ""
        self.connections += 1
        log.info(
            "source_connected", source=self._source.name, server=format_address(address), uuid=identity.uuid,
            flavor=flavor.value, gtids=start.position.gtids, file=start.position.file, offset=start.position.offset,
        )  # fmt: skip
        return dump, reader

    def _build_reader(self, flavor: Flavor, start: LogStart, address: Address) -> TransactionReader:
        def find(xid: Xid, before: BinlogPosition) -> Collection[RowsEvent]:
            return self._find_prepared(flavor, address, xid, before)

        return TransactionReader(
            flavor,
            start.position,
            find,
            gtids=start.gtids,
            resume=self.position,
            skip_below=start.skip_below,
            refuses=self._is_refused,
            folder=self._folder,
        )

    def _is_refused(self, transaction: str) -> bool:
        """Whether a statement that cannot be followed is an error; False if feeder.toml replaces the transaction."""
        replacement = self._source.find_replacement(transaction)
        if replacement is not None:
            log.warning("source_transaction_skipped", source=self._source.name, transaction=transaction)
        return replacement is None

    def _build_dump(self, link: Link, flavor: Flavor, server_id: int) -> Dump:
        return Dump(
            link, flavor, server_id, heartbeat_s=self._source.heartbeat, read_timeout_s=self._source.read_timeout
        )

    def _disconnect(self, error: SourceUnavailable | pymysql.err.Error) -> None:
        """Switch to the next server, if there is one. Raises errors that no retry fixes."""
        self._close_dump()
        known = error if isinstance(error, SourceUnavailable) else build_dump_error(error)
        if not isinstance(known, SourceUnavailable):
            raise known from None
        self.trouble = str(known)
        self._next_address += 1
        self._tries += 1
        log.warning(
            "source_lost",
            source=self._source.name,
            server=format_address(self.server),
            tries=self._tries,
            reason=self.trouble,
        )

    def _close_dump(self) -> None:
        dump, self._dump, self._reader = self._dump, None, None
        self._events = iter(())
        if dump is not None:
            dump.close()

    def _choose_retry_delay(self) -> float:
        # The other servers of the topology are tried immediately.
        if self._tries < len(self._source.servers):
            return 0.0
        return _RETRY_S[min(self._tries - len(self._source.servers), len(_RETRY_S) - 1)]

    def _find_prepared(
        self, flavor: Flavor, address: Address, xid: Xid, before: BinlogPosition
    ) -> Collection[RowsEvent]:
        """The rows of a transaction that was prepared before this log was opened: searched backwards in the log."""
        link = connect(self._source, address)
        try:
            files, end = list(read_log_files(link)), read_log_end(link)
        finally:
            link.close()
        last = files.index(before.file) if before.file in files else len(files) - 1
        for file in reversed(files[: last + 1]):
            rows = self._find_prepared_in(file, flavor, address, xid, before, end)
            if rows is not None:
                log.info("source_prepared_found", source=self._source.name, xid=str(xid), file=file)
                return rows
        raise LostRange(
            f"transaction {xid} is committed, but the log in which it was prepared is purged",
            hint="load the source again (`binlake bootstrap`)",
        )

    def _find_prepared_in(
        self, file: str, flavor: Flavor, address: Address, xid: Xid, before: BinlogPosition, end: BinlogPosition
    ) -> Collection[RowsEvent] | None:
        dump = self._build_dump(connect(self._source, address), flavor, server_id=0)
        start = BinlogPosition(file, _FIRST_EVENT)
        reader = TransactionReader(
            flavor,
            start,
            lambda *_: (),
            gtids=GtidOrigin.NONE,
            resume=start,
            refuses=lambda _: False,
            folder=self._folder,
        )
        try:
            dump.begin(DumpRequest(file, _FIRST_EVENT))
            while not dump.is_at_end:
                for event in dump.receive_events(_WHOLE_LOG_WAIT_S):
                    if reader.is_at(before) or reader.file != file:
                        return reader.look_up_prepared(xid)
                    reader.feed(event)
        finally:
            dump.close()
        if not reader.is_at(end):
            raise SourceUnavailable(f"the server ended its log at {reader.event_position}: it is shutting down")
        return reader.look_up_prepared(xid)
