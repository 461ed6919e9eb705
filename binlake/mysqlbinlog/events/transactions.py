"""Puts the events of a log together to transactions, each with the position behind it.

What cannot be followed is refused by name; nothing is left out but events that change no row and no definition.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import Enum

from binlake.errors import BinlakeError, LostRange, SourceRefused, WireError
from binlake.mysqlbinlog.events import gtids as gtidevents
from binlake.mysqlbinlog.events import query, rows, tablemap, xa
from binlake.mysqlbinlog.events.compressed import events_of_payload
from binlake.mysqlbinlog.events.gtids import Gtid
from binlake.mysqlbinlog.events.header import (
    ARTIFICIAL,
    CHECKSUM_BYTES,
    HEADER_BYTES,
    IGNORABLE,
    EventType,
    Header,
    has_checksum,
    name_of,
    read_header,
    without_checksum,
    writes_checksums,
)
from binlake.mysqlbinlog.events.query import Role
from binlake.mysqlbinlog.events.xa import Xid
from binlake.mysqlbinlog.gtid import GtidSet, MySqlGtidSet, parse_gtid_set
from binlake.mysqlbinlog.model import Flavor, Position, RowsEvent, SourceTransaction, Statement, TableMap

_E = EventType
_PASSED_OVER = frozenset({
    _E.STOP, _E.INTVAR, _E.RAND, _E.USER_VAR, _E.HEARTBEAT, _E.HEARTBEAT_V2, _E.IGNORABLE, _E.ROWS_QUERY,
    _E.TRANSACTION_CONTEXT, _E.VIEW_CHANGE, _E.MARIADB_ANNOTATE_ROWS, _E.MARIADB_BINLOG_CHECKPOINT,
    _E.MARIADB_GTID_LIST,
    _E.MARIADB_START_ENCRYPTION,
})  # fmt: skip
_NO_TABLE = 0xFFFFFF
"""Table id of a row event that has no row: the end of a statement that changed none."""
_MAPS = 4096
_HIGH = ~0xFFFFFFFF
_DAMAGE = (IndexError, ValueError, OverflowError, MemoryError, struct.error)
"""What the parts of an event raise where it is shorter or other than it says."""
_START_TRANSACTION = " START TRANSACTION"
"""What MySQL adds to a CREATE TABLE whose rows follow in the same transaction."""

FindPrepared = Callable[[Xid, Position], tuple[RowsEvent, ...]]
"""The rows of a prepared transaction that this log was not read from: it was prepared before the position."""


class Gtids(Enum):
    """What the GTID set of a position comes from."""

    NONE = "the log has none, or they do not matter"
    KNOWN = "the start's set, and what is read behind it"
    FROM_FILE = "the head of the next file (MySQL), and the start's set; until then positions have none"


class TransactionReader:
    """Takes event by event; `position` is behind the last whole transaction that it gave, `resume` before the first.

    `start`: where the events begin. Transactions of the first file that begin below `skip_below` are noted as done and
    not given. `refuses`: whether what cannot be followed in the transaction of an id is an error.
    """

    def __init__(
        self,
        flavor: Flavor,
        start: Position,
        find_prepared: FindPrepared,
        *,
        gtids: Gtids,
        resume: Position,
        skip_below: int = 0,
        refuses: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._flavor = flavor
        self._find_prepared = find_prepared
        self._done: GtidSet | None = parse_gtid_set(flavor, start.gtids) if gtids is Gtids.KNOWN else None
        self._learns_done = gtids is Gtids.FROM_FILE
        self._start_gtids = start.gtids
        self._file, self._offset = start.file, start.offset
        self._first = (start.file, skip_below)
        self._refuses = refuses
        self.position = resume
        self._has_checksums = False
        self._maps: dict[int, TableMap] = {}
        self._known_maps: dict[bytes, TableMap] = {}
        self._prepared: dict[Xid, tuple[RowsEvent, ...]] = {}
        self._gtid: Gtid | None = None
        self._is_open = False
        self._is_skipped = False
        self._changes: list[RowsEvent] = []
        self._size = 0
        self._begin = (start.file, start.offset)

    @property
    def file(self) -> str:
        """The file that the next event is in."""
        return self._file

    @property
    def place(self) -> tuple[str, int]:
        """File and offset behind the events that have been taken."""
        return self._file, self._offset

    def is_at(self, place: Position) -> bool:
        """Whether the events up to `place` of its file have been taken."""
        return self._file == place.file and self._offset >= place.offset

    def feed(self, event: bytes) -> SourceTransaction | None:
        """Take the next event; the transaction that it ends, if any. Raises WireError, SourceRefused, LostRange."""
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
            # Not where the event before it ended: a server leaves out what was done.
            before = self._offset - header.size
        self._size += header.size
        try:
            return self._take(header, event, before)
        except (WireError, SourceRefused, LostRange) as error:
            place = {"file": self._file, "offset": before, "transaction": self._id() if self._gtid else ""}
            raise type(error)(error.message, hint=error.hint, where={**place, **error.where}) from None
        except _DAMAGE as error:
            raise WireError(
                "an event is damaged: its parts do not fit its length",
                hint="mysqlbinlog on the server shows whether its file is damaged; binlog_checksum = CRC32 guards it",
                where={"file": self._file, "offset": before, "type": name_of(kind)},
            ) from error

    def _advance(self, end: int) -> None:
        # The header has the low 32 bits only; a file with a large transaction is longer.
        offset = self._offset & _HIGH | end
        self._offset = offset if offset >= self._offset else offset + (1 << 32)

    def _rotate(self, event: bytes) -> None:
        # One that was made for this reader may come before the log has said whether it has checksums.
        body = event[:-CHECKSUM_BYTES] if has_checksum(event) else event
        self._offset = int.from_bytes(body[HEADER_BYTES : HEADER_BYTES + 8], "little")
        self._file = body[HEADER_BYTES + 8 :].decode("utf-8", "backslashreplace")

    def _take(self, header: Header, event: bytes, before: int) -> SourceTransaction | None:
        kind = header.type
        if kind == _E.TABLE_MAP:
            self._map(event)
        elif kind in rows.KINDS:
            self._row(kind, event)
        elif kind in (_E.GTID, _E.ANONYMOUS_GTID, _E.GTID_TAGGED, _E.MARIADB_GTID):
            self._begin_group(header, event, before)
        elif kind == _E.XID:
            return self._end(header)
        elif kind == _E.QUERY and query.is_begin(event):
            self._open(header, before)
        elif kind in (_E.QUERY, _E.MARIADB_QUERY_COMPRESSED):
            return self._statement(header, event, before)
        elif kind == _E.TRANSACTION_PAYLOAD:
            return self._payload(event, before)
        elif kind == _E.XA_PREPARE:
            return self._prepare(header, event)
        else:
            self._take_rare(header, event)
        return None

    def _take_rare(self, header: Header, event: bytes) -> None:
        kind = header.type
        if kind == _E.PREVIOUS_GTIDS:
            self._begin_file(event)
        elif kind == _E.INCIDENT:
            self._refuse(_incident())
        elif kind in (_E.BEGIN_LOAD_QUERY, _E.EXECUTE_LOAD_QUERY):
            self._refuse(_as_text("LOAD DATA"))
        elif kind not in _PASSED_OVER and kind != _E.FORMAT_DESCRIPTION and not header.flags & IGNORABLE:
            self._refuse(_unknown_event(kind))

    def _begin_file(self, event: bytes) -> None:
        """The set of what is in earlier files counts where none was given: a position of file and offset."""
        if self._learns_done:
            done = gtidevents.read_previous_gtids(event)
            done.add_set(MySqlGtidSet.parse(self._start_gtids))
            self._done, self._learns_done = done, False

    def _begin_group(self, header: Header, event: bytes, before: int) -> None:
        if header.type == _E.MARIADB_GTID:
            gtid = gtidevents.read_mariadb_gtid(event, header.server_id)
        elif header.type == _E.GTID_TAGGED:
            gtid = gtidevents.read_tagged_gtid(event)
        else:
            gtid = gtidevents.read_mysql_gtid(event)
        if header.type == _E.ANONYMOUS_GTID:
            gtid = gtid._replace(text="")
        self._start(gtid, header.size, before)
        self._is_open = header.type == _E.MARIADB_GTID and not gtid.standalone
        self._is_skipped = self._is_done(gtid, before)

    def _start(self, gtid: Gtid, size: int, before: int) -> None:
        self._gtid, self._size = gtid, size
        self._begin = (self._file, before)
        self._changes = []

    def _is_done(self, gtid: Gtid, before: int) -> bool:
        file, below = self._first
        if self._file == file and before < below:
            return True
        # MariaDB's numbers need not rise in a domain, and the server skips what is done.
        return self._flavor is Flavor.MYSQL and bool(gtid.text and self._done and self._done.contains(gtid.text))

    def _map(self, event: bytes) -> None:
        body = event[HEADER_BYTES:]
        table = self._known_maps.get(body)
        if table is None:
            if len(self._known_maps) >= _MAPS:
                self._known_maps.clear()
            table = self._known_maps[body] = tablemap.read_table_map(event, self._flavor)
        self._maps[table.table_id] = table

    def _row(self, kind: int, event: bytes) -> None:
        if not self._is_open:
            raise WireError(
                "rows stand outside of a transaction: the position is in the middle of one",
                hint="a position is right behind a transaction's end",
            )
        table_id = rows.table_id_of(event)
        if self._is_skipped or table_id == _NO_TABLE:
            return
        table = self._maps.get(table_id)
        if table is None:
            raise WireError(f"rows of table id {table_id} have no table map before them")
        self._changes.append(rows.read_rows(kind, event, table))

    def _payload(self, event: bytes, before: int) -> SourceTransaction | None:
        ended = None
        for inner in events_of_payload(event):
            ended = self._take(read_header(inner), inner, before) or ended
        return ended

    def _statement(self, header: Header, event: bytes, before: int) -> SourceTransaction | None:
        sent = query.read_query(
            event, header.time, self._flavor, is_compressed=header.type == _E.MARIADB_QUERY_COMPRESSED
        )
        role = query.role_of(sent.text)
        if role is Role.BEGIN or (role is Role.AROUND and not self._is_open):
            self._open(header, before)
        elif role is Role.COMMIT:
            return self._end(header)
        elif role is Role.ROLLBACK:
            return self._roll_back(header)
        elif role is Role.ROLLBACK_TO:
            self._refuse(_half_rolled_back())
            self._changes = []
        elif role in (Role.XA_COMMIT, Role.XA_ROLLBACK):
            return self._end_prepared(header, role, sent.text, before)
        elif role is Role.ROWS_AS_TEXT:
            self._refuse(_as_text(sent.text))
        elif role is Role.DEFINITION:
            return self._define(header, sent, before)
        return None

    def _open(self, header: Header, before: int) -> None:
        if self._gtid is None:
            self._start(Gtid(""), header.size, before)
            self._is_skipped = self._is_done(Gtid(""), before)
        self._is_open = True

    def _define(self, header: Header, sent: Statement, before: int) -> SourceTransaction | None:
        if self._is_open:
            return self._define_inside(header, sent)
        if self._gtid is None:
            self._start(Gtid(""), header.size, before)
            self._is_skipped = self._is_done(Gtid(""), before)
        is_void = self._gtid is not None and self._gtid.void
        return self._end(header, statement=None if is_void else sent)

    def _define_inside(self, header: Header, sent: Statement) -> SourceTransaction | None:
        """A definition among rows: CREATE TABLE ... SELECT, whose rows follow, comes before them as one of its own."""
        if query.is_of_temporary_table(sent.text):
            return None
        if self._changes:
            self._refuse(_definition_behind_rows(sent.text))
        if self._is_skipped:
            return None
        text = sent.text.removesuffix(_START_TRANSACTION)
        statement = Statement(sent.db, text, sent.session)
        return SourceTransaction(
            f"{self._id()}/ddl", self._time(header), self.position, statement=statement, size=header.size
        )

    def _roll_back(self, header: Header) -> SourceTransaction | None:
        if self._changes:
            self._refuse(_half_rolled_back())
            self._changes = []
        return self._end(header)

    def _prepare(self, header: Header, event: bytes) -> SourceTransaction | None:
        xid, one_phase = xa.read_prepare(event)
        if not one_phase and not self._is_skipped:
            self._prepared[xid] = tuple(self._changes)
            self._changes = []
        return self._end(header)

    def _end_prepared(self, header: Header, role: Role, text: str, before: int) -> SourceTransaction | None:
        self._open(header, before)
        xid = xa.xid_of(text)
        changes = self._prepared.pop(xid, None)
        if role is Role.XA_COMMIT and not self._is_skipped:
            self._changes = list(self._find_prepared(xid, Position(*self._begin)) if changes is None else changes)
        return self._end(header)

    def prepared(self, xid: Xid) -> tuple[RowsEvent, ...] | None:
        """The rows of a transaction that was prepared and has not ended."""
        return self._prepared.get(xid)

    def _end(self, header: Header, statement: Statement | None = None) -> SourceTransaction | None:
        gtid, changes, is_skipped = self._gtid, tuple(self._changes), self._is_skipped
        if gtid is None:
            raise WireError("a transaction ends that has not begun: the position is in the middle of one")
        name, time = self._id(), self._time(header)
        if gtid.text and self._done is not None:
            self._done.add(gtid.text)
        self._gtid, self._is_open, self._is_skipped, self._changes = None, False, False, []
        if is_skipped:
            return None
        self.position = Position(self._file, self._offset, self._done.text() if self._done else "")
        return SourceTransaction(name, time, self.position, changes, statement, self._size)

    def _refuse(self, error: BinlakeError) -> None:
        if not self._is_skipped and self._refuses(self._id()):
            raise error

    def _id(self) -> str:
        return (self._gtid.text if self._gtid else "") or "{}:{}".format(*self._begin)

    def _time(self, header: Header) -> int:
        exact = self._gtid.time_us // 1000 if self._gtid else 0
        return exact or header.time * 1000


def _unknown_event(kind: int) -> SourceRefused:
    return SourceRefused(
        f"the log has an event that is not known: {name_of(kind)}",
        hint="a newer server, or one older than MySQL 5.7; see docs/operate/feeder.md for what is read",
    )


def _incident() -> LostRange:
    return LostRange(
        "the server wrote an incident into its log: changes before it may be missing",
        hint="its error log says what happened; load the tables anew (`binlake bootstrap`)",
    )


def _definition_behind_rows(statement: str) -> SourceRefused:
    return SourceRefused(
        "a definition changes behind rows of the same transaction", where={"statement": statement[:80]}
    )


def _as_text(statement: str) -> SourceRefused:
    return SourceRefused(
        f"the log has a change of rows as a statement, not as rows: {statement[:80]!r}",
        hint="SET GLOBAL binlog_format = ROW and end the sessions that set another; then load the table anew"
        " (`binlake bootstrap`), or name the transaction in a [[source.replace]] of feeder.toml: it is passed over",
    )


def _half_rolled_back() -> SourceRefused:
    return SourceRefused(
        "a transaction in the log was rolled back in part: it also changed tables of an engine without transactions",
        hint="change such tables in transactions of their own (or to InnoDB); load them anew (`binlake bootstrap`)",
    )
