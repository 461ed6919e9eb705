"""The log of one source, read for as long as the feeder lives: `open_log`.

A connection that breaks is made again from the end of the last whole transaction, at the next server of the topology
in turn; what no retry can mend is raised by name.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pymysql
import structlog

from binlake.errors import LostRange, SourceUnavailable
from binlake.mysqlbinlog.events.transactions import Gtids, TransactionReader
from binlake.mysqlbinlog.events.xa import Xid
from binlake.mysqlbinlog.model import Flavor, Position, RowsEvent, SourceTransaction
from pump_service.feeder.dump import Dump, Place
from pump_service.feeder.logerrors import dump_refused
from pump_service.feeder.server import Address, Link, connect, flavor_of, log_files
from pump_service.feeder.settings import SourceFile
from pump_service.feeder.startplace import Start, read_identity, start_of

log = structlog.get_logger()

_AGAIN_S = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Waits before the tries after a connection broke; the last one from then on."""
_WHOLE_LOG_WAIT_S = 60.0
_FIRST_EVENT = 4


def open_log(
    source: SourceFile,
    server_id: int,
    position: Position,
    *,
    last_uuid: str = "",
    last_id: str = "",
    on_server: Callable[[str], None] = lambda _: None,
) -> SourceLog:
    """The transactions of `source` behind `position`; connects when it is read.

    `server_id`: under which the feeder registers; `last_uuid`: the server that `position` was read from, if known;
    `on_server`: called with the UUID (of MariaDB the server id) of another one before anything of it is read;
    `last_id`: of the transaction before, which comes again when `position` is the one before a table and its rows.
    """
    return SourceLog(source, server_id, position, last_uuid, last_id, on_server)


class SourceLog:
    """An iterator over the transactions of a source, and the state of its connection. One thread reads; any may look.

    `trouble`: why there is no connection, "" while there is one; `connections`: how many were made; `server`,
    `server_uuid`: of the last one; `heard`: time.monotonic() of the last bytes.
    """

    def __init__(
        self,
        source: SourceFile,
        server_id: int,
        position: Position,
        last_uuid: str,
        last_id: str,
        on_server: Callable[[str], None],
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
        self.position = position
        self.server_uuid = last_uuid
        self.server: Address = source.servers[0]
        self.trouble = "not connected yet"
        self.connections = 0
        self.heard = 0.0

    def __iter__(self) -> Iterator[SourceTransaction]:
        while not self._stopped.is_set():
            yield from self.read(max_transactions=1, wait_s=60.0)

    def read(
        self, max_transactions: int = 1000, max_bytes: int = 8 << 20, wait_s: float = 1.0
    ) -> list[SourceTransaction]:
        """The next transactions: what has come, at least one unless `wait_s` passed or the log was closed.

        Raises Permanent where no retry helps; a server that is away is `trouble`, and tried again.
        """
        deadline = time.monotonic() + wait_s
        transactions: list[SourceTransaction] = []
        size = 0
        while not self._stopped.is_set() and len(transactions) < max_transactions and size < max_bytes:
            try:
                transaction = self._next(0.0 if transactions else deadline - time.monotonic())
            except (SourceUnavailable, pymysql.err.Error) as error:
                self._disconnect(error)
                if transactions or self._stopped.wait(min(self._pause(), max(0.0, deadline - time.monotonic()))):
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
        """End reading, also one that waits; from any thread."""
        self._stopped.set()
        dump = self._dump
        if dump is not None:
            dump.wake()

    def end(self) -> None:
        """Close the connection; by the thread that reads, after its last `read`."""
        self._stopped.set()
        self._drop()

    @property
    def taken(self) -> tuple[str, int]:
        """File and offset up to which events have come, also those of no transaction; ("", 0) = not connected."""
        return self._reader.place if self._reader is not None else ("", 0)

    def _next(self, wait_s: float) -> SourceTransaction | None:
        """The next transaction, None when none came in time."""
        deadline = time.monotonic() + wait_s
        while not self._stopped.is_set():
            dump, reader = self._connected()
            for event in self._events:
                transaction = reader.feed(event)
                if transaction is not None and self._is_new(transaction):
                    self.position = transaction.end
                    return transaction
            self.position = reader.position
            events = dump.events(max(0.0, deadline - time.monotonic()))
            if not events:
                return None
            self.heard, self._tries = time.monotonic(), 0
            self._events = iter(events)
        return None

    def _is_new(self, transaction: SourceTransaction) -> bool:
        # A table's definition comes before its rows, with the position before both: both are read again.
        if transaction.id == self._last_id:
            return False
        self._last_id = transaction.id
        return True

    def _connected(self) -> tuple[Dump, TransactionReader]:
        if self._dump is not None and self._reader is not None:
            return self._dump, self._reader
        address = self._source.servers[self._next_address % len(self._source.servers)]
        link = connect(self._source, address)
        try:
            flavor = flavor_of(link)
            identity = read_identity(link, flavor)
            start = start_of(link, flavor, self.position, identity, self.server_uuid)
            reader = self._make_reader(flavor, start, address)
            dump = self._make_dump(link, flavor, self._server_id)
            dump.begin(start.place)
        except BaseException:
            link._force_close()  # type: ignore[attr-defined]
            raise
        self._dump, self._reader, self._events = dump, reader, iter(())
        if identity.uuid != self.server_uuid:
            self._on_server(identity.uuid)
        self.server, self.server_uuid, self.trouble = address, identity.uuid, ""
        self.connections += 1
        log.info(
            "source_connected", source=self._source.name, server=_text(address), uuid=identity.uuid,
            flavor=flavor.value, gtids=start.position.gtids, file=start.position.file, offset=start.position.offset,
        )  # fmt: skip
        return dump, reader

    def _make_reader(self, flavor: Flavor, start: Start, address: Address) -> TransactionReader:
        def find(xid: Xid, before: Position) -> tuple[RowsEvent, ...]:
            return self._find_prepared(flavor, address, xid, before)

        return TransactionReader(
            flavor,
            start.position,
            find,
            gtids=start.gtids,
            resume=self.position,
            skip_below=start.skip_below,
            refuses=self._is_refused,
        )

    def _is_refused(self, transaction: str) -> bool:
        """False: feeder.toml says what is done instead."""
        replacement = self._source.replacement(transaction)
        if replacement is not None:
            log.warning("source_passed_over", source=self._source.name, transaction=transaction)
        return replacement is None

    def _make_dump(self, link: Link, flavor: Flavor, server_id: int) -> Dump:
        return Dump(
            link, flavor, server_id, heartbeat_s=self._source.heartbeat, read_timeout_s=self._source.read_timeout
        )

    def _disconnect(self, error: SourceUnavailable | pymysql.err.Error) -> None:
        """Leave the server for the next one, if there is one. Raises what no retry mends."""
        self._drop()
        known = error if isinstance(error, SourceUnavailable) else dump_refused(error)
        if not isinstance(known, SourceUnavailable):
            raise known from None
        self.trouble = str(known)
        self._next_address += 1
        self._tries += 1
        log.warning(
            "source_lost", source=self._source.name, server=_text(self.server), tries=self._tries, reason=self.trouble
        )

    def _drop(self) -> None:
        dump, self._dump, self._reader = self._dump, None, None
        self._events = iter(())
        if dump is not None:
            dump.close()

    def _pause(self) -> float:
        # The other servers of the topology are tried at once.
        if self._tries < len(self._source.servers):
            return 0.0
        return _AGAIN_S[min(self._tries - len(self._source.servers), len(_AGAIN_S) - 1)]

    def _find_prepared(self, flavor: Flavor, address: Address, xid: Xid, before: Position) -> tuple[RowsEvent, ...]:
        """The rows of a transaction that was prepared before this log was opened: looked for in the log backwards."""
        link = connect(self._source, address)
        try:
            files = list(log_files(link))
        finally:
            link.close()
        behind = files.index(before.file) if before.file in files else len(files) - 1
        for file in reversed(files[: behind + 1]):
            rows = self._prepared_in(file, flavor, address, xid, before)
            if rows is not None:
                log.info("source_prepared_found", source=self._source.name, xid=str(xid), file=file)
                return rows
        raise LostRange(
            f"the log that prepared transaction {xid} is purged, and it is committed now",
            hint="load the source anew (`binlake bootstrap`)",
        )

    def _prepared_in(
        self, file: str, flavor: Flavor, address: Address, xid: Xid, before: Position
    ) -> tuple[RowsEvent, ...] | None:
        dump = self._make_dump(connect(self._source, address), flavor, server_id=0)
        start = Position(file, _FIRST_EVENT)
        reader = TransactionReader(
            flavor, start, lambda *_: (), gtids=Gtids.NONE, resume=start, refuses=lambda _: False
        )
        try:
            dump.begin(Place(file, _FIRST_EVENT))
            while not dump.is_at_end:
                for event in dump.events(_WHOLE_LOG_WAIT_S):
                    if reader.is_at(before) or reader.file != file:
                        return reader.prepared(xid)
                    reader.feed(event)
        finally:
            dump.close()
        return reader.prepared(xid)


def _text(address: Address) -> str:
    return f"{address[0]}:{address[1]}"
