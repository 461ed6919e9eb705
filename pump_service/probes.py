"""`/healthz` and `/readyz`: 200 and `ok`, or 503 and the reasons, one a line.

A service is healthy unless a restart is what would help it, so an orchestrator may restart it for a red `/healthz`. It
is ready while it can do its work; what keeps it from that may also be outside of it, where a restart changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from binlake.base.terminal import escape_invisible

HEALTHZ, READYZ = "/healthz", "/readyz"
CONTENT_TYPE = "text/plain; charset=utf-8"

FindReasons = Callable[[], Sequence[str]]
"""Finds what is in the way, a text each; empty = nothing."""


def find_no_reason() -> Sequence[str]:
    """For a service that is healthy as long as it answers."""
    return ()


@dataclass(frozen=True)
class Probes:
    """The two questions to one service. They may be asked every second and by anybody: they change nothing."""

    find_unhealthy: FindReasons
    find_unready: FindReasons

    def answer(self, path: str) -> tuple[int, str] | None:
        """Status and body for one of the two paths; None for any other path."""
        if path == HEALTHZ:
            return _render(self.find_unhealthy())
        if path == READYZ:
            # What must be restarted cannot work either.
            return _render([*self.find_unhealthy(), *self.find_unready()])
        return None


def _render(reasons: Sequence[str]) -> tuple[int, str]:
    if not reasons:
        return 200, "ok\n"
    return 503, "".join(f"{escape_invisible(reason)}\n" for reason in dict.fromkeys(reasons))
