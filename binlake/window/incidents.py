"""Transactions that a pump saw too late or gave up on, recorded durably when plan first sees them (R-08, R-09)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from binlake.window.eventrow import EventRow
from binlake.window.plan import Member, PumpCounters

STAGE = "incident"
"""The stage of events about incidents in the table `window`."""


def find_new_incidents(members: Sequence[Member], events: Sequence[EventRow]) -> dict[str, dict[str, Any]]:
    """By node, the counters of each node that counted more since the last event about it; empty = nothing new.

    `events`: those of STAGE in order of time. Counters start at 0 in each process, so any value above 0 that differs
    from the recorded one is new.
    """
    recorded = _collect_recorded_counters(events)
    return {
        member.node_id: {
            "store_uuid": member.store_uuid,
            "late_commits": member.counters.late_commits,
            "early_commits": member.counters.early_commits,
            "status_queries": member.counters.status_queries,
            "lost_commit_ts": [str(ts) for ts in member.counters.lost_commit_ts],
        }
        for member in members
        if _count_more(member.counters, recorded.get((member.node_id, member.store_uuid), PumpCounters()))
    }


def describe_incidents(incidents: Mapping[str, Mapping[str, Any]]) -> str:
    """The incidents as text for a log line and a task's result."""
    return "; ".join(
        f"{node}: {counts['late_commits']} late and {counts['early_commits']} early commits since its start"
        f"{_describe_given_up(counts)}"
        for node, counts in incidents.items()
    )


def _describe_given_up(counts: Mapping[str, Any]) -> str:
    given_up = counts.get("lost_commit_ts")
    return f", transactions given up at {', '.join(given_up)}" if given_up else ""


def _collect_recorded_counters(events: Sequence[EventRow]) -> dict[tuple[str, str], PumpCounters]:
    recorded = {}
    for event in events:
        for node, counts in json.loads(event["detail"])["pumps"].items():
            lost = tuple(map(int, counts.get("lost_commit_ts", ())))
            recorded[node, counts["store_uuid"]] = PumpCounters(
                counts["late_commits"], counts["early_commits"], 0, lost
            )
    return recorded


def _count_more(now: PumpCounters, before: PumpCounters) -> bool:
    late, early = now.late_commits, now.early_commits
    if set(now.lost_commit_ts) - set(before.lost_commit_ts):
        return True
    return (late > 0 and late != before.late_commits) or (early > 0 and early != before.early_commits)
