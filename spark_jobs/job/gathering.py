"""Lets the mirrors of a run that is behind take several pieces at once: see `binlake.spark_jobs.mirror.gathered`.

Rule: pieces are held only while another one follows, so mirrors are late only in a run that is behind, and by no more
than a bound of bytes and of seconds. If the process dies, the next run reads the pieces from the lake.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.passed import MergedWindow

MOST_BYTES = 64 << 20
"""Arrow bytes of net changes that are held: a MERGE needs a few times that."""
MOST_S = 30.0
"""Seconds for which a piece is held."""

Ready = list[tuple[Bounds, Any]]
"""Windows that the mirrors take now, in order, with what was derived of each."""


class Gathering:
    """The pieces of one run that its mirrors have not taken yet. Used by one thread at a time."""

    def __init__(self, ctx: StageContext, clock: Callable[[], float] = time.monotonic) -> None:
        self._ctx = ctx
        self._clock = clock
        self._held: tuple[Any, float] | None = None

    def add(self, merged: MergedWindow, derived: Any, *, is_followed: bool) -> Ready:
        """What to apply now that the piece `merged` has come, of which compact has `derived` net changes (or None).

        `is_followed`: another piece of this run comes after it.
        """
        own = self._gather(derived) if is_followed or self._held is not None else None
        if own is None:
            return [*self.take(), (merged.bounds, derived or merged)]
        now = self._clock()
        held, since = self._held or (None, now)
        joined = own if held is None else held.join(own)
        # The next one is about as large as this one.
        if is_followed and joined.bytes + own.bytes <= MOST_BYTES and now - since < MOST_S:
            self._held = joined, since
            return []
        self._held = None
        return [(joined.bounds, derived if held is None else joined)]

    def take(self) -> Ready:
        """What is held, which is then no longer held."""
        held, self._held = self._held, None
        return [] if held is None else [(held[0].bounds, held[0])]

    def _gather(self, derived: Any) -> Any:
        # Imported late: the stages import this package.
        return importlib.import_module("binlake.spark_jobs.mirror.gathered").gather(self._ctx, derived)
