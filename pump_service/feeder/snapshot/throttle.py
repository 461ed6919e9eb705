"""Limits the rows that a full load reads from its source in a second, by waits between two ranges.

A range is read without a wait, because a server ends a session whose client is slow to take rows. So the limit is an
average over ranges, and `chunk-rows` says how many rows come at once.
"""

from __future__ import annotations

import threading
import time


class Throttle:
    """At most `rows_per_second` rows, on average; 0 = no limit. Thread-safe."""

    def __init__(self, rows_per_second: int) -> None:
        self._rate = rows_per_second
        self._lock = threading.Lock()
        self._free_at = time.monotonic()

    def find_wait_s(self) -> float:
        """Seconds until the next range may be read; 0 = now."""
        with self._lock:
            return max(0.0, self._free_at - time.monotonic()) if self._rate else 0.0

    def add_rows(self, rows: int) -> None:
        """Count rows that were read."""
        if self._rate:
            with self._lock:
                self._free_at = max(self._free_at, time.monotonic()) + rows / self._rate
