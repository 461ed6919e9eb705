"""What a source's log holds, as values: one `SourceTransaction` after the other, in the order of its commits.

Nothing here knows a server, a table's columns or a pump (MySQL internals manual, "Binary Log Event"; MariaDB KB,
"2-Binlog Event Header" and its siblings).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Flavor(Enum):
    """The two families, which differ in GTIDs, events and types."""

    MYSQL = "mysql"
    MARIADB = "mariadb"


@dataclass(frozen=True, slots=True)
class Position:
    """Where a log is read on: at byte `offset` of `file`; `gtids` is the text of the GTID set done so far.

    `gtids` is "" where the server writes no GTIDs; then `file` and `offset` decide, else they are for people.
    """

    file: str
    offset: int
    gtids: str = ""


@dataclass(frozen=True, slots=True)
class TableMap:
    """A TABLE_MAP event: the columns of the row events behind it, by place.

    `types`: MySQL's type numbers as the event has them (a string's real type is in its metadata); `metadata`: the
    number of each column, 0 where its type has none; `nullable`: by place. The rest is there with
    binlog_row_metadata = FULL or, in part, MINIMAL, else None: `unsigned` and `charsets` (collation ids) by place, 0
    where it does not apply; `names`; `elements` (raw bytes, in the column's charset) of ENUM and SET by place;
    `primary_key`: places.
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
    """What a row event did."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    PARTIAL_UPDATE = "partial update"
    """An UPDATE whose JSON columns may hold differences (MySQL, binlog_row_value_options = PARTIAL_JSON)."""


@dataclass(frozen=True, slots=True)
class RowsEvent:
    """A row event: `rows` are its bytes behind the bitmaps of columns; `before` and `after` are those bitmaps.

    A bit is set for a column that the image has, the first column in the lowest bit; an INSERT has no `before` (b""),
    a DELETE no `after`.
    """

    kind: RowKind
    table: TableMap
    before: bytes
    after: bytes
    rows: bytes


@dataclass(frozen=True, slots=True)
class Session:
    """The settings of the session that sent a statement, as its event tells them; None: the event does not.

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
class Statement:
    """A statement that the log holds as text, a DDL mostly: `db` is its default database, `text` as it was sent."""

    db: str
    text: str
    session: Session


@dataclass(frozen=True, slots=True)
class SourceTransaction:
    """One transaction of the source, or one DDL: it has `changes` or one `statement`, never both; both may be absent.

    `id`: its GTID (`uuid:number`, `domain-server-number`), or `file:offset` of its begin where there are none;
    `time_ms`: Unix ms of its commit at the source, as exact as the log has it; `end`: the position behind it; `size`:
    its bytes in the log.

    A CREATE TABLE ... SELECT is one transaction of the source and two here: first its statement, whose id ends with
    `/ddl` and whose `end` is the position before both, then its rows. After a restart between them both come again.
    A transaction of two phases (XA) has its changes where it is committed; its preparation has none.
    """

    id: str
    time_ms: int
    end: Position
    changes: tuple[RowsEvent, ...] = ()
    statement: Statement | None = None
    size: int = 0
