"""Compares clocks: lag is measured with this machine's, commit_ts come from PD's, TIMESTAMP defaults from servers'."""

from __future__ import annotations

import time
from collections.abc import Callable

from binlake.health.doctor.model import DoctorLine, judge

_NOTHING_S, _SMALL_S, _GREAT_S = 0.1, 1.0, 60.0


def measure_skew_s(ask: Callable[[], float]) -> float:
    """By how many seconds the clock that `ask` reads (Unix seconds) is ahead of ours, as far as the answer shows.

    The answer is read somewhere between the request and its arrival, so a difference within that time is none.
    """
    before = time.time()
    there = ask()
    after = time.time()
    return max(there - after, 0.0) or min(there - before, 0.0)


def check_skew(check: str, skew_s: float, where: str) -> DoctorLine:
    """The finding for the clock of `where`."""
    way = "ahead of" if skew_s > 0 else "behind"
    found = f"{where} is {abs(skew_s):.1f} s {way} this machine"
    if abs(skew_s) < _NOTHING_S:
        found = f"{where} and this machine agree"
    remedy = f"synchronize both (chrony, NTP): lags are wrong by {abs(skew_s):.0f} s"
    return judge(check, abs(skew_s) < _SMALL_S, found, remedy, "warning" if abs(skew_s) < _GREAT_S else "failure")
