"""What a page does to a feed: pause and resume."""

from __future__ import annotations

from typing import Any

from binlake.feed.state import read_state
from binlake.health.feeds import ACTIONS, build_state_view
from binlake.lake.windowlog import WindowLog
from binlake_airflow.pages.request import NotPossible


def act_on_feed(log: WindowLog, name: str, action: str, who: str) -> dict[str, Any]:
    """Pause or resume the feed `name` for the user `who`; returns its new state. Raises NotPossible, Permanent."""
    state = read_state(log, name)
    act = ACTIONS.get(state.state, {}).get(action)
    if act is None:
        raise NotPossible(f"{action[:20]!r} is not possible in state {state.state}: was it changed meanwhile?")
    return build_state_view(act(log, name, reason=f"{action} by {who[:80]}, on the page"))
