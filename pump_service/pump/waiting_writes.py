"""Writes that wait for room in the storage's memory: in order, bounded in bytes and time, while their caller waits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from binlake.errors import BinlakeError, Transient
from binlake.rpc import Call, Status


@dataclass(frozen=True, slots=True)
class Write:
    """A WriteBinlog that found no room at `since`, seconds of the caller's clock."""

    cluster_id: int
    payload: bytes
    since: float


Submit = Callable[[Call, int, bytes, float], bool]
"""`(call, cluster_id, payload, since)`: hands a write to the storage or answers it; False: there is still no room."""


class WaitingWrites:
    """Used on the loop; `refuse(call, error, since)` answers a caller that waited too long.

    `limit`: bytes of all payloads together, one alone may be larger.
    """

    def __init__(self, limit: int, submit: Submit, refuse: Callable[[Call, BinlakeError, float], None]) -> None:
        self._limit = limit
        self._submit = submit
        self._refuse = refuse
        self._writes: OrderedDict[Call, Write] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._writes)

    def add(self, call: Call, write: Write) -> bool:
        """Let `call` wait; False when it was refused because too much waits already."""
        if self._writes and self.bytes + len(write.payload) > self._limit:
            call.fail(Status.UNAVAILABLE, f"the pump is behind: {self.bytes} bytes wait to be stored")
            return False
        self._writes[call] = write
        self.bytes += len(write.payload)
        call.on_end = lambda: self._on_left(call)
        return True

    def retry(self) -> None:
        """There may be room: submit as many as fit, in the order they came."""
        while self._writes:
            call = next(iter(self._writes))
            write = self._writes[call]
            if not self._submit(call, write.cluster_id, write.payload, write.since):
                return
            self._forget(call)

    def expire(self, before: float) -> None:
        """Refuse those that came before `before`."""
        while self._writes:
            call, write = next(iter(self._writes.items()))
            if write.since >= before:
                return
            self._forget(call)
            error = Transient("the pump is behind: too many bytes wait to be stored", where={"bytes": self.bytes})
            self._refuse(call, error, write.since)

    def _forget(self, call: Call) -> None:
        write = self._writes.pop(call, None)
        if write is not None:
            self.bytes -= len(write.payload)
            call.on_end = None

    def _on_left(self, call: Call) -> None:
        # Its caller has given up, or the server is stopping: what nobody waits for is not stored.
        self._forget(call)
        call.fail(Status.CANCELLED, "its caller no longer waits")
