"""Hand-made events of a binary log: forms that tests need and that no server writes on request."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from uuid import UUID

from binlake.mysqlbinlog.events.header import HEADER_BYTES, EventType
from binlake.mysqlbinlog.events.transactions import GtidOrigin, TransactionReader
from binlake.mysqlbinlog.model import BinlogPosition, Flavor, SourceTransaction

UUID_1 = UUID("11111111-2222-3333-4444-555555555555")
START = BinlogPosition("binlog.000001", 4)


class Log:
    """Makes consecutive events of one log; with `checksums` they carry CRC32s."""

    def __init__(self, *, checksums: bool = True, offset: int = 4) -> None:
        self._checksums = checksums
        self.offset = offset
        self.time = 1_700_000_000
        self._number = 0

    def event(self, kind: int, body: bytes = b"", flags: int = 0, server_id: int = 1) -> bytes:
        """One event."""
        size = HEADER_BYTES + len(body) + (4 if self._checksums else 0)
        self.offset += size
        head = struct.pack("<IBIIIH", self.time, kind, server_id, size, self.offset & 0xFFFFFFFF, flags)
        return head + body + (struct.pack("<I", zlib.crc32(head + body)) if self._checksums else b"")

    def description(self, algorithm: int | None = None) -> bytes:
        """FORMAT_DESCRIPTION: says whether the following events carry checksums; it always carries one itself."""
        body = struct.pack("<H50sIB", 4, b"8.4.0", 0, HEADER_BYTES) + bytes(40)
        body += bytes([int(self._checksums) if algorithm is None else algorithm])
        size = HEADER_BYTES + len(body) + 4
        self.offset += size
        head = struct.pack("<IBIIIH", self.time, EventType.FORMAT_DESCRIPTION, 1, size, self.offset & 0xFFFFFFFF, 0)
        return head + body + struct.pack("<I", zlib.crc32(head + body))

    def gtid(self, number: int | None = None, *, anonymous: bool = False) -> bytes:
        """MySQL's GTID event; its numbers count up automatically."""
        self._number = self._number + 1 if number is None else number
        kind = EventType.ANONYMOUS_GTID if anonymous else EventType.GTID
        return self.event(kind, struct.pack("<B16sq", 1, UUID_1.bytes, self._number))

    def mariadb_gtid(self, number: int, *, flags: int = 0, more: bytes = bytes(6), domain: int = 0) -> bytes:
        """MariaDB's GTID event."""
        return self.event(EventType.MARIADB_GTID, struct.pack("<QIB", number, domain, flags) + more)

    def query(self, text: str, db: str = "d", status: bytes = b"") -> bytes:
        """QUERY."""
        head = struct.pack("<IIBHH", 1, 0, len(db), 0, len(status))
        return self.event(EventType.QUERY, head + status + db.encode() + b"\0" + text.encode())

    def table(self, table_id: int = 7, name: str = "t") -> bytes:
        """TABLE_MAP of a table with one INT."""
        names = bytes([1]) + b"d\0" + bytes([len(name)]) + name.encode() + b"\0"
        return self.event(EventType.TABLE_MAP, table_id.to_bytes(6, "little") + bytes(2) + names + b"\1\3\0\1")

    def insert(self, value: int, table_id: int = 7) -> bytes:
        """WRITE_ROWS with one row for that table."""
        body = table_id.to_bytes(6, "little") + b"\1\0\2\0\1\1" + b"\0" + struct.pack("<i", value)
        return self.event(EventType.WRITE_ROWS, body)

    def xid(self) -> bytes:
        """XID, which commits."""
        return self.event(EventType.XID, bytes(8))

    def inserted(self, value: int) -> list[bytes]:
        """A whole transaction that inserts one row."""
        return [self.gtid(), self.query("BEGIN"), self.table(), self.insert(value), self.xid()]


def reader_of(flavor: Flavor = Flavor.MYSQL, start: BinlogPosition = START, **options: object) -> TransactionReader:
    """A reader that assumes no transaction was prepared before its start."""

    def none_prepared(*_: object) -> tuple[()]:
        raise AssertionError("the reader asked for prepared transactions")

    settings = {"find_prepared": none_prepared, "gtids": GtidOrigin.KNOWN, "resume": start, **options}
    return TransactionReader(flavor, start, **settings)  # type: ignore[arg-type]


def read_all(reader: TransactionReader, events: Iterable[bytes]) -> list[SourceTransaction]:
    """The transactions of `events`."""
    return [one for one in map(reader.feed, events) if one is not None]
