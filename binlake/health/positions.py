"""Where a replication is: its lake, each sink and its lag, what blocks it, its last rows; from the table `window`.

Every read is by range or starts at the newest event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from binlake.cluster.source.hearing import Hearing
from binlake.config import Replication
from binlake.health.values import (
    WindowEvents,
    build_blocking_pump,
    build_position_view,
    build_stage_row,
    build_ts_view,
    format_utc,
    parse_detail,
)
from binlake.pipeline import parse_feed_sink
from binlake.window.events import ASIDE, EventRow, list_set_aside

WINDOWS = 25
"""The newest landed windows among which the last one with rows is searched."""
_ASIDE_EVENTS = 200


def build_status_view(replication: Replication, log: WindowEvents, now_ms: int, hearing: Hearing) -> dict[str, Any]:
    """State of a replication: landed ts, each sink's position and lag (s), what blocks it, its last rows.

    Without the feeds: their positions are those of `build_feeds_view`.
    """
    landed = log.read_newest(("land",), WINDOWS)
    last_plan = log.read_last_event(("plan", "land"))
    blocked = _build_blocked_view(log, last_plan) if last_plan and last_plan["state"] == "blocked" else None
    return {
        "name": replication.name,
        "state": "blocked" if blocked else "empty" if not landed else "running",
        "landed": build_position_view(_find_highest_hi(landed), now_ms, hearing),
        "sinks": {
            sink.name: build_position_view(_find_highest_hi(log.read_newest((sink.moved_by,), 1)), now_ms, hearing)
            for sink in replication.list_sinks()
            if not parse_feed_sink(sink.name)
        },
        "blocked": blocked,
        "set_aside": _list_tables_set_aside(log),
        "shard_locks": _list_shard_locks(log),
        "rows": _find_last_window_with_rows(landed),
    }


def _build_blocked_view(log: WindowEvents, last_plan: EventRow) -> dict[str, Any]:
    since_ms = _find_blocked_since(log, last_plan)
    who = build_blocking_pump(build_stage_row(last_plan))
    return {**who, "since": format_utc(since_ms), "since_ms": since_ms}


def list_stage_names(replication: Replication) -> list[str]:
    """The stages of its DAG, in order; a feed's stages with its name."""
    return [stage.task for stage in replication.list_stages()]


def _list_shard_locks(log: WindowEvents) -> list[dict[str, Any]]:
    """The tables whose rows waited for others at the end of the last merged window."""
    merged = log.read_newest(("merge",), 1)
    locks = parse_detail(merged[0]).get("shard_locks", ()) if merged else ()
    return [{**lock, "since": build_ts_view(int(lock["since"]))} for lock in locks]


def _list_tables_set_aside(log: WindowEvents) -> list[dict[str, Any]]:
    """The tables that are set aside, according to the last event of each."""
    events = log.read_last_events((ASIDE,), _ASIDE_EVENTS)[::-1]
    return [{**table, "since": build_ts_view(int(table["since"]))} for table in list_set_aside(events)]


def _find_blocked_since(log: WindowEvents, last_plan: EventRow) -> int:
    """Unix ms of the first of the consecutive blocked plans up to `last_plan`."""
    since: int = last_plan["at_ms"]
    plans = log.read_events(stage="plan", within=(last_plan["lo"] - 1, last_plan["lo"] + 1))
    for event in reversed([event for event in plans if event["lo"] == last_plan["lo"]]):
        if event["state"] != "blocked":
            break
        since = event["at_ms"]
    return since


def _find_highest_hi(events: Sequence[EventRow]) -> int | None:
    return events[0]["hi"] if events else None


def _find_last_window_with_rows(landed: Sequence[EventRow]) -> dict[str, Any]:
    """The newest window that had a transaction: commit time may advance while no transaction arrives."""
    newest = next((event for event in landed if event["rows"]), None)
    return {"window": build_ts_view(newest["hi"]) if newest else None, "looked_at": len(landed)}
