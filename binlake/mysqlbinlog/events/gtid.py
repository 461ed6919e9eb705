"""GTIDs of both families: sets of what a replica has executed, as the servers write them, and the events with a GTID.

MySQL's set is intervals by server UUID, and by tag since 8.3 (`uuid:1-5:7:tag:1-3,uuid2:1`). MariaDB's is the last
GTID of each domain (`0-1-17,1-2-5`): everything before it in its domain is done. A GTID event starts each transaction,
and MySQL's GTID set starts each file.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple, Protocol
from uuid import UUID

from binlake.errors import WireError
from binlake.mysqlbinlog.events.header import HEADER_BYTES, read_signed_varlen, read_varlen
from binlake.mysqlbinlog.model import Flavor

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_NUMBERS = re.compile(r"(\d+)(?:-(\d+))?")
_MARIADB = re.compile(r"(\d+)-(\d+)-(\d+)")

Interval = tuple[int, int]
"""First and last number, both inclusive."""
_MYSQL = struct.Struct("<B16sq")
_LOGICAL_CLOCK = 2
_MARIADB_EVENT = struct.Struct("<QIB")
_TAGGED = 1
_U64 = struct.Struct("<Q")
STANDALONE = 1
PREPARED_XA = 64
COMPLETED_XA = 128
_GROUP_COMMIT = 2
_START_ALTER = 2
_ROLLBACK_ALTER = 8
_SIGNED = {2: "number", 4: "last committed", 5: "sequence"}
_UNSIGNED = {0: "flags", 6: "immediate", 7: "original"}


class GtidSet(Protocol):
    """A set of executed transactions."""

    def add(self, gtid: str) -> None:
        """Add the transaction `gtid` to the set."""

    def contains(self, gtid: str) -> bool:
        """Whether the transaction `gtid` is done."""

    def contains_set(self, other: GtidSet) -> bool:
        """Whether all of `other` is done; `other` is of the same family."""

    def copy(self) -> GtidSet:
        """An independent copy."""

    def format_text(self) -> str:
        """The set as the server writes it, without white space."""


def parse_gtid_set(flavor: Flavor, text: str) -> GtidSet:
    """Parse a GTID set. Raises WireError."""
    return MySqlGtidSet.parse(text) if flavor is Flavor.MYSQL else MariaDbGtidSet.parse(text)


class MySqlGtidSet:
    """Intervals by origin: a UUID, or `uuid:tag`."""

    def __init__(self, intervals: Mapping[str, Iterable[Interval]] | None = None) -> None:
        self._intervals: dict[str, list[Interval]] = {}
        self._texts: dict[str, str] = {}
        for origin, ranges in (intervals or {}).items():
            for first, last in ranges:
                self._add_interval(origin, first, last)

    @classmethod
    def parse(cls, text: str) -> MySqlGtidSet:
        """Parse text in any letter case, with white space. Raises WireError."""
        done = cls()
        for part in re.sub(r"\s", "", text).lower().split(","):
            for origin, first, last in _parse_intervals(part) if part else ():
                done._add_interval(origin, first, last)
        return done

    def add(self, gtid: str) -> None:
        """Add `uuid:number` or `uuid:tag:number` to the set."""
        origin, _, number = gtid.rpartition(":")
        self.add_number(origin, int(number))

    def add_number(self, origin: str, number: int) -> None:
        """Add transaction `number` of `origin` to the set."""
        intervals = self._intervals.get(origin)
        # Nearly every transaction follows the one before it.
        if intervals and intervals[-1][1] + 1 == number:
            intervals[-1] = (intervals[-1][0], number)
            self._texts.pop(origin, None)
        else:
            self._add_interval(origin, number, number)

    def contains(self, gtid: str) -> bool:
        """Whether `uuid:number` or `uuid:tag:number` is done."""
        origin, _, number = gtid.rpartition(":")
        return self._contains_interval(origin, int(number), int(number))

    def contains_set(self, other: GtidSet) -> bool:
        """Whether all of `other` is done."""
        return not self.find_missing(_require_mysql(other))

    def find_missing(self, other: MySqlGtidSet) -> str:
        """The part of `other` that is not in this set, as text; "" if it is all included."""
        lacking = {
            origin: [piece for first, last in intervals for piece in self._find_gaps(origin, first, last)]
            for origin, intervals in other._intervals.items()
        }
        return MySqlGtidSet(lacking).format_text()

    def add_set(self, other: MySqlGtidSet) -> None:
        """Add all of `other` to the set."""
        for origin, intervals in other._intervals.items():
            for first, last in intervals:
                self._add_interval(origin, first, last)

    def copy(self) -> MySqlGtidSet:
        """An independent copy."""
        return MySqlGtidSet(self._intervals)

    def format_text(self) -> str:
        """`uuid:1-5:7,uuid2:1`, sorted by origin; an origin with a tag is a separate entry."""
        texts = self._texts
        if len(texts) != len(self._intervals):
            for origin, intervals in self._intervals.items():
                if origin not in texts:
                    numbers = (f"{first}-{last}" if last > first else f"{first}" for first, last in intervals)
                    texts[origin] = f"{origin}:{':'.join(numbers)}"
        return ",".join(texts[origin] for origin in sorted(texts))

    def iterate_intervals(self) -> Iterator[tuple[str, list[Interval]]]:
        """Each origin with its intervals, sorted by origin."""
        for origin in sorted(self._intervals):
            yield origin, list(self._intervals[origin])

    def _contains_interval(self, origin: str, first: int, last: int) -> bool:
        intervals = self._intervals.get(origin, [])
        index = bisect_right(intervals, (first, 1 << 64)) - 1
        return index >= 0 and intervals[index][1] >= last

    def _find_gaps(self, origin: str, first: int, last: int) -> Iterator[Interval]:
        for begin, end in self._intervals.get(origin, []):
            if end < first:
                continue
            if begin > last:
                break
            if begin > first:
                yield first, begin - 1
            first = end + 1
        if first <= last:
            yield first, last

    def _add_interval(self, origin: str, first: int, last: int) -> None:
        self._texts.pop(origin, None)
        joined: list[Interval] = []
        for begin, end in sorted([*self._intervals.get(origin, []), (first, last)]):
            if joined and begin <= joined[-1][1] + 1:
                joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
            else:
                joined.append((begin, end))
        self._intervals[origin] = joined


class MariaDbGtidSet:
    """The last GTID of each domain: (server id, sequence number) by domain."""

    def __init__(self, last: Mapping[int, tuple[int, int]] | None = None) -> None:
        self.last = dict(last or {})

    @classmethod
    def parse(cls, text: str) -> MariaDbGtidSet:
        """Parse text. Raises WireError."""
        return cls({domain: (server, number) for domain, server, number in _parse_mariadb(text)})

    def add(self, gtid: str) -> None:
        """Set `domain-server-number` as the last GTID of its domain: the log's order decides, not the number."""
        domain, server, number = map(int, gtid.split("-"))
        self.last[domain] = (server, number)

    def contains(self, gtid: str) -> bool:
        """Whether `domain-server-number` is at or before the last of its domain."""
        domain, _, number = map(int, gtid.split("-"))
        return domain in self.last and number <= self.last[domain][1]

    def contains_set(self, other: GtidSet) -> bool:
        """Whether the last GTID of each domain in `other` is at or before the last one here."""
        if not isinstance(other, MariaDbGtidSet):
            raise WireError("a GTID set of MySQL cannot be compared with one of MariaDB")
        return all(domain in self.last and end[1] <= self.last[domain][1] for domain, end in other.last.items())

    def copy(self) -> MariaDbGtidSet:
        """An independent copy."""
        return MariaDbGtidSet(self.last)

    def format_text(self) -> str:
        """`0-1-17,1-2-5`, sorted by domain."""
        return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in sorted(self.last.items()))


def _require_mysql(gtid_set: GtidSet) -> MySqlGtidSet:
    if not isinstance(gtid_set, MySqlGtidSet):
        raise WireError("a GTID set of MariaDB cannot be compared with one of MySQL")
    return gtid_set


def _parse_intervals(part: str) -> Iterator[tuple[str, int, int]]:
    """(origin, first, last) of `uuid:1-5:7:tag:1-3`."""
    uuid, *words = part.split(":")
    if not _UUID.fullmatch(uuid) or not words:
        raise WireError(f"not a GTID set of MySQL: {part!r}", hint="it looks like UUID:1-5,UUID:1-7")
    origin = uuid
    for word in words:
        numbers = _NUMBERS.fullmatch(word)
        if numbers is None and not _TAG.fullmatch(word):
            raise WireError(f"not an interval of a GTID set of MySQL: {word!r}", where={"part": part})
        if numbers is None:
            origin = f"{uuid}:{word}"
            continue
        first, last = int(numbers[1]), int(numbers[2] or numbers[1])
        if not 0 < first <= last:
            raise WireError(f"not an interval of a GTID set of MySQL: {word!r}", where={"part": part})
        yield origin, first, last


def _parse_mariadb(text: str) -> Iterator[tuple[int, int, int]]:
    for part in re.sub(r"\s", "", text).split(","):
        if not part:
            continue
        match = _MARIADB.fullmatch(part)
        if match is None:
            raise WireError(f"not a GTID of MariaDB: {part!r}", hint="it looks like 0-1-17: domain, server, number")
        yield int(match[1]), int(match[2]), int(match[3])


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


def read_mariadb_gtid(event: bytes, server_id: int) -> Gtid:
    """Read MariaDB's GTID event; the server id comes from the event's header."""
    number, domain, flags = _MARIADB_EVENT.unpack_from(event, HEADER_BYTES)
    at = HEADER_BYTES + _MARIADB_EVENT.size
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
