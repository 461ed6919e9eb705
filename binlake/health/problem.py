"""One problem of a replication, and the states that problems cause, the most severe first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from binlake.health.values import format_utc

STATES = ("paused", "failing", "blocked", "unreachable", "standing", "behind", "attention")
"""The states of a replication besides `empty` and `running`; if several apply, the first one counts."""


@dataclass(frozen=True)
class Problem:
    """A problem: the `state` of STATES that it causes, and a text; its start (Unix ms) and run, if known."""

    state: str
    text: str
    since_ms: int | None = None
    run_id: str = ""

    def to_dict(self) -> dict[str, Any]:
        """For pages and JSON."""
        since = None if self.since_ms is None else format_utc(self.since_ms)
        return {"state": self.state, "text": self.text, "since": since, "run_id": self.run_id}
