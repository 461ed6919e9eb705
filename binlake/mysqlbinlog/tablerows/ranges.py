"""The ranges of a table's key, in their order: those that are read, with the number of their snapshot, and the rest.

A range is known by the literals of its bounds and never compared: its place in the list is its order. So what is left
of a table can be read by another process, and what was read can be told apart row by row.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

_TODO, _GIVEN = -1, -2

Stored = list[tuple[str, str, int]]
"""(low, high, snapshot) of each range as JSON has it; snapshot -1: not read."""


@dataclass(frozen=True, slots=True)
class Range:
    """The keys above `low` up to `high`, literals; "" = no bound. `snapshot`: of the snapshot in which it was read."""

    low: str
    high: str
    snapshot: int = _TODO


class Ranges:
    """Of one table; thread-safe."""

    def __init__(self, ranges: Sequence[Range] = (Range("", ""),)) -> None:
        self._all = list(ranges)
        self._lock = threading.Lock()

    @classmethod
    def of(cls, stored: Sequence[Sequence[str | int]]) -> Ranges:
        """As `store` gave them."""
        return cls([Range(str(low), str(high), int(snapshot)) for low, high, snapshot in stored])

    def next(self) -> Range | None:
        """The first range that nobody reads yet; None when there is none."""
        with self._lock:
            return next((part for part in self._all if part.snapshot == _TODO), None)

    def give(self, of: Range, high: str) -> Range:
        """`of` up to `high` is being read; what is above stays to be."""
        part, rest = Range(of.low, high, _GIVEN), Range(high, of.high)
        with self._lock:
            place = self._all.index(of)
            self._all[place : place + 1] = [part] if high == of.high else [part, rest]
        return part

    def finish(self, low: str, high: str, snapshot: int) -> None:
        """The range that was given with these bounds is read."""
        with self._lock:
            place = self._all.index(Range(low, high, _GIVEN))
            self._all[place] = replace(self._all[place], snapshot=snapshot)
            self._all = _joined(self._all)

    def store(self) -> Stored:
        """For JSON: what is being read is not read."""
        with self._lock:
            todo = [part if part.snapshot >= 0 else replace(part, snapshot=_TODO) for part in self._all]
        return [(part.low, part.high, part.snapshot) for part in _joined(todo)]

    @property
    def snapshots(self) -> list[int]:
        """The snapshots in which parts of the table were read, in their order."""
        return sorted({snapshot for _, _, snapshot in self.store() if snapshot >= 0})

    @property
    def is_complete(self) -> bool:
        """Whether all of the table is read."""
        return all(snapshot >= 0 for _, _, snapshot in self.store())


def _joined(ranges: Sequence[Range]) -> list[Range]:
    """Neighbours that were read in one snapshot, or that nobody reads, as one."""
    joined: list[Range] = []
    for part in ranges:
        if joined and joined[-1].snapshot == part.snapshot != _GIVEN:
            joined[-1] = replace(joined[-1], high=part.high)
        else:
            joined.append(part)
    return joined
