"""Bounds what a run holds at a time by bytes, not by pieces: a piece lands only when the pieces before it leave room.

A piece counts from before it lands until its sinks have ended, with its bytes of binlogs: the memory of a piece is a
few times that. Of a huge transaction the others wait for the end.
"""

from __future__ import annotations

import threading
from types import TracebackType

PIECES = 2
"""Pieces of the size at which land ends them that a run holds: one is applied while the next is derived."""


class FlightEnded(Exception):
    """The run ends, so that no piece lands any more."""


class PiecesInFlight:
    """The pieces of one run, by the commit_ts at which they begin; for all its threads. Its context is the run.

    `piece_bytes`: the bytes of binlogs at which land ends a piece.
    """

    def __init__(self, piece_bytes: int) -> None:
        self._most = PIECES * piece_bytes
        self._sizes: dict[int, int] = {}
        self._changed = threading.Condition()
        self._is_open = True

    def __enter__(self) -> PiecesInFlight:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._is_open = False
            self._changed.notify_all()

    def reserve(self, lo: int, size: int) -> None:
        """Wait until there is room for `size` bytes of the piece at `lo`, or no other piece. Raises FlightEnded."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_open or self._has_room(size))
            if not self._is_open:
                raise FlightEnded
            self._sizes[lo] = size

    def correct(self, lo: int, size: int) -> None:
        """The piece at `lo` has `size` bytes. For the thread that reserves, so that nobody waits for it."""
        with self._changed:
            self._sizes[lo] = size

    def release(self, lo: int) -> None:
        """The piece at `lo` is no longer held."""
        with self._changed:
            self._sizes.pop(lo, None)
            self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        return not self._sizes or sum(self._sizes.values()) + size <= self._most
