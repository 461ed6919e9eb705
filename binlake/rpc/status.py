"""gRPC's status codes and the one error that carries them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from binlake.errors import BinlakeError


class Status(IntEnum):
    """Status codes of gRPC (its `statuscodes` document)."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class RpcError(BinlakeError):
    """A call that did not end with OK: its `status`, and the status message in `message`."""

    def __init__(
        self, status: Status, message: str, *, hint: str = "", where: Mapping[str, object] | None = None
    ) -> None:
        self.status = status
        super().__init__(message, hint=hint, where=where)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.status, self.message, self.hint, self.where))


def _rebuild(status: Status, message: str, hint: str, where: dict[str, object]) -> RpcError:
    return RpcError(status, message, hint=hint, where=where)
