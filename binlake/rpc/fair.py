"""Chooses what to drop if all slots are in use: the newest of the address with most slots (docs/understand/rpc.md).

An address that floods the server only blocks itself; a caller that has had its slot for long keeps it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

Item = TypeVar("Item")
Slot = TypeVar("Slot", bound=Hashable)


def choose_slot_to_free(slots: Mapping[Slot, str], newcomer: str) -> Slot | None:
    """The slot to free for `newcomer`, of `slots` (oldest first, with their addresses); None = drop the newcomer."""
    address, most = Counter(slots.values()).most_common(1)[0]
    if address == newcomer or Counter(slots.values())[newcomer] >= most:
        return None
    return next(place for place in reversed(list(slots)) if slots[place] == address)


class FairQueue(Generic[Item]):
    """Waiting items, at most `limit`, in one line for each (address, kind); the lines are served in turn."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lines: dict[tuple[str, str], deque[Item]] = {}

    def put(self, address: str, kind: str, item: Item) -> Item | None:
        """Add an item; returns the item that is dropped for it, which may be the item itself."""
        loser = None
        if sum(map(len, self._lines.values())) >= self._limit:
            line = self._find_longest(address)
            if line == (address, kind) or line is None:
                return item
            loser = self._lines[line].pop()
            self._remove_if_empty(line)
        self._lines.setdefault((address, kind), deque()).append(item)
        return loser

    def take(self) -> Item | None:
        """The next item; None if none is waiting."""
        for line in self._lines:
            waiting = self._lines.pop(line)
            item = waiting.popleft()
            if waiting:
                self._lines[line] = waiting  # after all other lines
            return item
        return None

    def _find_longest(self, newcomer: str) -> tuple[str, str] | None:
        """The longest line of the address with most items; None if that is the newcomer and its lines have one each."""
        counts: Counter[str] = Counter()
        for (address, _), waiting in self._lines.items():
            counts[address] += len(waiting)
        greatest, most = counts.most_common(1)[0]
        if counts[newcomer] >= most:
            greatest = newcomer
        line = max(
            (line_key for line_key in self._lines if line_key[0] == greatest),
            key=lambda line_key: len(self._lines[line_key]),
        )
        return None if greatest == newcomer and len(self._lines[line]) == 1 else line

    def _remove_if_empty(self, line: tuple[str, str]) -> None:
        if not self._lines[line]:
            del self._lines[line]
