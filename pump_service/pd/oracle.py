"""Timestamps that never repeat and never fall, across restarts and clock steps (MISSION S0-16, hazards R-09).

A bound is saved and fsynced ahead of use; a restart begins above it. *Led* mode (DESIGN 5, replay): the clock stands
just below a bound that the replayer moves, and a request waits while there is no room below it. Timestamps of the led
clock have a logical part of at least `LED_LOGICAL`, in the millisecond before the bound: a recorded cluster's own
timestamps have small logical parts, so the two never meet. Once released, the clock runs on at real pace from there.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from binlake import tso
from binlake.errors import Permanent

AHEAD_MS = 3000
LED_LOGICAL = 1 << 17


@dataclass
class _Saved:
    """What survives: nothing at or above `bound_ms` was given; `held` with `lead_ts`; `offset_ms` to the real clock."""

    bound_ms: int
    held: bool = False
    lead_ts: int = 0
    offset_ms: int = 0


class Oracle:
    """Gives timestamps; thread-safe. `now_ms` is the real clock in Unix milliseconds."""

    def __init__(self, folder: Path, *, led_from: int | None = None, now_ms: Callable[[], int] | None = None) -> None:
        self._path = folder / "tso.json"
        self._now_ms = now_ms or (lambda: time.time_ns() // 1_000_000)
        self._moved = threading.Condition()
        self._saved = self._load(led_from)
        # Nothing given before the restart is at or above the saved bound.
        self._last = tso.compose(self._saved.bound_ms, 0) - 1
        self._stopped = False

    def take(self, count: int, wait_s: float | None = None) -> int:
        """The last ts of a fresh batch of `count`. Waits while a led clock has no room; TimeoutError after `wait_s`."""
        if not 1 <= count <= tso.MAX_LOGICAL >> 1:
            raise ValueError(f"cannot give {count} timestamps at once")
        with self._moved:
            if not self._moved.wait_for(lambda: self._stopped or self._room(count), wait_s) or self._stopped:
                raise TimeoutError("the led clock has no room below its bound")
            self._last = self._next(count)
            self._ahead(tso.physical(self._last))
            return self._last

    def lead(self, bound: int) -> int:
        """Hold the clock below `bound`, which never falls; the last ts given."""
        with self._moved:
            if bound <= self._last:
                raise Permanent(
                    f"timestamps up to {self._last} are given already: the clock cannot be led below {bound}",
                    hint="a capture is replayed into a fresh placement driver (`binlake pd --led`)",
                )
            self._saved.held, self._saved.lead_ts = True, max(bound, self._saved.lead_ts)
            self._save()
            self._moved.notify_all()
            return self._last

    def release(self) -> int:
        """Let the clock run on at real pace from the bound; the last ts given."""
        with self._moved:
            if self._saved.held:
                start = max(tso.physical(self._saved.lead_ts), tso.physical(self._last)) + 1
                self._saved.held, self._saved.offset_ms = False, start - self._now_ms()
                self._save()
                self._moved.notify_all()
            return self._last

    def stop(self) -> None:
        """Wake every waiter; they get TimeoutError."""
        with self._moved:
            self._stopped = True
            self._moved.notify_all()

    def _room(self, count: int) -> bool:
        return not self._saved.held or self._next(count) < self._saved.lead_ts

    def _next(self, count: int) -> int:
        if self._saved.held:
            just_below = tso.compose(max(tso.physical(self._saved.lead_ts) - 1, 0), LED_LOGICAL)
            return max(self._last + count, just_below + count - 1)
        floor = tso.compose(self._now_ms() + self._saved.offset_ms)
        return self._in_one_ms(max(self._last + 1, floor), count)

    @staticmethod
    def _in_one_ms(first: int, count: int) -> int:
        # A batch has one physical part: the whole of it moves to the next millisecond when it does not fit.
        if tso.logical(first) + count - 1 > tso.MAX_LOGICAL:
            first = tso.compose(tso.physical(first) + 1)
        return first + count - 1

    def _ahead(self, physical_ms: int) -> None:
        if physical_ms >= self._saved.bound_ms:
            self._saved.bound_ms = physical_ms + (1 if self._saved.held else AHEAD_MS)
            self._save()

    def _load(self, led_from: int | None) -> _Saved:
        if self._path.exists():
            return _Saved(**json.loads(self._path.read_text(encoding="utf-8")))
        if led_from is None:
            saved = _Saved(bound_ms=0)
        else:
            saved = _Saved(bound_ms=tso.physical(led_from), held=True, lead_ts=tso.compose(tso.physical(led_from) + 2))
        self._saved = saved
        self._save()
        return saved

    def _save(self) -> None:
        temporary = self._path.with_suffix(".tmp")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(asdict(self._saved), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
