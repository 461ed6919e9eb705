"""The clock that measures how long ago something was: nobody sets it, and it goes on while the machine sleeps."""

from __future__ import annotations

import time


def read_clock_s() -> float:
    """Seconds since the machine started; to be compared only with other readings on it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
