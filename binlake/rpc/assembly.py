"""The memory of unfinished request messages, one budget for all connections: who does not fit is refused."""

from __future__ import annotations

from binlake.rpc.call import Call


class Assembly:
    """At most `limit` bytes together; one message alone may be larger. Belongs to the loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: dict[Call, int] = {}
        self.used = 0

    def reserve(self, call: Call, size: int) -> bool:
        """Room for `size` bytes of `call`; False when there is none."""
        if self.used and self.used + size > self._limit:
            return False
        self._held[call] = size
        self.used += size
        return True

    def release(self, call: Call) -> None:
        """Give back what `call` held, if anything."""
        self.used -= self._held.pop(call, 0)
