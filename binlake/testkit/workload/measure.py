"""Measures a run: latencies in buckets of 5 %, and the pace that keeps it at its rate."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter

_STEP = math.log(1.05)


class Latencies:
    """Seconds of many calls, in little memory; thread-safe."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self._lock = threading.Lock()

    def add(self, seconds: float) -> None:
        """Record a call that took `seconds`."""
        bucket = math.floor(math.log(max(seconds, 1e-6)) / _STEP)
        with self._lock:
            self._buckets[bucket] += 1

    def compute_quantile(self, share: float) -> float:
        """The seconds that `share` (0 to 1) of the calls did not exceed, accurate to 5 %; 0 without calls."""
        with self._lock:
            buckets = sorted(self._buckets.items())
        left = share * sum(count for _, count in buckets)
        for bucket, count in buckets:
            left -= count
            if left <= 0:
                return math.exp((bucket + 1) * _STEP)
        return 0.0


class CallPace:
    """Lets `rate` callers a second pass, over all threads; 0 = without a limit."""

    def __init__(self, rate: float) -> None:
        self._gap = 1 / rate if rate else 0.0
        self._next = 0.0
        self._lock = threading.Lock()

    def wait(self, stopped: threading.Event) -> None:
        """Return when it is the caller's turn, or at once when `stopped` is set."""
        if not self._gap:
            return
        with self._lock:
            turn = max(self._next, time.monotonic())
            self._next = turn + self._gap
        stopped.wait(max(0.0, turn - time.monotonic()))
