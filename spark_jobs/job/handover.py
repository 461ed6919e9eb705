"""Passes what a stage has derived to the next one in the same process, so that it need not read the lake.

Rule: a stage writes to the lake before it puts anything here, and a stage that finds nothing here reads the lake, so
both ways give the same result. Results derived ahead (`spark_jobs.job.ahead`) are stored here too, with the target
position that they assume.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_jobs.job.results import Bounds

if TYPE_CHECKING:
    from binlake.target import Position


_MOST_WINDOWS = 3
"""Windows of a stage whose results are held: one is applied, one is derived ahead, one has landed."""


@dataclass(frozen=True)
class _Ahead:
    bounds: Bounds
    position: Position
    derived: Any


class Handover:
    """What stages derived, by stage and window. Thread-safe: sinks run their stages in parallel."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._derived: dict[tuple[str, Bounds], Any] = {}
        self._ahead: dict[str, _Ahead] = {}

    def put(self, stage: str, bounds: Bounds, derived: object) -> None:
        """Store what `stage` derived of the window `bounds`, in place of what it derived before."""
        with self._lock:
            self._derived[stage, bounds] = derived
            own = [place for place in self._derived if place[0] == stage]
            for place in sorted(own, key=lambda place: place[1].hi)[:-_MOST_WINDOWS]:
                del self._derived[place]

    def find(self, stage: str, bounds: Bounds) -> Any:
        """What `stage` derived of the window in this process; None if it did not."""
        with self._lock:
            return self._derived.get((stage, bounds))

    def put_ahead(self, stage: str, bounds: Bounds, position: Position, derived: object) -> None:
        """Store what `stage` derived of `bounds` for a target that will be at `position`."""
        with self._lock:
            self._ahead[stage] = _Ahead(bounds, position, derived)

    def take_ahead(self, stage: str, bounds: Bounds, position: Position) -> Any:
        """What `stage` derived ahead for `bounds`, if the target is at the assumed position; else None.

        If the target is elsewhere, everything derived ahead by any stage is discarded.
        """
        with self._lock:
            ahead = self._ahead.pop(stage, None)
            if ahead is None or (ahead.bounds, ahead.position) != (bounds, position):
                self._ahead.clear()
                return None
            return ahead.derived

    def drop(self, hi: int) -> None:
        """Discard everything of windows that end at or below `hi`: they are finished."""
        with self._lock:
            self._derived = {place: one for place, one in self._derived.items() if place[1].hi > hi}
