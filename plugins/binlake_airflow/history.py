"""What the pages show, from the events of the table `window`: pure functions.

A commit_ts is a string with the UTC time it stands for (hazards R-46).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from binlake import tso
from binlake.config import Replication
from binlake.pipeline import BY_NAME, stages_for

Event = Mapping[str, Any]
# Older windows are in the table `window`; a page of thousands of rows helps nobody.
RECENT_WINDOWS = 50
# The stage whose end tells how far a sink is.
_LAST_OF_SINK = {"sql": "finalize", "mirror": "mirror"}


def moment(commit_ts: int) -> dict[str, str]:
    """A commit_ts for JSON: decimal text and the UTC time it stands for."""
    return {"commit_ts": str(commit_ts), "time": tso.to_datetime(commit_ts).isoformat(timespec="milliseconds")}


def stage_row(event: Event) -> dict[str, Any]:
    """One event: stage, state, bounds, rows, seconds, who blocks and why, when it ended (Unix ms)."""
    return {
        "stage": event["stage"],
        "sink": event["sink"] or "",
        "state": event["state"],
        "lo": moment(event["lo"]),
        "hi": moment(event["hi"]),
        "rows": event["rows"],
        "seconds": round(event["seconds"], 2),
        "blocked_by": event["blocked_by"] or "",
        "reason": str(json.loads(event["detail"] or "{}").get("reason", "")),
        "run_id": event["run_id"],
        "at_ms": event["at_ms"],
    }


def run_view(events: Sequence[Event], run_id: str) -> dict[str, Any]:
    """One run: its window (of the landing; of the plan when nothing landed), totals, and each stage."""
    # `started` is a mark of a mirror at work: its passage has a row of its own.
    rows = [stage_row(event) for event in events if event["stage"] in BY_NAME and event["state"] != "started"]
    landing = next((row for row in rows if row["stage"] == "land"), rows[0] if rows else None)
    return {
        "run_id": run_id,
        "window": {"lo": landing["lo"], "hi": landing["hi"]} if landing else None,
        "blocked": next((_who(row) for row in rows if row["blocked_by"]), None),
        "seconds": round(sum(row["seconds"] for row in rows), 2),
        "stages": rows,
    }


def replication_view(replication: Replication, events: Sequence[Event], now_ms: int | None = None) -> dict[str, Any]:
    """A replication: landed ts, each sink's position, lag (s), who blocks it, its recent windows (newest first)."""
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    landed = _greatest_hi(events, "land")
    sinks = {sink: stage for sink, stage in _LAST_OF_SINK.items() if stage in _stage_names(replication)}
    return {
        "name": replication.name,
        "landed": _position(landed, now),
        "sinks": {sink: _position(_greatest_hi(events, stage), now) for sink, stage in sinks.items()},
        "blocked": _blocked(events),
        "stages": _stage_names(replication),
        "windows": _recent(events),
    }


def _stage_names(replication: Replication) -> list[str]:
    stages = stages_for(sql=replication.target is not None, mirror=replication.mirror.enabled)
    return [stage.name for stage in stages]


def _greatest_hi(events: Iterable[Event], stage: str) -> int | None:
    return max((event["hi"] for event in events if event["stage"] == stage and _passed(event)), default=None)


def _passed(event: Event) -> bool:
    return event["state"] in ("done", "already")


def _position(commit_ts: int | None, now_ms: int) -> dict[str, Any] | None:
    if commit_ts is None:
        return None
    return {**moment(commit_ts), "lag_seconds": round(max(now_ms - tso.physical(commit_ts), 0) / 1000, 1)}


def _who(row: Mapping[str, Any]) -> dict[str, str]:
    return {"by": row["blocked_by"], "reason": row["reason"]}


def _blocked(events: Sequence[Event]) -> dict[str, str] | None:
    """Who blocked the newest plan, and why; None when something was planned or landed since."""
    newest = max((e for e in events if e["stage"] in ("plan", "land")), key=lambda e: e["at_ms"], default=None)
    return _who(stage_row(newest)) if newest and newest["state"] == "blocked" else None


def _recent(events: Sequence[Event]) -> list[dict[str, Any]]:
    """The last landed windows with the newest passage of each stage; a sink's wider window stands at its own hi."""
    landed = sorted({(e["lo"], e["hi"]) for e in events if e["stage"] == "land" and _passed(e)}, key=lambda w: w[1])
    stages: dict[int, dict[str, dict[str, Any]]] = {hi: {} for _, hi in landed[-RECENT_WINDOWS:]}
    for event in sorted(events, key=lambda e: e["at_ms"]):
        if event["hi"] in stages and event["stage"] in BY_NAME:
            stages[event["hi"]][event["stage"]] = stage_row(event)
    return [{"lo": moment(lo), "hi": moment(hi), "stages": stages[hi]} for lo, hi in reversed(landed[-RECENT_WINDOWS:])]
