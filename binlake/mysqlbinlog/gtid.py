"""GTID sets of both families: what a replica has executed, as the servers write it.

MySQL's set is intervals by server UUID, and by tag since 8.3 (`uuid:1-5:7:tag:1-3,uuid2:1`). MariaDB's is the last
GTID of each domain (`0-1-17,1-2-5`): everything before it in its domain is done.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from binlake.errors import WireError
from binlake.mysqlbinlog.model import Flavor

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_NUMBERS = re.compile(r"(\d+)(?:-(\d+))?")
_MARIADB = re.compile(r"(\d+)-(\d+)-(\d+)")

Interval = tuple[int, int]
"""First and last number, both inclusive."""


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
