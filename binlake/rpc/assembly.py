"""Bounds the memory of unfinished requests: one budget for all connections, counted as requests grow.

Large messages cannot block small ones: an eighth is reserved for messages up to 1 MiB. Slow uploads cannot block others
either: if there is no room, a slow one is ended; only if none is slow, the request that needs more memory is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

LARGE = 1 << 20
"""Bytes above which a message counts as large."""
_TRIAL_S = 5.0  # younger requests never count as slow
_SLOW_BYTES_PER_S = 1 << 20
_LOOK_S = 0.1  # pause after a search that found no slow request


class Holder(Protocol):
    """An owner of memory."""

    def release_memory(self) -> None:
        """Release the memory, which others need, and notify the peer."""


class _HolderUse:
    """The bytes that one holder has, and had one and two checks ago."""

    __slots__ = ("after", "before", "size")

    def __init__(self, now: float) -> None:
        self.size = 0
        self.before = self.after = (now, 0)

    def is_slow(self, now: float) -> bool:
        since, size = self.before
        passed = now - since
        slow = passed > _TRIAL_S and self.size - size < _SLOW_BYTES_PER_S * passed
        self.look(now)
        return slow

    def look(self, now: float) -> None:
        if now - self.after[0] > _TRIAL_S:
            self.before, self.after = self.after, (now, self.size)


class Share:
    """At most `limit` bytes in total; one holder may have more while the others have almost nothing. Used on the
    loop."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._held: dict[Holder, _HolderUse] = {}
        self._looked_at = float("-inf")
        self.used = 0

    def grow(self, holder: Holder, size: int) -> bool:
        """Set the bytes of `holder` to `size`; False if there is no room, and then nothing changes."""
        now = self._clock()
        use = self._held.get(holder)
        if use is None:
            use = _HolderUse(now)
        while not self._fits(use.size, size):
            if not self._evict_slowest(holder, now):
                return False
        self.used += size - use.size
        use.look(now)
        use.size = size
        self._held[holder] = use
        return True

    def release(self, holder: Holder) -> None:
        """Release all bytes of `holder`, if any."""
        use = self._held.pop(holder, None)
        if use is not None:
            self.used -= use.size

    def _fits(self, had: int, size: int) -> bool:
        others = self.used - had
        return others <= self._limit >> 3 or others + size <= self._limit

    def _evict_slowest(self, holder: Holder, now: float) -> bool:
        if now - self._looked_at < _LOOK_S:
            return False
        for candidate, use in self._held.items():
            if candidate is not holder and use.is_slow(now):
                candidate.release_memory()
                self.release(candidate)
                return True
        self._looked_at = now
        return False


class Assembly:
    """The two shares of `limit` bytes."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.small = Share(limit >> 3, clock)
        self.large = Share(limit - (limit >> 3), clock)

    @property
    def used(self) -> int:
        """Bytes of all holders."""
        return self.small.used + self.large.used
