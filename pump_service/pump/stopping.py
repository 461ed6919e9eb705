"""A start that is asked to end: reading back a lost index, or a long file, takes minutes, and ends between two steps.

What was acked is in the value log whatever the start had done so far; the next start continues from what the index has.
"""

from __future__ import annotations

from collections.abc import Callable

from binlake.errors import Transient

Asked = Callable[[], bool]
"""Whether the start is to end. Asked often: it only looks."""


class StartStopped(Transient):
    """The pump was asked to end while it started: nothing is wrong, and nothing runs."""

    def __init__(self) -> None:
        super().__init__("the pump was asked to stop while it started", hint="start it again: it continues from there")


def never() -> bool:
    """Nobody asks."""
    return False
