"""A pump's or consumer's entry in the registry: the original's JSON (docs/reference/formats.md 3.1), and its states.

A replication has no process. Its entry is `paused` between its runs, so that pumps wait for it without notifying it
(hazards R-05); that state cannot say that an operator has paused it. `pausing` does: pumps wait for it as before. At
`offline` they do not, so a window could lack what they have deleted. At either no window starts until `resume-drainer`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from binlake.errors import WireError

STATES = frozenset({"online", "pausing", "paused", "closing", "offline"})
# Go's encoder escapes these, so that JSON can be embedded in HTML and JavaScript.
_GO_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}

RESTING = "paused"
"""The state of a replication's entry for which no operator has asked."""

PAUSED = "pausing"
"""The state in which an operator has paused it."""

OFFLINE = "offline"
_PREFIX = "binlake-"


@dataclass(frozen=True)
class NodeStatus:
    """One entry. `max_commit_ts`: watermark of a pump, position of a consumer; `update_ts`: TSO of the last write."""

    node_id: str
    host: str
    state: str
    is_alive: bool = False
    score: int = 0
    label: Mapping[str, Any] | None = None
    max_commit_ts: int = 0
    update_ts: int = 0

    def to_json(self) -> bytes:
        """The JSON, byte for byte as the original writes it."""
        value = {
            "nodeId": self.node_id,
            "host": self.host,
            "state": self.state,
            "isAlive": self.is_alive,
            "score": self.score,
            "label": self.label if self.label is None else dict(sorted(self.label.items())),
            "maxCommitTS": self.max_commit_ts,
            "updateTS": self.update_ts,
        }
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return text.translate(_GO_ESCAPES).encode()

    @classmethod
    def from_json(cls, data: bytes, key: str) -> NodeStatus:
        """Parse the entry of `key`. Raises WireError, which names the key: one bad value breaks every listing."""
        try:
            raw = json.loads(data)
            status = cls(
                node_id=str(raw["nodeId"]),
                host=str(raw["host"]),
                state=str(raw["state"]),
                is_alive=bool(raw.get("isAlive", False)),
                score=int(raw.get("score") or 0),
                label=raw.get("label"),
                max_commit_ts=int(raw.get("maxCommitTS") or 0),
                update_ts=int(raw.get("updateTS") or 0),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WireError(
                f"a registry entry cannot be read: {error!r}",
                where={"key": key},
                hint="TiDB and the original tools fail on it too: correct or delete the key in etcd",
            ) from None
        if status.state not in STATES:
            raise WireError(f"unknown state {status.state!r} in the registry", where={"key": key})
        return status


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
