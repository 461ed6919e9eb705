"""Rows of the lake's table `window`: each is one event, recorded by a stage or a command.

`aside` events tell which tables are set aside at the target (U-16). `incident` events tell of transactions that a pump
saw too late or gave up on; they are recorded durably when plan first sees them (R-08, R-09).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from binlake.rows.schema.forms import fold_name
from binlake.window.plan import Member, PumpCounters

CPU_SECONDS = "cpu_seconds"
"""In the detail of a stage's event: the CPU that it took."""
DISK = "disk"
"""The stage of events that tell how full disks are."""
ASIDE = "aside"
"""Events of this stage in the table `window`: `set-aside` and `back`, each of one table."""
SET_ASIDE, BACK = "set-aside", "back"
INCIDENT = "incident"
"""The stage of events about incidents in the table `window`."""


class EventRow(TypedDict):
    """`stage` of the window (lo, hi] reached `state`. `detail` is JSON, `at_ms` Unix ms; `manifest` only on request."""

    lo: int
    hi: int
    stage: str
    sink: str
    state: str
    rows: int
    seconds: float
    run_id: str
    at_ms: int
    blocked_by: str
    detail: str
    manifest: NotRequired[str]


def list_set_aside(events: Sequence[EventRow]) -> list[dict[str, str]]:
    """The tables that are set aside after `events` of this stage (in order of time), as their events' details."""
    aside: dict[str, dict[str, str]] = {}
    for event in events:
        detail = json.loads(event["detail"])
        aside.pop(fold_name(detail["table"]), None)
        if event["state"] == SET_ASIDE:
            aside[fold_name(detail["table"])] = detail
    return list(aside.values())


def list_unrecorded(tables: Sequence[Mapping[str, str]], events: Sequence[EventRow]) -> list[Mapping[str, str]]:
    """Those of `tables` (as `AsideTable.to_dict` gives them) that `events` do not record yet."""
    recorded = {_build_event_key(json.loads(event["detail"])) for event in events if event["state"] == SET_ASIDE}
    return [table for table in tables if _build_event_key(table) not in recorded]


def _build_event_key(table: Mapping[str, str]) -> tuple[str, str, str]:
    return fold_name(table["table"]), table["since"], table["at"]


def find_new_incidents(members: Sequence[Member], events: Sequence[EventRow]) -> dict[str, dict[str, Any]]:
    """By node, the counters of each node that counted more since the last event about it; empty = nothing new.

    `events`: those of INCIDENT in order of time. Counters start at 0 in each process, so any value above 0 that differs
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
