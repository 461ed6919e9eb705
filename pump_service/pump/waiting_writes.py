"""Writes that wait for room in the storage's memory: in order, bounded in bytes and time, while their caller waits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from binlake.errors import BinlakeError, Transient
from binlake.rpc import Call, Status


@dataclass(frozen=True, slots=True)
class Write:
    """A call that found no room at `since`, in seconds of the caller's clock; `size`: bytes of its binlogs.

    `submit()`: hands it to the storage or answers it; False: there is still no room. `refuse(error)`: answers it.
    """

    size: int
    since: float
    submit: Callable[[], bool]
    refuse: Callable[[BinlakeError], None]


class WaitingWrites:
    """Used on the loop. `limit`: bytes of all writes together; a single write may be larger."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._writes: OrderedDict[Call, Write] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._writes)

    def add(self, call: Call, write: Write) -> bool:
        """Let `call` wait; False when it was refused because too many bytes wait already."""
        if self._writes and self.bytes + write.size > self._limit:
            call.fail(Status.UNAVAILABLE, f"the pump is behind: {self.bytes} bytes wait to be stored")
            return False
        self._writes[call] = write
        self.bytes += write.size
        call.on_end = lambda: self._on_left(call)
        return True

    def retry(self) -> None:
        """Submit as many waiting writes as fit now, in the order they came."""
        while self._writes:
            call = next(iter(self._writes))
            write = self._writes[call]
            if not write.submit():
                return
            self._forget(call)

    def expire(self, before: float) -> None:
        """Refuse the writes that came before `before`."""
        while self._writes:
            call, write = next(iter(self._writes.items()))
            if write.since >= before:
                return
            self._forget(call)
            write.refuse(Transient("the pump is behind: too many bytes wait to be stored", where={"bytes": self.bytes}))

    def _forget(self, call: Call) -> None:
        write = self._writes.pop(call, None)
        if write is not None:
            self.bytes -= write.size
            call.on_end = None

    def _on_left(self, call: Call) -> None:
        # Its caller has given up, or the server is stopping: a write that nobody waits for is not stored.
        self._forget(call)
        call.fail(Status.CANCELLED, "its caller no longer waits")
