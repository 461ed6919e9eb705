"""The exit statuses of all commands, in one place: docs/reference/exit-codes.md explains them."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """What an exit status says; the same number has the same meaning for every command."""

    DONE = 0
    ERROR = 1
    INVALID_ARGUMENTS = 2
    NOT_FOUND = 3
    ATTENTION = 4
    STOPPED = 5
    UNKNOWN = 6
    INTERRUPTED = 130
    PIPE_CLOSED = 141
