"""Stopping a pump while it starts: rebuilding an index or reading a long file takes minutes and can be interrupted.

Everything acked is in the value log, however far the start got; the next start continues from what the index has.
"""

from __future__ import annotations

from collections.abc import Callable

from binlake.errors import Transient

StopAsked = Callable[[], bool]
"""Whether the start is to end. Called often: it must be cheap."""


class StartStopped(Transient):
    """The pump was asked to stop while it started: nothing is wrong, and nothing is running."""

    def __init__(self) -> None:
        super().__init__("the pump was asked to stop while it started", hint="start it again: it continues from there")


def never_stop() -> bool:
    """Never ask the start to end."""
    return False
