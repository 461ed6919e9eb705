"""Stops a pump while it starts: rebuilding an index or reading a long file takes minutes and can be interrupted.

Everything acked is in the value log, however far the start got; the next start continues from the state of the index.
"""

from __future__ import annotations

from collections.abc import Callable

from binlake.errors import Transient

StopAsked = Callable[[], bool]
"""Returns whether the start must stop. Called often, so it must be cheap."""


class StartStopped(Transient):
    """The pump was asked to stop while it started. This is not a fault, and nothing is running."""

    def __init__(self) -> None:
        super().__init__("the pump was asked to stop while it started", hint="start it again: it continues from there")


def never_stop() -> bool:
    """Never ask the start to stop."""
    return False
