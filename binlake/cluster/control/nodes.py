"""Evaluates the registry's entries for an operator: which nodes are stale, and what a forced offline loses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from binlake import tso
from binlake.cluster.placement import NodeStatus

MISSED_BEATS = 3
_BEATING = frozenset({"online", "pausing", "closing"})


def is_stale(node: NodeStatus, now_ts: int, heartbeat_s: float) -> bool:
    """Whether a node that should write its entry has missed MISSED_BEATS heartbeats (S0-34)."""
    age_ms = tso.extract_physical(now_ts) - tso.extract_physical(node.update_ts)
    return node.state in _BEATING and age_ms > MISSED_BEATS * heartbeat_s * 1000


def is_ahead(node: NodeStatus, now_ts: int) -> bool:
    """Whether a node reports a commit_ts that PD has not issued yet, that is, has a binlog from the future."""
    return node.max_commit_ts > now_ts + tso.FUTURE_SLACK


def describe_node(node: NodeStatus, now_ts: int, *, stale: bool) -> dict[str, Any]:
    """One node as JSON of Binlake: the registry's names, timestamps as decimal strings."""
    return {
        "nodeId": node.node_id,
        "host": node.host,
        "state": node.state,
        "score": node.score,
        "label": dict(node.label) if node.label else None,
        "maxCommitTS": str(node.max_commit_ts),
        "updateTS": str(node.update_ts),
        "updateTime": format_time(node.update_ts),
        "stale": stale,
        "ahead": is_ahead(node, now_ts),
    }


def format_time(ts: int) -> str:
    """UTC time of `ts` to the second; empty if `ts` is 0."""
    return tso.to_datetime(ts).strftime("%Y-%m-%d %H:%M:%S") if ts else ""


def format_unread_range(pump: NodeStatus, drainers: Sequence[NodeStatus]) -> str:
    """The commit_ts range that consumers have not read from `pump`, as text; empty if they have read all."""
    positions = [drainer.max_commit_ts for drainer in drainers if drainer.state != "offline"]
    if not positions:
        return f"everything it holds, up to {pump.max_commit_ts}: no consumer is registered"
    if min(positions) >= pump.max_commit_ts:
        return ""
    return f"({min(positions)}, {pump.max_commit_ts}]"


def format_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with aligned columns, which are never cropped."""
    widths = [max(len(row[at]) for row in [titles, *rows]) for at in range(len(titles))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [titles, *rows]]
    return "\n".join(line.rstrip() for line in lines)
