"""Chooses who yields when all places are taken: the newest of the address that has most (docs/understand/rpc.md).

An address that floods the server shuts out only itself; a caller that has had its place for long keeps it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

Item = TypeVar("Item")
Place = TypeVar("Place", bound=Hashable)


def place_to_free(places: Mapping[Place, str], newcomer: str) -> Place | None:
    """Of `places` (oldest first, with their addresses) the one that makes room for `newcomer`; None = the newcomer."""
    address, most = Counter(places.values()).most_common(1)[0]
    if address == newcomer or Counter(places.values())[newcomer] >= most:
        return None
    return next(place for place in reversed(list(places)) if places[place] == address)


class FairQueue(Generic[Item]):
    """Waiting items, in a line for each (address, kind); the lines are served in turn. At most `limit` wait."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lines: dict[tuple[str, str], deque[Item]] = {}

    def put(self, address: str, kind: str, item: Item) -> Item | None:
        """Add an item; the item that is dropped for it, maybe itself."""
        loser = None
        if sum(map(len, self._lines.values())) >= self._limit:
            line = self._longest(address)
            if line == (address, kind) or line is None:
                return item
            loser = self._lines[line].pop()
            self._tidy(line)
        self._lines.setdefault((address, kind), deque()).append(item)
        return loser

    def take(self) -> Item | None:
        """The next one; None when nothing waits."""
        for line in self._lines:
            waiting = self._lines.pop(line)
            item = waiting.popleft()
            if waiting:
                self._lines[line] = waiting  # behind all others
            return item
        return None

    def _longest(self, newcomer: str) -> tuple[str, str] | None:
        """The longest line of the address that has the most; None: that is the newcomer, and it has no kind twice."""
        held: Counter[str] = Counter()
        for (address, _), waiting in self._lines.items():
            held[address] += len(waiting)
        greatest, most = held.most_common(1)[0]
        if held[newcomer] >= most:
            greatest = newcomer
        line = max((one for one in self._lines if one[0] == greatest), key=lambda one: len(self._lines[one]))
        return None if greatest == newcomer and len(self._lines[line]) == 1 else line

    def _tidy(self, line: tuple[str, str]) -> None:
        if not self._lines[line]:
            del self._lines[line]
