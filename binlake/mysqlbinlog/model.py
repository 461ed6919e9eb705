"""The contents of a source's log as values: one `SourceTransaction` after the other, in commit order.

Nothing here knows a server, a table's columns or a pump (MySQL internals manual, "Binary Log Event"; MariaDB KB,
"2-Binlog Event Header" and its siblings).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from binlake.errors import BinlakeError


class Flavor(Enum):
    """The two families, which differ in GTIDs, events and types."""

    MYSQL = "mysql"
    MARIADB = "mariadb"


@dataclass(frozen=True, slots=True)
class BinlogPosition:
    """Where reading a log resumes: at byte `offset` of `file`; `gtids` is the text of the GTID set done so far.

    `gtids` is "" if the server writes no GTIDs; then `file` and `offset` count, else they are informational.
    """

    file: str
    offset: int
    gtids: str = ""


@dataclass(frozen=True, slots=True)
class TableMap:
    """A TABLE_MAP event: the columns of the row events after it, by column index.

    `types`: MySQL's type numbers as the event has them (a string's real type is in its metadata); `metadata`: a number
    for each column, 0 if its type has none; `nullable`: by index. The rest is present with binlog_row_metadata = FULL
    or, in part, MINIMAL, else None: `unsigned` and `charsets` (collation ids) by index, 0 where not applicable;
    `names`; `elements` (raw bytes, in the column's charset) of ENUM and SET by index; `primary_key`: indexes.
    """

    table_id: int
    db: str
    table: str
    types: bytes
    metadata: tuple[int, ...]
    nullable: tuple[bool, ...]
    unsigned: tuple[bool, ...] | None = None
    charsets: tuple[int, ...] | None = None
    names: tuple[str, ...] | None = None
    elements: tuple[tuple[bytes, ...], ...] | None = None
    primary_key: tuple[int, ...] | None = None


class RowKind(Enum):
    """The kind of a row event."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    PARTIAL_UPDATE = "partial update"
    """An UPDATE whose JSON columns may hold differences (MySQL, binlog_row_value_options = PARTIAL_JSON)."""


@dataclass(frozen=True, slots=True)
class RowsEvent:
    """A row event: `rows` are its bytes after the column bitmaps; `before` and `after` are those bitmaps.

    A bit is set for a column that is in the image, the first column in the lowest bit; an INSERT has no `before` (b""),
    a DELETE no `after`. `unchecked`: the session had foreign_key_checks = 0, so no foreign key changed other rows.
    """

    kind: RowKind
    table: TableMap
    before: bytes
    after: bytes
    rows: bytes
    unchecked: bool = False


@dataclass(frozen=True, slots=True)
class LoggedSession:
    """The settings of the session that sent a statement, from its event; None: not in the event.

    `sql_mode`: bits; `client_charset`, `connection_collation`, `server_collation`, `database_collation`,
    `utf8mb4_collation` (MySQL's default_collation_for_utf8mb4): collation ids;
    `timestamp_us`: the statement's own time, microseconds of Unix time.
    """

    sql_mode: int | None = None
    client_charset: int | None = None
    connection_collation: int | None = None
    server_collation: int | None = None
    database_collation: int | None = None
    time_zone: str | None = None
    foreign_key_checks: bool | None = None
    unique_checks: bool | None = None
    auto_increment_increment: int | None = None
    auto_increment_offset: int | None = None
    explicit_defaults_for_timestamp: bool | None = None
    timestamp_us: int | None = None
    utf8mb4_collation: int | None = None


@dataclass(frozen=True, slots=True)
class LoggedStatement:
    """A statement logged as text, mostly DDL: `db` is its default database, `text` as it was sent.

    `unreadable`: why `text` is not known exactly; then only a replacement can be followed.
    """

    db: str
    text: str
    session: LoggedSession
    unreadable: BinlakeError | None = None


@dataclass(frozen=True, slots=True)
class SourceTransaction:
    """One transaction of the source, or one DDL: it has `changes` or one `statement`, never both; both may be absent.

    `id`: its GTID (`uuid:number`, `domain-server-number`), or `file:offset` of its begin without GTIDs; `time_ms`: Unix
    ms of its commit at the source, as precise as the log has it; `end`: the position after it; `size`: its bytes in the
    log.

    A CREATE TABLE ... SELECT is one transaction at the source and two here: first its statement, whose id ends with
    `/ddl` and whose `end` is the position before both, then its rows. After a restart between them both come again.
    A two-phase (XA) transaction has its changes where it is committed; its XA PREPARE has none.
    """

    id: str
    time_ms: int
    end: BinlogPosition
    changes: Collection[RowsEvent] = ()
    statement: LoggedStatement | None = None
    size: int = 0
