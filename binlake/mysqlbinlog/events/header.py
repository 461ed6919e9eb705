"""What surrounds every event: its header of 19 bytes and its checksum.

An unknown event is ignored only if its own flag allows it.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from typing import NamedTuple

from binlake.errors import WireError

HEADER_BYTES = 19
CHECKSUM_BYTES = 4
ARTIFICIAL = 0x20
"""Flag: the event is in no file; the server generated it for the reader."""
IGNORABLE = 0x80
"""Flag: a reader that does not know the event's type may ignore it."""
_HEADER = struct.Struct("<IBIIIH")


class EventType(IntEnum):
    """The types that current servers write, and old ones that are refused by name."""

    UNKNOWN = 0
    QUERY = 2
    STOP = 3
    ROTATE = 4
    INTVAR = 5
    RAND = 13
    USER_VAR = 14
    FORMAT_DESCRIPTION = 15
    XID = 16
    BEGIN_LOAD_QUERY = 17
    EXECUTE_LOAD_QUERY = 18
    TABLE_MAP = 19
    WRITE_ROWS_V1 = 23
    UPDATE_ROWS_V1 = 24
    DELETE_ROWS_V1 = 25
    INCIDENT = 26
    HEARTBEAT = 27
    IGNORABLE = 28
    ROWS_QUERY = 29
    WRITE_ROWS = 30
    UPDATE_ROWS = 31
    DELETE_ROWS = 32
    GTID = 33
    ANONYMOUS_GTID = 34
    PREVIOUS_GTIDS = 35
    TRANSACTION_CONTEXT = 36
    VIEW_CHANGE = 37
    XA_PREPARE = 38
    PARTIAL_UPDATE_ROWS = 39
    TRANSACTION_PAYLOAD = 40
    HEARTBEAT_V2 = 41
    GTID_TAGGED = 42
    MARIADB_ANNOTATE_ROWS = 160
    MARIADB_BINLOG_CHECKPOINT = 161
    MARIADB_GTID = 162
    MARIADB_GTID_LIST = 163
    MARIADB_START_ENCRYPTION = 164
    MARIADB_QUERY_COMPRESSED = 165
    MARIADB_WRITE_ROWS_COMPRESSED_V1 = 166
    MARIADB_UPDATE_ROWS_COMPRESSED_V1 = 167
    MARIADB_DELETE_ROWS_COMPRESSED_V1 = 168
    MARIADB_WRITE_ROWS_COMPRESSED = 169
    MARIADB_UPDATE_ROWS_COMPRESSED = 170
    MARIADB_DELETE_ROWS_COMPRESSED = 171


class EventHeader(NamedTuple):
    """`time`: seconds of Unix time; `end`: the low 32 bits of the offset after the event, 0 if it has none."""

    time: int
    type: int
    server_id: int
    size: int
    end: int
    flags: int


def read_header(event: bytes) -> EventHeader:
    """The header of a complete event. Raises WireError."""
    if len(event) < HEADER_BYTES:
        raise WireError(f"an event of {len(event)} bytes is shorter than its header")
    header = EventHeader._make(_HEADER.unpack_from(event))
    if header.size != len(event):
        raise WireError(
            f"an event states {header.size} bytes but has {len(event)}", where={"type": format_event_type(header.type)}
        )
    return header


def format_event_type(number: int) -> str:
    """The name of an event type, or its number."""
    try:
        return EventType(number).name
    except ValueError:
        return f"type {number}"


def without_checksum(event: bytes) -> bytes:
    """The event without its last four bytes, which must be its CRC32. Raises WireError."""
    body = event[:-CHECKSUM_BYTES]
    if zlib.crc32(body) != int.from_bytes(event[-CHECKSUM_BYTES:], "little"):
        raise WireError(
            "an event's checksum is wrong: it was damaged in transit or on the server's disk",
            hint="mysqlbinlog --verify-binlog-checksum on the server shows whether its file is damaged",
            where={"type": format_event_type(event[4])},
        )
    return body


def has_checksum(event: bytes) -> bool:
    """Whether the event's last four bytes are the CRC32 of the rest."""
    return zlib.crc32(event[:-CHECKSUM_BYTES]) == int.from_bytes(event[-CHECKSUM_BYTES:], "little")


def writes_checksums(format_description: bytes) -> bool:
    """Whether the events after a FORMAT_DESCRIPTION event have checksums; it always has one. Raises WireError."""
    algorithm = format_description[-CHECKSUM_BYTES - 1]
    if algorithm not in (0, 1):
        raise WireError(
            f"checksum algorithm {algorithm} of the log is unknown", hint="SET GLOBAL binlog_checksum = CRC32"
        )
    return algorithm == 1
