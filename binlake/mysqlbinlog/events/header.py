"""What every event has around and below its fields: header of 19 bytes, checksum, compression, numbers and strings.

An unknown event is ignored only if its own flag allows it. MySQL compresses a whole transaction (TRANSACTION_PAYLOAD,
zstd), MariaDB single events (zlib). A number or string is read at an offset and returned with the offset after it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

import pyarrow as pa

from binlake.errors import WireError

HEADER_BYTES = 19
CHECKSUM_BYTES = 4
ARTIFICIAL = 0x20
"""Flag: the event is in no file; the server generated it for the reader."""
IGNORABLE = 0x80
"""Flag: a reader that does not know the event's type may ignore it."""
_HEADER = struct.Struct("<IBIIIH")
_END, _COMPRESSION, _UNCOMPRESSED_SIZE = 0, 2, 3
_ZSTD, _NONE = 0, 255


def read_length(data: bytes, at: int) -> tuple[int, int]:
    """MySQL's length-encoded integer: 1, 3, 4 or 9 bytes. Raises WireError."""
    first = data[at]
    if first < 251:
        return first, at + 1
    width = {252: 2, 253: 3, 254: 8}.get(first)
    if width is None:
        raise WireError(f"{first} cannot begin a length")
    return int.from_bytes(data[at + 1 : at + 1 + width], "little"), at + 1 + width


def read_text(data: bytes, at: int) -> tuple[bytes, int]:
    """A string after its length-encoded length. Raises WireError."""
    size, at = read_length(data, at)
    if at + size > len(data):
        raise WireError("a string ends after the event that contains it")
    return data[at : at + size], at + size


def read_varlen(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned integer of MySQL's serialization library: trailing ones of the first byte count further bytes."""
    more = 0
    while more < 8 and data[at] >> more & 1:
        more += 1
    if more == 8:
        return int.from_bytes(data[at + 1 : at + 9], "little"), at + 9
    return int.from_bytes(data[at : at + more + 1], "little") >> (more + 1), at + more + 1


def read_signed_varlen(data: bytes, at: int) -> tuple[int, int]:
    """A signed one: its lowest bit is the sign, a negative number is stored as -(n + 1)."""
    number, at = read_varlen(data, at)
    return (~(number >> 1) if number & 1 else number >> 1), at


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


def read_payload_events(event: bytes) -> Iterator[bytes]:
    """The events in a TRANSACTION_PAYLOAD event without checksum; they have no checksums either. Raises WireError."""
    fields, at = _read_payload_fields(event)
    data: bytes = event[at:]
    algorithm = fields.get(_COMPRESSION, _NONE)
    if algorithm == _ZSTD:
        data = _unzstd(data, fields.get(_UNCOMPRESSED_SIZE, 0))
    elif algorithm != _NONE:
        raise WireError(f"compression {algorithm} of a transaction is unknown", hint="only zstd and none are supported")
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at + 9 : at + 13], "little")
        if size < HEADER_BYTES or at + size > len(data):
            raise WireError("a compressed transaction ends inside an event")
        yield data[at : at + size]
        at += size


def _read_payload_fields(event: bytes) -> tuple[dict[int, int], int]:
    fields: dict[int, int] = {}
    at = HEADER_BYTES
    while True:
        kind, at = read_length(event, at)
        if kind == _END:
            return fields, at
        size, at = read_length(event, at)
        fields[kind], _ = read_length(event, at)
        at += size


def _unzstd(data: bytes, size: int) -> bytes:
    try:
        plain: bytes = pa.decompress(data, decompressed_size=size, codec="zstd", asbytes=True)
    except (OSError, OverflowError, MemoryError) as error:
        raise WireError(f"a compressed transaction cannot be read: {error}") from None
    return plain


def uncompress_mariadb(data: bytes) -> bytes:
    """Decompress the compressed part of an event: a byte, the length in big-endian, zlib. Raises WireError."""
    algorithm, width = data[0] >> 4 & 7, data[0] & 7
    if not data[0] & 0x80 or algorithm:
        raise WireError(f"compression {algorithm} of an event is unknown", hint="SET GLOBAL log_bin_compress = OFF")
    size = int.from_bytes(data[1 : 1 + width], "big")
    try:
        plain = zlib.decompress(data[1 + width :])
    except zlib.error as error:
        raise WireError(f"a compressed event cannot be read: {error}") from None
    if len(plain) != size:
        raise WireError(f"a compressed event has {len(plain)} bytes, but states {size}")
    return plain
