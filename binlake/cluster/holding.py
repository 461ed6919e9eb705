"""What an operator asked of a replication, by the state of its entry in the registry.

A replication has no process. Its entry is `paused` between its runs, so that pumps wait for it without notifying it
(hazards R-05); that state cannot say that an operator has paused it. `pausing` does: pumps wait for it as before. At
`offline` they do not, so a window could lack what they have deleted. At either no window starts until `resume-drainer`.
"""

from __future__ import annotations

RESTING = "paused"
"""The state of a replication's entry for which no operator has asked."""
PAUSED = "pausing"
"""The state in which an operator has paused it."""
OFFLINE = "offline"
_PREFIX = "binlake-"


def name_consumer(replication: str) -> str:
    """The name of a replication in the registry."""
    return _PREFIX + replication


def is_name_of_consumer(node_id: str) -> bool:
    """Whether `node_id` is a name that `name_consumer` gives."""
    return node_id.startswith(_PREFIX)


def describe_hold(node_id: str, state: str) -> str:
    """Why no window of the replication with this entry may start, and what to do; empty = one may."""
    if state not in (PAUSED, OFFLINE):
        return ""
    done = "paused by pause-drainer, pumps keep what has not landed"
    if state == OFFLINE:
        done = "taken offline by offline-drainer, pumps may delete what has not landed"
    way_back = f"no window starts until `binlake resume-drainer -node-id {node_id}`"
    return f"{done} ({node_id} is {state} in the registry): {way_back}"
