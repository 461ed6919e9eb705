"""Combines the events of a log into transactions, each with the position after it.

What cannot be followed is refused by name; only events that change neither rows nor definitions are ignored.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from enum import Enum
from pathlib import Path

from binlake.errors import BinlakeError, LostRange, SourceRefused, WireError
from binlake.mysqlbinlog.events import gtid as gtids
from binlake.mysqlbinlog.events import query, rows
from binlake.mysqlbinlog.events.changes import ChangeBuffer
from binlake.mysqlbinlog.events.gtid import Gtid, GtidSet, MySqlGtidSet, parse_gtid_set
from binlake.mysqlbinlog.events.header import (
    ARTIFICIAL,
    CHECKSUM_BYTES,
    HEADER_BYTES,
    IGNORABLE,
    EventHeader,
    EventType,
    format_event_type,
    has_checksum,
    read_header,
    read_payload_events,
    without_checksum,
    writes_checksums,
)
from binlake.mysqlbinlog.events.query import StatementRole, Xid
from binlake.mysqlbinlog.model import BinlogPosition, Flavor, LoggedStatement, RowsEvent, SourceTransaction, TableMap

_E = EventType
_IGNORED = frozenset({
    _E.STOP, _E.INTVAR, _E.RAND, _E.USER_VAR, _E.HEARTBEAT, _E.HEARTBEAT_V2, _E.IGNORABLE, _E.ROWS_QUERY,
    _E.TRANSACTION_CONTEXT, _E.VIEW_CHANGE, _E.MARIADB_ANNOTATE_ROWS, _E.MARIADB_BINLOG_CHECKPOINT,
    _E.MARIADB_GTID_LIST,
    _E.MARIADB_START_ENCRYPTION,
})  # fmt: skip
_NO_TABLE = 0xFFFFFF
"""Table id of a row event without rows: the end of a statement that changed none."""
_MAPS = 4096
_HIGH = ~0xFFFFFFFF
_DAMAGE = (IndexError, ValueError, OverflowError, MemoryError, struct.error)
"""Errors raised by parsing an event that is shorter than, or different from, what it claims."""
_START_TRANSACTION = " START TRANSACTION"
"""What MySQL adds to a CREATE TABLE whose rows follow in the same transaction."""

FindPrepared = Callable[[Xid, BinlogPosition], Collection[RowsEvent]]
"""Finds the rows of a prepared transaction that was prepared before the position from which the log is read."""


class GtidOrigin(Enum):
    """Where the GTID set of a position comes from."""

    NONE = "the log has no GTIDs, or they do not matter"
    KNOWN = "the start's set, plus what is read after it"
    FROM_FILE = "the head of the next file (MySQL), plus the start's set; until then positions have none"


class TransactionReader:
    """Fed event by event; `position` is after the last complete transaction returned, `resume` before the first.

    `start`: where the events begin. Transactions of the first file that begin below `skip_below` are counted as done
    and not returned. `refuses`: whether what cannot be followed is an error, by the transaction's id. `folder`: where
    the rows of large transactions are kept (None: among the system's temporary files).
    """

    def __init__(
        self,
        flavor: Flavor,
        start: BinlogPosition,
        find_prepared: FindPrepared,
        *,
        gtids: GtidOrigin,
        resume: BinlogPosition,
        skip_below: int = 0,
        refuses: Callable[[str], bool] = lambda _: True,
        folder: Path | None = None,
    ) -> None:
        self._flavor = flavor
        self._find_prepared = find_prepared
        self._done: GtidSet | None = parse_gtid_set(flavor, start.gtids) if gtids is GtidOrigin.KNOWN else None
        self._awaits_file_gtids = gtids is GtidOrigin.FROM_FILE
        self._start_gtids = start.gtids
        self._file, self._offset = start.file, start.offset
        self._first = (start.file, skip_below)
        self._refuses = refuses
        self.position = resume
        self._has_checksums = False
        self._maps: dict[int, TableMap] = {}
        self._known_maps: dict[bytes, TableMap] = {}
        self._prepared: dict[Xid, Collection[RowsEvent]] = {}
        self._gtid: Gtid | None = None
        self._is_open = False
        self._is_skipped = False
        self._changes = ChangeBuffer(folder)
        self._size = 0
        self._begin = (start.file, start.offset)

    @property
    def file(self) -> str:
        """The file of the next event."""
        return self._file

    @property
    def event_position(self) -> tuple[str, int]:
        """File and offset after the events that have been fed."""
        return self._file, self._offset

    def is_at(self, position: BinlogPosition) -> bool:
        """Whether the events up to `position` in its file have been fed."""
        return self._file == position.file and self._offset >= position.offset

    def feed(self, event: bytes) -> SourceTransaction | None:
        """Process the next event; returns the transaction that it ends, if any.

        Raises WireError, SourceRefused, LostRange.
        """
        header = read_header(event)
        kind, before = header.type, self._offset
        if kind == _E.FORMAT_DESCRIPTION:
            self._has_checksums = writes_checksums(event)
        elif kind == _E.ROTATE:
            self._rotate(event)
            return None
        elif self._has_checksums:
            event = without_checksum(event)
        if header.end and not header.flags & ARTIFICIAL:
            self._advance(header.end)
            # Not where the previous event ended: a server skips transactions that are already done.
            before = self._offset - header.size
        self._size += header.size
        try:
            return self._process(header, event, before)
        except (WireError, SourceRefused, LostRange) as error:
            location = {"file": self._file, "offset": before, "transaction": self._build_id() if self._gtid else ""}
            raise type(error)(error.message, hint=error.hint, where={**location, **error.where}) from None
        except _DAMAGE as error:
            raise WireError(
                "an event is damaged: its parts do not fit its length",
                hint="mysqlbinlog on the server shows whether its file is damaged; binlog_checksum = CRC32 helps",
                where={"file": self._file, "offset": before, "type": format_event_type(kind)},
            ) from error

    def _advance(self, end: int) -> None:
        # The header has the low 32 bits only; a file with a large transaction is longer.
        offset = self._offset & _HIGH | end
        self._offset = offset if offset >= self._offset else offset + (1 << 32)

    def _rotate(self, event: bytes) -> None:
        # One generated for this reader may come before it is known whether the log has checksums.
        body = event[:-CHECKSUM_BYTES] if has_checksum(event) else event
        self._offset = int.from_bytes(body[HEADER_BYTES : HEADER_BYTES + 8], "little")
        self._file = body[HEADER_BYTES + 8 :].decode("utf-8", "backslashreplace")

    def _process(self, header: EventHeader, event: bytes, before: int) -> SourceTransaction | None:
        kind = header.type
        if kind == _E.TABLE_MAP:
            self._add_table_map(event)
        elif kind in rows.KINDS:
            self._add_rows(kind, event)
        elif kind in (_E.GTID, _E.ANONYMOUS_GTID, _E.GTID_TAGGED, _E.MARIADB_GTID):
            self._begin_group(header, event, before)
        elif kind == _E.XID:
            return self._end_transaction(header)
        elif kind == _E.QUERY and query.is_begin(event):
            self._open_transaction(header, before)
        elif kind in (_E.QUERY, _E.MARIADB_QUERY_COMPRESSED):
            return self._process_statement(header, event, before)
        elif kind == _E.TRANSACTION_PAYLOAD:
            return self._process_payload(event, before)
        elif kind == _E.XA_PREPARE:
            return self._prepare(header, event)
        else:
            self._process_rare(header, event)
        return None

    def _process_rare(self, header: EventHeader, event: bytes) -> None:
        kind = header.type
        if kind == _E.PREVIOUS_GTIDS:
            self._begin_file(event)
        elif kind == _E.INCIDENT:
            self._refuse(_build_incident_error())
        elif kind in (_E.BEGIN_LOAD_QUERY, _E.EXECUTE_LOAD_QUERY):
            self._refuse(_build_statement_rows_error("LOAD DATA"))
        elif kind not in _IGNORED and kind != _E.FORMAT_DESCRIPTION and not header.flags & IGNORABLE:
            self._refuse(_build_unknown_event_error(kind))

    def _begin_file(self, event: bytes) -> None:
        """The set of earlier files counts if the start had none: a position of file and offset."""
        if self._awaits_file_gtids:
            done = gtids.read_previous_gtids(event)
            done.add_set(MySqlGtidSet.parse(self._start_gtids))
            self._done, self._awaits_file_gtids = done, False

    def _begin_group(self, header: EventHeader, event: bytes, before: int) -> None:
        if header.type == _E.MARIADB_GTID:
            gtid = gtids.read_mariadb_gtid(event, header.server_id)
        elif header.type == _E.GTID_TAGGED:
            gtid = gtids.read_tagged_gtid(event)
        else:
            gtid = gtids.read_mysql_gtid(event)
        if header.type == _E.ANONYMOUS_GTID:
            gtid = gtid._replace(text="")
        self._start(gtid, header.size, before)
        self._is_open = header.type == _E.MARIADB_GTID and not gtid.standalone
        self._is_skipped = self._is_done(gtid, before)

    def _start(self, gtid: Gtid, size: int, before: int) -> None:
        self._gtid, self._size = gtid, size
        self._begin = (self._file, before)
        self._changes.clear()

    def _is_done(self, gtid: Gtid, before: int) -> bool:
        file, below = self._first
        if self._file == file and before < below:
            return True
        # MariaDB's numbers need not increase within a domain, and the server skips transactions that are done.
        return self._flavor is Flavor.MYSQL and bool(gtid.text and self._done and self._done.contains(gtid.text))

    def _add_table_map(self, event: bytes) -> None:
        body = event[HEADER_BYTES:]
        table = self._known_maps.get(body)
        if table is None:
            if len(self._known_maps) >= _MAPS:
                self._known_maps.clear()
            table = self._known_maps[body] = rows.read_table_map(event, self._flavor)
        self._maps[table.table_id] = table

    def _add_rows(self, kind: int, event: bytes) -> None:
        if not self._is_open:
            raise WireError(
                "rows occur outside a transaction: the position is in the middle of one",
                hint="use a position at the end of a transaction",
            )
        table_id = rows.read_table_id(event)
        if self._is_skipped or table_id == _NO_TABLE:
            return
        table = self._maps.get(table_id)
        if table is None:
            raise WireError(f"rows of table id {table_id} are not preceded by a table map")
        self._changes.add(rows.read_rows(kind, event, table))

    def _process_payload(self, event: bytes, before: int) -> SourceTransaction | None:
        ended = None
        for inner in read_payload_events(event):
            ended = self._process(read_header(inner), inner, before) or ended
        return ended

    def _process_statement(self, header: EventHeader, event: bytes, before: int) -> SourceTransaction | None:
        statement_sent = query.read_query(
            event, header.time, self._flavor, is_compressed=header.type == _E.MARIADB_QUERY_COMPRESSED
        )
        role = query.find_role(statement_sent.text)
        if role is StatementRole.BEGIN or (role is StatementRole.NEUTRAL and not self._is_open):
            self._open_transaction(header, before)
        elif role is StatementRole.COMMIT:
            return self._end_transaction(header)
        elif role is StatementRole.ROLLBACK:
            return self._roll_back(header)
        elif role is StatementRole.ROLLBACK_TO:
            self._refuse(_build_partial_rollback_error())
            self._changes.clear()
        elif role in (StatementRole.XA_COMMIT, StatementRole.XA_ROLLBACK):
            return self._end_prepared(header, role, statement_sent.text, before)
        elif role is StatementRole.ROWS_AS_TEXT:
            self._refuse(_build_statement_rows_error(statement_sent.text))
        elif role is StatementRole.DEFINITION:
            return self._process_definition(header, statement_sent, before)
        return None

    def _open_transaction(self, header: EventHeader, before: int) -> None:
        if self._gtid is None:
            self._start(Gtid(""), header.size, before)
            self._is_skipped = self._is_done(Gtid(""), before)
        self._is_open = True

    def _process_definition(
        self, header: EventHeader, statement_sent: LoggedStatement, before: int
    ) -> SourceTransaction | None:
        if self._is_open:
            return self._process_inner_definition(header, statement_sent)
        if self._gtid is None:
            self._start(Gtid(""), header.size, before)
            self._is_skipped = self._is_done(Gtid(""), before)
        if statement_sent.unreadable is not None:
            self._refuse(statement_sent.unreadable)
        is_void = self._gtid is not None and self._gtid.void
        return self._end_transaction(header, statement=None if is_void else statement_sent)

    def _process_inner_definition(
        self, header: EventHeader, statement_sent: LoggedStatement
    ) -> SourceTransaction | None:
        """A definition inside a transaction: CREATE TABLE ... SELECT becomes its own transaction before its rows."""
        if query.is_of_temporary_table(statement_sent.text):
            return None
        if statement_sent.unreadable is not None:
            self._refuse(statement_sent.unreadable)
        if self._changes:
            self._refuse(_build_definition_after_rows_error(statement_sent.text))
        if self._is_skipped:
            return None
        text = statement_sent.text.removesuffix(_START_TRANSACTION)
        statement = LoggedStatement(statement_sent.db, text, statement_sent.session)
        return SourceTransaction(
            f"{self._build_id()}/ddl", self._compute_time(header), self.position, statement=statement, size=header.size
        )

    def _roll_back(self, header: EventHeader) -> SourceTransaction | None:
        if self._changes:
            self._refuse(_build_partial_rollback_error())
            self._changes.clear()
        return self._end_transaction(header)

    def _prepare(self, header: EventHeader, event: bytes) -> SourceTransaction | None:
        xid, one_phase = query.read_prepare(event)
        if not one_phase and not self._is_skipped:
            self._prepared[xid] = self._changes.take()
        return self._end_transaction(header)

    def _end_prepared(
        self, header: EventHeader, role: StatementRole, text: str, before: int
    ) -> SourceTransaction | None:
        self._open_transaction(header, before)
        xid = query.parse_xid(text)
        changes = self._prepared.pop(xid, None)
        if role is StatementRole.XA_COMMIT and not self._is_skipped:
            self._changes.put(self._find_prepared(xid, BinlogPosition(*self._begin)) if changes is None else changes)
        return self._end_transaction(header)

    def look_up_prepared(self, xid: Xid) -> Collection[RowsEvent] | None:
        """The rows of a transaction that is prepared and has not ended."""
        return self._prepared.get(xid)

    def _end_transaction(
        self, header: EventHeader, statement: LoggedStatement | None = None
    ) -> SourceTransaction | None:
        gtid, changes, is_skipped = self._gtid, self._changes.take(), self._is_skipped
        if gtid is None:
            raise WireError("a transaction ends that did not begin: the position is in the middle of one")
        name, time = self._build_id(), self._compute_time(header)
        if gtid.text and self._done is not None:
            self._done.add(gtid.text)
        self._gtid, self._is_open, self._is_skipped = None, False, False
        if is_skipped:
            return None
        self.position = BinlogPosition(self._file, self._offset, self._done.format_text() if self._done else "")
        return SourceTransaction(name, time, self.position, changes, statement, self._size)

    def _refuse(self, error: BinlakeError) -> None:
        if not self._is_skipped and self._refuses(self._build_id()):
            raise error

    def _build_id(self) -> str:
        return (self._gtid.text if self._gtid else "") or "{}:{}".format(*self._begin)

    def _compute_time(self, header: EventHeader) -> int:
        exact = self._gtid.time_us // 1000 if self._gtid else 0
        return exact or header.time * 1000


def _build_unknown_event_error(kind: int) -> SourceRefused:
    return SourceRefused(
        f"the log has an unknown event: {format_event_type(kind)}",
        hint="a newer server, or one older than MySQL 5.7; see docs/operate/feeder.md for what is supported",
    )


def _build_incident_error() -> LostRange:
    return LostRange(
        "the server wrote an incident into its log: changes before it may be missing",
        hint="its error log says what happened; load the tables again (`binlake bootstrap`)",
    )


def _build_definition_after_rows_error(statement: str) -> SourceRefused:
    return SourceRefused("a definition changes after rows in the same transaction", where={"statement": statement[:80]})


def _build_statement_rows_error(statement: str) -> SourceRefused:
    return SourceRefused(
        f"the log has a change of rows as a statement, not as rows: {statement[:80]!r}",
        hint="SET GLOBAL binlog_format = ROW and end the sessions that set another one; then load the table again"
        " (`binlake bootstrap`), or name the transaction in a [[source.replace]] of feeder.toml: it is skipped",
    )


def _build_partial_rollback_error() -> SourceRefused:
    return SourceRefused(
        "a transaction in the log was partly rolled back: it also changed tables of a non-transactional engine",
        hint="change such tables in separate transactions (or to InnoDB); load them again (`binlake bootstrap`)",
    )
