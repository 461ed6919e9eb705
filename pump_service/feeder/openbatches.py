"""The batches of prewrites that are undecided: pumps ask for each of them again and again while a full load runs.

A file notes them for the process after this one, which tells the pumps that they are rolled back. It is never synced:
where the machine ends with the process the pumps ask by themselves, some dozen a second.
"""

from __future__ import annotations

import os
import struct
import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from pathlib import Path

_NOTE = struct.Struct(">QQ")  # first start_ts, count
_MOST_NOTES = 4096


class OpenBatches:
    """By their first start_ts; thread-safe. `left`: (first, count) of what a process before this one noted, decided or
    not. Raises OSError."""

    def __init__(self, notes: Path) -> None:
        self._lock = threading.Lock()
        self._notes = os.open(notes, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        data = notes.read_bytes()
        notes_there = list(_NOTE.iter_unpack(data[: len(data) // _NOTE.size * _NOTE.size]))
        self.left = list(dict.fromkeys(notes_there))  # a kept chunk is noted at each start
        self._noted = len(notes_there)
        self._firsts: list[int] = []
        self._counts: dict[int, int] = {}

    def add(self, first: int, count: int) -> None:
        """These `count` start_ts, from `first` on."""
        with self._lock:
            if first not in self._counts:
                insort(self._firsts, first)
            self._counts[first] = count
            os.write(self._notes, _NOTE.pack(first, count))
            self._noted += 1
            if self._noted > _MOST_NOTES + 4 * len(self._counts) and not self.left:
                self._note_anew()

    def forget_left(self) -> None:
        """What a process before this one left is dealt with."""
        with self._lock:
            self.left = []
            self._note_anew()

    def close(self) -> None:
        """Note no more."""
        os.close(self._notes)

    def leave(self, firsts: Iterable[int]) -> int:
        """The batches that begin at `firsts` are nobody's now, as what a process before this one left; how many
        start_ts they have."""
        with self._lock:
            batches = [(first, self._counts[first]) for first in firsts]
            self.left = list(dict.fromkeys([*self.left, *batches]))
        for first, _ in batches:
            self.remove(first)
        return sum(count for _, count in batches)

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

    def _note_anew(self) -> None:
        os.ftruncate(self._notes, 0)
        os.write(self._notes, b"".join(_NOTE.pack(*batch) for batch in self._counts.items()))
        self._noted = len(self._counts)
