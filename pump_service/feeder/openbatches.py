"""The batches of prewrites that are undecided: pumps ask for each of them again and again while a full load runs."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort


class OpenBatches:
    """By their first start_ts; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._firsts: list[int] = []
        self._counts: dict[int, int] = {}

    def add(self, first: int, count: int) -> None:
        """These `count` start_ts, from `first` on."""
        with self._lock:
            if first not in self._counts:
                insort(self._firsts, first)
            self._counts[first] = count

    def remove(self, first: int) -> None:
        """The batch that begins at `first` is decided, if it is here."""
        with self._lock:
            if self._counts.pop(first, None) is not None:
                del self._firsts[bisect_left(self._firsts, first)]

    def has(self, start_ts: int) -> bool:
        """Whether `start_ts` is one of a batch."""
        with self._lock:
            place = bisect_right(self._firsts, start_ts)
            return bool(place) and start_ts < (first := self._firsts[place - 1]) + self._counts[first]
