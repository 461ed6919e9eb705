"""The ranges of a table's key, in order: those that are read, with the number of their snapshot, and the rest.

A range is identified by the literals of its bounds, which are never compared: the order of the list is their order.
This lets another process read the rest of a table, and tells for each row whether it was read.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

_UNREAD, _BEING_READ = -1, -2

Stored = list[tuple[str, str, int]]
"""(low, high, snapshot) of each range, as in JSON; snapshot -1: not read."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keys above `low` up to `high`, as literals; "" = no bound. `snapshot`: in which they were read."""

    low: str
    high: str
    snapshot: int = _UNREAD


class KeyRanges:
    """The ranges of one table; thread-safe."""

    def __init__(self, ranges: Sequence[KeyRange] = (KeyRange("", ""),)) -> None:
        self._all = list(ranges)
        self._lock = threading.Lock()

    @classmethod
    def of(cls, stored: Sequence[Sequence[str | int]]) -> KeyRanges:
        """Ranges from the result of `store`."""
        return cls([KeyRange(str(low), str(high), int(snapshot)) for low, high, snapshot in stored])

    def find_next(self) -> KeyRange | None:
        """The first range that nobody has claimed or read; None if there is none."""
        with self._lock:
            return next((part for part in self._all if part.snapshot == _UNREAD), None)

    def claim(self, of: KeyRange, high: str) -> KeyRange:
        """Claim `of` up to `high` for reading; the part above it stays unread. Returns the claimed range."""
        part, rest = KeyRange(of.low, high, _BEING_READ), KeyRange(high, of.high)
        with self._lock:
            index = self._all.index(of)
            self._all[index : index + 1] = [part] if high == of.high else [part, rest]
        return part

    def finish(self, low: str, high: str, snapshot: int) -> None:
        """Mark the claimed range with these bounds as read."""
        with self._lock:
            index = self._all.index(KeyRange(low, high, _BEING_READ))
            self._all[index] = replace(self._all[index], snapshot=snapshot)
            self._all = _join_neighbours(self._all)

    def store(self) -> Stored:
        """The ranges for JSON: claimed ranges count as unread."""
        with self._lock:
            todo = [part if part.snapshot >= 0 else replace(part, snapshot=_UNREAD) for part in self._all]
        return [(part.low, part.high, part.snapshot) for part in _join_neighbours(todo)]

    def count_as_one(self) -> None:
        """Count every range that is read as read in the first snapshot."""
        with self._lock:
            self._all = _join_neighbours([replace(part, snapshot=min(part.snapshot, 0)) for part in self._all])

    @property
    def snapshots(self) -> list[int]:
        """The snapshots in which parts of the table were read, in order."""
        return sorted({snapshot for _, _, snapshot in self.store() if snapshot >= 0})

    @property
    def is_complete(self) -> bool:
        """Whether the whole table is read."""
        return all(snapshot >= 0 for _, _, snapshot in self.store())


def _join_neighbours(ranges: Sequence[KeyRange]) -> list[KeyRange]:
    """Merge neighbours that were read in the same snapshot, or are both unread."""
    joined: list[KeyRange] = []
    for part in ranges:
        if joined and joined[-1].snapshot == part.snapshot != _BEING_READ:
            joined[-1] = replace(joined[-1], high=part.high)
        else:
            joined.append(part)
    return joined
