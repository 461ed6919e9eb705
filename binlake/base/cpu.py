"""The CPU of this process divided among what runs in it side by side, such as the stages of a window.

Threads of Arrow and delta-rs work for every stage and say for which one nowhere. So between two moments at which a
share begins or ends, all open shares get equal parts: their sum is exact, and so is a share that runs alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def read_cpu_s() -> float:
    """The CPU seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class CpuShare:
    """One share of a meter. For one thread, except that the meter counts in it."""

    def __init__(self, meter: CpuMeter) -> None:
        self._meter = meter
        self.divided_s = 0.0
        self._more_s = 0.0
        self._taken_s = 0.0

    def take_s(self) -> float:
        """The CPU seconds of this share since the last call."""
        self._meter.divide()
        before, self._taken_s = self._taken_s, self.divided_s + self._more_s
        return self._taken_s - before

    def add(self, seconds: float) -> None:
        """Count CPU seconds that another process spent for this share."""
        self._more_s += seconds


class CpuMeter:
    """Divides what the clock `read_s` (CPU seconds) counts among the shares that are open."""

    def __init__(self, read_s: Callable[[], float] = read_cpu_s) -> None:
        self._read_s = read_s
        self._lock = threading.Lock()
        self._open: list[CpuShare] = []
        self._divided_s = 0.0

    @contextmanager
    def begin(self) -> Iterator[CpuShare]:
        """A share that ends with the block."""
        share = CpuShare(self)
        self.divide()
        with self._lock:
            self._open.append(share)
        try:
            yield share
        finally:
            self.divide()
            with self._lock:
                self._open.remove(share)

    def divide(self) -> None:
        """Divide what was spent since the last time."""
        with self._lock:
            now = self._read_s()
            for share in self._open:
                share.divided_s += (now - self._divided_s) / len(self._open)
            self._divided_s = now


CPU = CpuMeter()
"""The meter of this process."""
