"""The memory of unfinished requests, counted as they grow, one budget for all connections: who does not fit is refused.

Large messages cannot keep out small ones: an eighth is for messages up to 1 MiB.
"""

from __future__ import annotations

LARGE = 1 << 20
"""Bytes: a longer message is a large one."""


class Share:
    """At most `limit` bytes together; one holder may have more while the others have next to nothing. Belongs to the
    loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: dict[object, int] = {}
        self.used = 0

    def grow(self, holder: object, size: int) -> bool:
        """`holder` has `size` bytes now; False when there is no room, then it keeps what it had."""
        had = self._held.get(holder, 0)
        others = self.used - had
        if others > self._limit >> 3 and others + size > self._limit:
            return False
        self._held[holder] = size
        self.used = others + size
        return True

    def release(self, holder: object) -> None:
        """Give back what `holder` had, if anything."""
        self.used -= self._held.pop(holder, 0)


class Assembly:
    """The two shares of `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self.small = Share(limit >> 3)
        self.large = Share(limit - (limit >> 3))

    @property
    def used(self) -> int:
        """Bytes of all."""
        return self.small.used + self.large.used
