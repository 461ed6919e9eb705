"""A rate-limited log for events that peers can trigger at will: a few lines per minute and event, with the number
of omitted ones."""

from __future__ import annotations

import threading
import time
from typing import Any

import structlog

log = structlog.get_logger()

_LINES = 10
_PERIOD_S = 60.0


class SparingLog:
    """Writes at most 10 lines of an event per minute; the first line of the next minute says how many were omitted.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: dict[str, tuple[float, int]] = {}  # start of the minute, requested lines

    def warning(self, event: str, **keys: Any) -> None:
        """A line of level warning."""
        self._write("warning", event, keys)

    def error(self, event: str, **keys: Any) -> None:
        """A line of level error."""
        self._write("error", event, keys)

    def exception(self, event: str, **keys: Any) -> None:
        """A line of level error with the current exception."""
        self._write("exception", event, keys)

    def _write(self, level: str, event: str, keys: dict[str, Any]) -> None:
        left_out = self._count_omitted(event, time.monotonic())
        if left_out is not None:
            getattr(log, level)(event, **keys, **({"left_out": left_out} if left_out else {}))

    def _count_omitted(self, event: str, now: float) -> int | None:
        """How many lines were omitted before this one; None if this one is to be omitted too."""
        with self._lock:
            since, lines = self._events.get(event, (now, 0))
            if now - since > _PERIOD_S:
                self._events[event] = (now, 1)
                return max(0, lines - _LINES)
            self._events[event] = (since, lines + 1)
            return 0 if lines < _LINES else None
