"""GTID events of both families, which start each transaction, and MySQL's GTID sets, which start each file."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from binlake.errors import WireError
from binlake.mysqlbinlog.events.header import HEADER_BYTES
from binlake.mysqlbinlog.events.numbers import read_signed_varlen, read_varlen
from binlake.mysqlbinlog.gtid import Interval, MySqlGtidSet

_MYSQL = struct.Struct("<B16sq")
_LOGICAL_CLOCK = 2
_MARIADB = struct.Struct("<QIB")
_TAGGED = 1
_U64 = struct.Struct("<Q")

STANDALONE = 1
PREPARED_XA = 64
COMPLETED_XA = 128
_GROUP_COMMIT = 2
_START_ALTER = 2
_ROLLBACK_ALTER = 8


class Gtid(NamedTuple):
    """A GTID event. `text`: "" for an anonymous one; `time_us`: of the original commit, 0 = not in the event.

    `standalone` (MariaDB): one statement follows, with no BEGIN and no end. `void`: what follows does not count: the
    first half of an ALTER that is logged in two parts, or one that was rolled back.
    """

    text: str
    time_us: int = 0
    standalone: bool = False
    void: bool = False


def read_mysql_gtid(event: bytes) -> Gtid:
    """Read GTID or ANONYMOUS_GTID, which have the same form; the caller knows which it is."""
    _, uuid, number = _MYSQL.unpack_from(event, HEADER_BYTES)
    return Gtid(f"{_format_uuid(uuid)}:{number}", _commit_time(event, HEADER_BYTES + _MYSQL.size))


@lru_cache(maxsize=64)
def _format_uuid(uuid: bytes) -> str:
    return str(UUID(bytes=uuid))


def _commit_time(event: bytes, at: int) -> int:
    """The original commit's time after the logical clock (17 bytes); MySQL 5.7 has none."""
    if len(event) < at + 24 or event[at] != _LOGICAL_CLOCK:
        return 0
    immediate = int.from_bytes(event[at + 17 : at + 24], "little")
    has_original = immediate >> 55
    return int.from_bytes(event[at + 24 : at + 31], "little") if has_original else immediate


def read_tagged_gtid(event: bytes) -> Gtid:
    """Read GTID_TAGGED, in the form of MySQL's serialization library: numbered fields. Raises WireError."""
    fields = _read_serialized_fields(event)
    uuid, number, tag = fields.get("uuid"), fields.get("number"), fields["tag"]
    if not isinstance(uuid, bytes) or not isinstance(number, int) or not isinstance(tag, bytes):
        raise WireError("a tagged GTID event has no UUID or no number")
    origin = f"{_format_uuid(uuid)}:{tag.decode('ascii')}" if tag else _format_uuid(uuid)
    time = fields.get("original", fields.get("immediate", 0))
    return Gtid(f"{origin}:{number}", time if isinstance(time, int) else 0)


def _read_serialized_fields(event: bytes) -> dict[str, int | bytes]:
    fields: dict[str, int | bytes] = {"tag": b""}
    at = HEADER_BYTES
    for _ in ("version", "size", "last field that must be understood"):
        _, at = read_varlen(event, at)
    while at < len(event):
        field, at = read_varlen(event, at)
        if field == 1:
            uuid = bytearray()
            for _ in range(16):
                byte, at = read_varlen(event, at)
                uuid.append(byte)
            fields["uuid"] = bytes(uuid)
        elif field == 3:
            size, at = read_varlen(event, at)
            fields["tag"], at = event[at : at + size], at + size
        elif field in _SIGNED:
            fields[_SIGNED[field]], at = read_signed_varlen(event, at)
        elif field in _UNSIGNED:
            fields[_UNSIGNED[field]], at = read_varlen(event, at)
        else:
            break  # Fields come in order, and nothing after the times is needed.
    return fields


_SIGNED = {2: "number", 4: "last committed", 5: "sequence"}
_UNSIGNED = {0: "flags", 6: "immediate", 7: "original"}


def read_mariadb_gtid(event: bytes, server_id: int) -> Gtid:
    """Read MariaDB's GTID event; the server id comes from the event's header."""
    number, domain, flags = _MARIADB.unpack_from(event, HEADER_BYTES)
    at = HEADER_BYTES + _MARIADB.size
    if flags & _GROUP_COMMIT:
        at += 8
    if flags & (PREPARED_XA | COMPLETED_XA) and len(event) > at + 6:
        at += 6 + event[at + 4] + event[at + 5]
    # Without either, the event is padded with six zero bytes.
    more = event[at] if len(event) > at else 0
    return Gtid(
        f"{domain}-{server_id}-{number}",
        standalone=bool(flags & STANDALONE),
        void=bool(more & (_START_ALTER | _ROLLBACK_ALTER)),
    )


def read_previous_gtids(event: bytes) -> MySqlGtidSet:
    """Read MySQL's PREVIOUS_GTIDS: everything done before its file."""
    return decode_mysql_set(event[HEADER_BYTES:])


def decode_mysql_set(data: bytes) -> MySqlGtidSet:
    """Decode a set in MySQL's binary form, with or without tags."""
    tagged = data[7] == _TAGGED
    count = int.from_bytes(data[1:7] if tagged else data[:7], "little")
    at = 8
    intervals: dict[str, list[Interval]] = {}
    for _ in range(count):
        origin, at = str(UUID(bytes=data[at : at + 16])), at + 16
        if tagged:
            size, at = read_varlen(data, at)
            tag, at = data[at : at + size].decode("ascii"), at + size
            origin = f"{origin}:{tag}" if tag else origin
        pieces, at = _U64.unpack_from(data, at)[0], at + 8
        several = struct.unpack_from(f"<{2 * pieces}Q", data, at)
        at += 16 * pieces
        intervals[origin] = [(first, end - 1) for first, end in zip(several[::2], several[1::2], strict=True)]
    return MySqlGtidSet(intervals)


def encode_mysql_set(done: MySqlGtidSet) -> bytes:
    """`done` in MySQL's binary form; tagged only if it has tags, since servers before 8.3 do not know that form."""
    origins = list(done.iterate_intervals())
    tagged = any(":" in origin for origin, _ in origins)
    count = len(origins)
    parts = [_U64.pack(_TAGGED << 56 | count << 8 | _TAGGED if tagged else count)]
    for origin, several in origins:
        uuid, _, tag = origin.partition(":")
        parts.append(UUID(uuid).bytes)
        if tagged:
            parts.append(bytes([len(tag) << 1]) + tag.encode("ascii"))
        parts.append(_U64.pack(len(several)))
        parts += [struct.pack("<QQ", first, last + 1) for first, last in several]
    return b"".join(parts)
