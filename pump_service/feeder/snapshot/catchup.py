"""The log between the snapshots of an interrupted load: it brings rows read earlier up to the last snapshot.

The load is committed in this order: the rows of the first snapshot, their changes in the log up to the second
snapshot, the rows of the second, the changes of both up to the third, and so on (`changefilter`). So at each point in
between, the committed rows are part of a state that the source had: no key occurs twice, and no window mixes two
states. A new snapshot is read only when the log was read up to it: then all rows that were read have its position,
which is compared with transactions of the log and with how far the log has been read (`SnapshotBoundary`).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby, pairwise

import structlog
from pymysql import err

from binlake.dialect.classify import DdlKind, read_name
from binlake.errors import BinlakeError, Permanent, SourceUnavailable, Transient
from binlake.mysqlbinlog.definitions.statements import SingleStatement, split_ddl
from binlake.mysqlbinlog.events.gtid import parse_gtid_set
from binlake.mysqlbinlog.model import (
    BinlogPosition,
    Flavor,
    LoggedStatement,
    SourceTransaction,
)
from binlake.mysqlbinlog.rowimage.transactions import Guard
from binlake.mysqlbinlog.tablerows.link import Link, Name
from binlake.pump_service.feeder.catalog import Catalog
from binlake.pump_service.feeder.connection import open_log
from binlake.pump_service.feeder.dump import ServerIdentity, find_start
from binlake.pump_service.feeder.parts import ReadUpTo
from binlake.pump_service.feeder.publisher import Outgoing, Stopped
from binlake.pump_service.feeder.server import build_missing_transactions_error, read_logs_cascades
from binlake.pump_service.feeder.settings import SourceFile
from binlake.pump_service.feeder.snapshot.loadstate import SnapshotPosition
from binlake.pump_service.feeder.snapshot.progress import TableLoad
from binlake.pump_service.feeder.snapshot.reading import SnapshotChanged
from binlake.pump_service.feeder.snapshot.readrows import ReadRows
from binlake.rows.schema.forms import fold_pair

log = structlog.get_logger()

_GTID = re.compile(r"(?:[0-9a-f-]{36}(?::[a-z_]\w*)?:\d+|\d+-\d+-\d+)(?:/ddl)?")
_IDLE_S = 0.5

_KEEPS_ROWS = frozenset({DdlKind.CREATE_DATABASE, DdlKind.ALTER_DATABASE, DdlKind.OTHER})
"""DDL that does not change the rows of any table; OTHER: a trigger of an online-DDL tool."""


def check_next_snapshot(
    link: Link,
    flavor: Flavor,
    snapshots: Sequence[SnapshotPosition],
    current: SnapshotPosition,
    identity: ServerIdentity,
) -> None:
    """Check that a snapshot at `current` of the server behind `link` can follow `snapshots`: it includes them.

    If it did not, the log would bring rows again that have been read. Raises CannotCombineSnapshots, or
    SourceUnavailable if another server may soon include them.
    """
    if any(
        snapshot.server != current.server and not (snapshot.position.gtids and current.position.gtids)
        for snapshot in snapshots
    ):
        raise CannotCombineSnapshots(
            f"the load began at server {snapshots[0].server}, this is {current.server}, and there are no GTIDs"
        )
    for snapshot in snapshots:
        try:
            find_start(link, flavor, snapshot.position, identity, snapshot.server)
        except (Permanent, ValueError) as error:
            raise CannotCombineSnapshots(f"the log of an earlier snapshot cannot be read: {error}") from error
        if SnapshotBoundary(flavor, current.position).is_at_or_after(snapshot.position):
            continue
        if snapshot.server == current.server:
            raise CannotCombineSnapshots("since rows were read, the server's log was reset or the server was restored")
        raise build_missing_transactions_error(
            f"its snapshot is at {current.position.gtids}, rows were read at {snapshot.position.gtids}"
        )


class CatchUp:
    """Reads the log of `source`, whose `tables` were read in `snapshots`.

    `link`: opens a session (`opening`) to compare keys with. `maybe_moved`: tables of the last snapshot whose names may
    have moved before their rows were read; the log up to `end` shows whether they did. `report`: called with the reason
    why there is no connection to the log, "" once there is one again.
    """

    def __init__(
        self,
        source: SourceFile,
        server_id: int,
        flavor: Flavor,
        snapshots: Sequence[SnapshotPosition],
        tables: Mapping[Name, TableLoad],
        catalog: Catalog,
        link: Callable[[], Link],
        stopped: threading.Event,
        maybe_moved: Collection[Name] = (),
        end: BinlogPosition | None = None,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._source, self._server_id, self._flavor = source, server_id, flavor
        self._snapshots, self._catalog, self._stopped = snapshots, catalog, stopped
        self._link, self._report = link, report
        self._boundaries = [
            SnapshotBoundary(flavor, position)
            for position in (*(snapshot.position for snapshot in snapshots), *([end] if end else ()))
        ]
        self._maybe_moved = {fold_pair(name) for name in maybe_moved}
        self._rows = ReadRows(source, catalog, tables)

    def read(self) -> Iterator[tuple[int, list[Outgoing]]]:
        """(number of the snapshot that they follow, transactions) up to the position of the last snapshot.

        Raises SnapshotChanged for a table whose rows DDL changed, CannotCombineSnapshots, SourceUnavailable, Stopped.
        """
        first = self._snapshots[0]
        source_log = open_log(self._source, self._server_id, first.position, last_uuid=first.server)
        try:
            with closing(self._link()) as link:
                while not self._boundaries[-1].is_reached(source_log):
                    if self._stopped.is_set():
                        raise Stopped
                    batch = source_log.read(self._source.max_transactions, self._source.max_bytes, _IDLE_S)
                    self._report(source_log.trouble)
                    yield from self._read_batch(batch, link)
        except (SourceUnavailable, Transient):
            raise
        except err.Error as error:
            raise SourceUnavailable(f"the source interrupted the load: {error.args}") from error
        except (Permanent, BinlakeError, ValueError) as error:
            raise CannotCombineSnapshots(f"the log between two snapshots cannot be read: {error}") from error
        finally:
            source_log.end()

    def _read_batch(self, batch: Sequence[SourceTransaction], link: Link) -> Iterator[tuple[int, list[Outgoing]]]:
        for (snapshot, _), group in groupby(
            batch, key=lambda transaction: (self._find_snapshot_before(transaction), transaction.statement is None)
        ):
            transactions = list(group)
            if snapshot < 0:
                continue
            for transaction in transactions:
                if transaction.statement is not None:
                    self._check_statement(snapshot, transaction.statement)
            if self._is_last(snapshot):
                continue
            outgoing = self._encode(
                snapshot, [transaction for transaction in transactions if transaction.statement is None], link
            )
            if outgoing:
                yield snapshot, outgoing

    def _find_snapshot_before(self, transaction: SourceTransaction) -> int:
        """The last snapshot that does not include the transaction; -1: the transaction is after all of them."""
        return next((n for n, boundary in enumerate(self._boundaries[1:]) if boundary.contains(transaction)), -1)

    def _is_last(self, snapshot: int) -> bool:
        """Whether transactions after this snapshot are left to the log's reader, which starts after the load."""
        return snapshot == len(self._snapshots) - 1

    def _check_statement(self, snapshot: int, statement: LoggedStatement) -> None:
        for single in split_ddl(statement, self._flavor):
            other = single.to or find_exchanged_table(single)
            if single.kind in _KEEPS_ROWS or (self._is_last(snapshot) and other is None):
                continue
            named = [fold_pair(name) for name in ((single.db, single.table), other) if name is not None]
            for key, name in self._rows.names.items():
                is_named = key in named or (not single.table and key[0] == named[0][0])
                if self._is_last(snapshot):
                    is_named &= key in self._maybe_moved
                if is_named and self._rows.list_read_until(key, snapshot):
                    raise SnapshotChanged(name)

    def _encode(self, snapshot: int, transactions: Sequence[SourceTransaction], link: Link) -> list[Outgoing]:
        values = self._rows.encode(transactions, snapshot, link, self._catalog.version, self._build_guard(link))
        return [
            Outgoing(transaction.id, transaction.time_ms, value)
            for transaction, value in zip(transactions, values, strict=True)
            if value
        ]

    def _build_guard(self, link: Link) -> Guard | None:
        guard = self._catalog.build_cascade_guard(self._source.name)
        is_needed = guard is not None and self._source.unlogged_cascades != "none" and not read_logs_cascades(link)
        return guard if is_needed else None


class CannotCombineSnapshots(Transient):
    """What was read in several snapshots cannot be combined into one state: the load starts again."""


class SnapshotBoundary:
    """The position of a snapshot, compared with transactions of the log."""

    def __init__(self, flavor: Flavor, position: BinlogPosition) -> None:
        self._flavor, self._position = flavor, position
        self._done = parse_gtid_set(flavor, position.gtids) if position.gtids else None

    def contains(self, transaction: SourceTransaction) -> bool:
        """Whether the snapshot includes `transaction`."""
        if self._done is None:
            end = transaction.end
            return _build_sort_key(end.file, end.offset) <= _build_sort_key(self._position.file, self._position.offset)
        if not _GTID.fullmatch(transaction.id):
            raise CannotCombineSnapshots(f"transaction {transaction.id} between two snapshots has no GTID")
        return self._done.contains(transaction.id.removesuffix("/ddl"))

    def is_at_or_after(self, other: BinlogPosition) -> bool:
        """Whether this position is at or after `other`, of the same log."""
        if self._done is not None:
            return self._done.contains_set(parse_gtid_set(self._flavor, other.gtids))
        at = _build_sort_key(self._position.file, self._position.offset)
        return not other.gtids and at >= _build_sort_key(other.file, other.offset)

    def is_reached(self, source_log: ReadUpTo) -> bool:
        """Whether the log has been read up to here."""
        at = source_log.position
        if self._done is not None:
            return parse_gtid_set(self._flavor, at.gtids).contains_set(self._done)
        return max(
            _build_sort_key(at.file, at.offset), _build_sort_key(*source_log.received_position)
        ) >= _build_sort_key(self._position.file, self._position.offset)


def _build_sort_key(file: str, offset: int) -> tuple[int, int]:
    """The sort key of a position without GTIDs, among positions of one server."""
    return int(file.rpartition(".")[2] or 0), offset


def find_exchanged_table(single: SingleStatement) -> tuple[str, str] | None:
    """The table whose rows are exchanged with those of a partition."""
    pairs = enumerate(pairwise(single.tokens))
    at = next((n for n, (token, next_) in pairs if token.is_word("EXCHANGE") and next_.is_word("PARTITION")), None)
    if at is None:
        return None
    table = next(n for n in range(at, len(single.tokens)) if single.tokens[n].is_word("TABLE"))
    name, _ = read_name(single.tokens, table + 1)
    return None if name is None else (name[0] or single.db, name[1])
