"""Timestamps that never repeat and never decrease, across restarts and clock steps (MISSION S0-16, hazards R-09).

A bound is saved and fsynced before timestamps up to it are used; a restart begins above it.

*Led* mode (DESIGN 5, capture replay; the protocol of `proto/binlake/wire/clock.proto`):

1. `binlake pd --led --start-ts N` starts held, in the millisecond after N. That and every later step is durable before
   it is answered, so a restart neither jumps to the wall clock nor repeats a timestamp.
2. `Lead(ts, hold=true)` moves the bound: every timestamp given from now on is below `ts` and in the millisecond
   before it, so that a fake binlog moves a watermark up close to the bound. Bounds do not decrease: a lower one changes
   nothing. A bound at or below a timestamp already given is refused (this driver is not fresh).
3. A request that finds no room below the bound waits until the bound moves; it does not fail.
4. `Lead(hold=false)` releases: the clock advances in real time from the bound, by a saved offset to the real clock.

Timestamps of the held clock have a logical part of at least `LED_LOGICAL`: a recorded cluster's own timestamps have
small ones, so the two never collide.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import google_crc32c

from binlake import tso
from binlake.common.localfiles import replace_file
from binlake.errors import ConfigError, Permanent

AHEAD_MS = 3000
"""How far the saved bound is ahead of a free clock: PD's own window."""
AHEAD_HELD = 4096
"""The same for a held clock, as a number of timestamps: all below one bound share a millisecond."""
LED_LOGICAL = 1 << 17
MAX_COUNT = tso.MAX_LOGICAL >> 1


@dataclass(frozen=True)
class _Saved:
    """The saved state: no ts above `bound_ts` was given; `held` below `lead_ts`; `offset_ms` to the real clock."""

    bound_ts: int
    held: bool = False
    lead_ts: int = 0
    offset_ms: int = 0


class Oracle:
    """Gives timestamps; thread-safe. `now_ms` is the real clock in Unix milliseconds.

    A bound takes effect only once it is saved: a call that needs a new one raises OSError as long as the disk fails.
    `failure`: why the last bound was not saved; empty = it was.

    `led_from`: at the very first start, start held after this ts. Raises ConfigError for an unreadable file.
    """

    def __init__(self, folder: Path, *, led_from: int | None = None, now_ms: Callable[[], int] | None = None) -> None:
        self._path = folder / "tso.json"
        self._now_ms = now_ms or (lambda: time.time_ns() // 1_000_000)
        self._moved = threading.Condition()
        self.failure = ""
        self._saved = self._load()
        if self._saved.bound_ts < 0:
            self._begin(led_from)
        self._last = self._saved.bound_ts
        self._stopped = False

    def take(self, count: int, wait_s: float | None = None) -> int:
        """The last ts of a fresh batch of `count` (1 to MAX_COUNT).

        Waits while a held clock has no room. Raises ValueError, and TimeoutError after `wait_s` or `stop`.
        """
        if not 1 <= count <= MAX_COUNT:
            raise ValueError(f"cannot give {count} timestamps at once: 1 to {MAX_COUNT}")
        with self._moved:
            if not self._moved.wait_for(lambda: self._stopped or self._has_room(count), wait_s) or self._stopped:
                raise TimeoutError("the clock set by the capture is at its bound and has no timestamp left")
            last = self._compute_next_ts(count)
            self._save_ahead(last)
            self._last = last
            return last

    def lead(self, bound: int) -> int:
        """Hold the clock below `bound`; return the last ts given. Raises Permanent when that is at or above `bound`."""
        with self._moved:
            if bound <= self._last:
                raise Permanent(
                    f"timestamps up to {self._last} were already given out: the clock cannot be set below {bound}",
                    hint="a capture is replayed into a fresh placement driver (`binlake pd --led`)",
                )
            if not self._saved.held or bound > self._saved.lead_ts:
                self._save(replace(self._saved, held=True, lead_ts=max(bound, self._saved.lead_ts)))
                self._moved.notify_all()
            return self._last

    def release(self) -> int:
        """Let the clock advance in real time from the bound; return the last ts given."""
        with self._moved:
            if self._saved.held:
                start = max(tso.extract_physical(self._saved.lead_ts), tso.extract_physical(self._last)) + 1
                self._save(replace(self._saved, held=False, offset_ms=start - self._now_ms()))
                self._moved.notify_all()
            return self._last

    @property
    def held(self) -> bool:
        """Whether the clock is led, by this process or an earlier one."""
        return self._saved.held

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped

    def stop(self) -> None:
        """Wake all waiting threads; they get TimeoutError."""
        with self._moved:
            self._stopped = True
            self._moved.notify_all()

    def _has_room(self, count: int) -> bool:
        if not self._saved.held:
            return True
        last = self._compute_next_ts(count)
        return last <= tso.compose(self._compute_held_ms(), tso.MAX_LOGICAL) and last < self._saved.lead_ts

    def _compute_next_ts(self, count: int) -> int:
        if self._saved.held:
            return max(self._last + 1, tso.compose(self._compute_held_ms(), LED_LOGICAL)) + count - 1
        floor = tso.compose(self._now_ms() + self._saved.offset_ms)
        return _align_to_ms(max(self._last + 1, floor), count)

    def _compute_held_ms(self) -> int:
        return max(tso.extract_physical(self._saved.lead_ts) - 1, 0)

    def _save_ahead(self, last: int) -> None:
        if last > self._saved.bound_ts:
            # A held clock's bound stays below the lead; otherwise a restart would assume that the lead was passed.
            held = min(
                last + AHEAD_HELD, tso.compose(self._compute_held_ms(), tso.MAX_LOGICAL), self._saved.lead_ts - 1
            )
            bound = held if self._saved.held else tso.compose(tso.extract_physical(last) + AHEAD_MS)
            self._save(replace(self._saved, bound_ts=bound))

    def _load(self) -> _Saved:
        if not self._path.exists():
            return _Saved(bound_ts=-1)
        try:
            return _read_saved(json.loads(self._path.read_bytes()))
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"the saved timestamp bound cannot be read: {error}",
                where={"file": self._path},
                hint="restore the data directory, or start with an empty one",
            ) from None

    def _begin(self, led_from: int | None) -> None:
        """The first start with this data directory."""
        if led_from is None:
            self._save(_Saved(bound_ts=0))
        else:
            self._save(_Saved(bound_ts=led_from, held=True, lead_ts=tso.compose(tso.extract_physical(led_from) + 2)))

    def _save(self, saved: _Saved) -> None:
        """Save `saved` durably, then use it."""
        values = asdict(saved)
        try:
            replace_file(self._path, [json.dumps({**values, "crc": _compute_crc(values)}).encode()])
        except OSError as error:
            self.failure = f"the bound of the timestamps cannot be saved: {error}"
            raise
        self._saved, self.failure = saved, ""


def _read_saved(values: dict[str, Any]) -> _Saved:
    """Read the saved state; a file of an earlier version has no crc. Raises ValueError for damage."""
    crc = values.pop("crc", None)
    if crc is not None and crc != _compute_crc(values):
        raise ValueError("its crc does not match")
    return _Saved(**values)


def _compute_crc(values: dict[str, Any]) -> int:
    return int(google_crc32c.value(json.dumps(values, sort_keys=True).encode()))


def _align_to_ms(first: int, count: int) -> int:
    # All timestamps of a batch share one physical part: if the batch does not fit, it moves to the next millisecond.
    if tso.extract_logical(first) + count - 1 > tso.MAX_LOGICAL:
        first = tso.compose(tso.extract_physical(first) + 1)
    return first + count - 1
