"""The progress of a backfill: an event in the table `window` per finished window (MISSION U-23, U-24).

A backfill is identified by its name. An interrupted one continues after its last window; a finished one starts again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from binlake.base.terminal import Tell, tell_nobody
from binlake.errors import ConfigError
from binlake.lake.windowlog import WindowEvent, WindowLog

STAGE = "backfill"
_FINISHED = "finished"

Bounds = tuple[int, int]


class BackfillProgress:
    """The backfill `name` over (lo, hi]; `tell` gets how far it is. The caller must hold the lake's lock `backfill`."""

    def __init__(self, windows: WindowLog, name: str, lo: int, hi: int, tell: Tell = tell_nobody) -> None:
        self._windows, self.name, self._lo, self._hi = windows, name, lo, hi
        self._tell, self._done, self._all = tell, 0, 0

    def list_remaining(self) -> list[Bounds]:
        """The landed windows that overlap the range, clipped to it, except those that are done.

        Raises ConfigError if the range is not within what has landed.
        """
        landed = self._windows.list_landed((self._lo, self._hi)) if self._lo < self._hi else []
        if not landed or landed[0][0] > self._lo or landed[-1][1] < self._hi:
            known = self._windows.find_landed_range()
            raise ConfigError(
                "the range is not within what has landed",
                where={"from": self._lo, "to": self._hi, "landed": f"{known[0]}-{known[1]}" if known else "nothing"},
                hint="a range is from (exclusive) to (inclusive); wait for the window that ends at or after it",
            )
        cut = [(max(lo, self._lo), min(hi, self._hi)) for lo, hi in landed]
        done = self._read_done()
        remaining = [bounds for bounds in cut if bounds not in done]
        self._done, self._all = len(cut) - len(remaining), len(cut)
        self._tell_done()
        return remaining

    def record_done(self, bounds: Bounds, rows: int, seconds: float, detail: Mapping[str, Any]) -> None:
        """Record that one window is done."""
        self._windows.record(WindowEvent(STAGE, *bounds, "done", rows, seconds, self.name, detail=detail))
        self._done += 1
        self._tell_done()

    def finish(self, detail: Mapping[str, Any]) -> None:
        """Record that all windows are done."""
        self._windows.record(WindowEvent(STAGE, self._lo, self._hi, _FINISHED, run_id=self.name, detail=detail))

    def _tell_done(self) -> None:
        self._tell(f"{self._done} of {self._all} windows")

    def _read_done(self) -> set[Bounds]:
        done: set[Bounds] = set()
        for event in self._windows.read_events(run_id=self.name, stage=STAGE):
            if event["state"] == _FINISHED:
                done.clear()
            else:
                done.add((event["lo"], event["hi"]))
        return done
