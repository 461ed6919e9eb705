"""What the pages show from the table `window`: positions, lag, blockers, windows with their stages, checkpoints.

A commit_ts is a string with its UTC time (hazards R-46). Every read is by range or starts at the newest event.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from binlake import tso
from binlake.cluster.source.hearing import Hearing
from binlake.config import Replication
from binlake.feed.state import STAGE as FEED_STATE
from binlake.lake import moved
from binlake.lake.failures import FAILURE, Failure
from binlake.pipeline import BY_NAME, ENDED, name_task, parse_feed_sink
from binlake.window import asides, rewrites, waitingddl
from binlake.window.eventrow import EventRow

_NOTICES = 10
_ASIDE_EVENTS = 200
# Late transactions, forgotten pumps, released windows, skipped transactions, injections that never run, rows changed
# manually, tables that were set aside or brought back, a checkpoint that was moved by hand or is back.
_NOTED = ("incident", "forget", "release", "skip", "injection", "repair", "rollback", "emit", "validation",
          asides.STAGE, moved.STAGE)  # fmt: skip
PAGE = 25
"""Rows of a list; older ones are on the next page."""
# The stage whose end shows a sink's position.
_LAST_OF_SINK = {"sql": "finalize", "mirror": "mirror"}


class Events(Protocol):
    """The reads of `binlake.lake.windowlog.WindowLog` that these views need."""

    def read_events(self, *, stage: str | None = ..., within: tuple[int, int] | None = ...) -> list[EventRow]: ...

    def read_newest(
        self, stages: Sequence[str], count: int, upto: int | None = ..., states: Sequence[str] | None = ...
    ) -> list[EventRow]: ...

    def read_last_event(self, stages: Sequence[str]) -> EventRow | None: ...

    def read_last_events(
        self, stages: Sequence[str], count: int, states: Sequence[str] | None = ..., *, sink: str | None = ...
    ) -> list[EventRow]: ...


def build_ts_view(commit_ts: int) -> dict[str, str]:
    """A commit_ts for JSON: decimal text and its UTC time."""
    return {"commit_ts": str(commit_ts), "time": tso.to_datetime(commit_ts).isoformat(timespec="milliseconds")}


def build_age_view(commit_ts: int | None, now_ms: int) -> dict[str, Any] | None:
    """As `build_ts_view`, with its age at `now_ms` (Unix ms) in seconds; None for None."""
    if commit_ts is None:
        return None
    age_s = max(now_ms - tso.extract_physical(commit_ts), 0) / 1000
    return {**build_ts_view(commit_ts), "age_seconds": round(age_s, 1)}


def build_position_view(commit_ts: int | None, now_ms: int, hearing: Hearing) -> dict[str, Any] | None:
    """As `build_ts_view`, with the seconds that it is behind the sources at `now_ms`: None while one is not heard."""
    if commit_ts is None:
        return None
    lag_s = hearing.measure_lag_s(tso.extract_physical(commit_ts), now_ms)
    return {**build_ts_view(commit_ts), "lag_seconds": None if lag_s is None else round(lag_s, 1)}


def build_stage_row(event: EventRow) -> dict[str, Any]:
    """One event: stage, state, bounds, rows, seconds, what blocks and why, when it ended (Unix ms, and UTC text).

    `task`: the stage's unique name, which for a feed's stage includes the feed; `engine`: empty if one process ran it.
    """
    detail = _parse_detail(event)
    return {
        "stage": event["stage"],
        "task": name_task(event["stage"], event["sink"]),
        "sink": event["sink"] or "",
        "state": event["state"],
        "lo": build_ts_view(event["lo"]),
        "hi": build_ts_view(event["hi"]),
        "rows": event["rows"],
        "seconds": round(event["seconds"], 2),
        "blocked_by": event["blocked_by"] or "",
        "reason": str(detail.get("reason", "")) or waitingddl.describe(detail),
        "engine": f"Spark, {detail['spark_tasks']:,} tasks" if "spark_tasks" in detail else "",
        "run_id": event["run_id"],
        "at_ms": event["at_ms"],
        "at": format_utc(event["at_ms"]),
    }


def _build_failure_row(event: EventRow) -> dict[str, Any]:
    """A failure as a row of the stage that failed."""
    failure = Failure.of(event)
    return {
        **build_stage_row(event),
        "stage": failure.stage,
        "task": failure.task,
        "reason": str(failure).removeprefix(f"{failure.task} failed: "),
    }


def format_utc(ms: int) -> str:
    """Unix ms as ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


def build_run_view(events: Sequence[EventRow], run_id: str) -> dict[str, Any]:
    """One run: its windows' range (as landed, or as planned if nothing landed), totals, and each stage."""
    # `started` only marks the beginning of a stage; its end has another row.
    rows = [
        _build_failure_row(event) if event["stage"] == FAILURE else build_stage_row(event)
        for event in events
        if (event["stage"] in BY_NAME or event["stage"] == FAILURE) and event["state"] != "started"
    ]
    landings = [row for row in rows if row["stage"] == "land" and row["state"] != "failed"] or rows[:1]
    return {
        "run_id": run_id,
        "window": {"lo": landings[0]["lo"], "hi": landings[-1]["hi"]} if landings else None,
        "blocked": next((_build_blocking_pump(row) for row in rows if row["blocked_by"]), None),
        "seconds": round(sum(row["seconds"] for row in rows), 2),
        "stages": rows,
    }


def build_status_view(replication: Replication, log: Events, now_ms: int, hearing: Hearing) -> dict[str, Any]:
    """State of a replication: landed ts, each sink's position and lag (s), what blocks it, its last rows."""
    names = list_stage_names(replication)
    landed = log.read_newest(("land",), PAGE)
    last_plan = log.read_last_event(("plan", "land"))
    blocked = (
        _build_blocking_pump(build_stage_row(last_plan))
        if last_plan is not None and last_plan["state"] == "blocked"
        else None
    )
    return {
        "name": replication.name,
        "state": "blocked" if blocked else "empty" if not landed else "running",
        "landed": build_position_view(_find_highest_hi(landed), now_ms, hearing),
        "sinks": {
            sink: build_position_view(_find_highest_hi(log.read_newest((stage,), 1)), now_ms, hearing)
            for sink, stage in _LAST_OF_SINK.items()
            if stage in names
        },
        "blocked": {**blocked, "since": format_utc(_find_blocked_since(log, last_plan))}
        if blocked and last_plan
        else None,
        "set_aside": _list_tables_set_aside(log),
        "shard_locks": _list_shard_locks(log),
        "rows": _find_last_window_with_rows(landed),
    }


def build_windows_view(replication: Replication, log: Events, upto: int | None = None) -> dict[str, Any]:
    """The landed windows that end at or below `upto`, newest first, with the newest event of each stage.

    A sink's wider window is listed at its hi. `older`: the hi from which the next page starts, None at the end.
    """
    landings = log.read_newest(("land",), PAGE + 1, upto)
    windows = sorted({(e["lo"], e["hi"]) for e in landings}, key=lambda window: -window[1])[:PAGE]
    stages: dict[int, dict[str, dict[str, Any]]] = {hi: {} for _, hi in windows}
    events = log.read_events(within=(windows[-1][0], windows[0][1])) if windows else []
    for event in sorted(events, key=lambda e: e["at_ms"]):
        if event["hi"] in stages and event["stage"] in BY_NAME and event["state"] != "started":
            row = build_stage_row(event)
            stages[event["hi"]][row["task"]] = row
    return {
        "stages": list_stage_names(replication),
        "windows": [{"lo": build_ts_view(lo), "hi": build_ts_view(hi), "stages": stages[hi]} for lo, hi in windows],
        # A window that was landed again has several events, so fewer windows than events do not mean the end.
        "older": str(windows[-1][1] - 1) if len(landings) > PAGE else None,
    }


def build_checkpoints_view(log: Events, upto: int | None = None, count: int = PAGE) -> dict[str, Any]:
    """The checkpoints that the SQL sink reached at or below `upto`, newest first, as finalize recorded them."""
    events = log.read_newest(("finalize",), count + 1, upto)
    events_shown = events[:count]
    if len(events) > count:
        # Include all events of the last commit_ts, so that the next page starts below it.
        last = events_shown[-1]["hi"]
        again = [e for e in log.read_events(stage="finalize", within=(last - 1, last)) if e["hi"] == last]
        events_shown = [e for e in events_shown if e["hi"] > last] + [e for e in reversed(again) if e["state"] in ENDED]
    rows = [{**build_stage_row(event), "detail": _format_checkpoint_detail(event)} for event in events_shown]
    return {"checkpoints": rows, "older": str(events_shown[-1]["hi"] - 1) if len(events) > count else None}


def build_notices_view(log: Events) -> list[dict[str, Any]]:
    """What an operator must see, and what operators did manually; newest first."""
    events = [*log.read_last_events(_NOTED, _NOTICES), *log.read_last_events(("backfill",), _NOTICES, ("finished",))]
    events += log.read_last_events((rewrites.STAGE,), _NOTICES, rewrites.FOUND)
    events += log.read_last_events((FEED_STATE,), _NOTICES)
    return [
        {"at": format_utc(event["at_ms"]), "what": _describe_event(event), "window": f"{event['lo']}-{event['hi']}",
         "text": json.dumps(_parse_detail(event), sort_keys=True)}
        for event in sorted(events, key=lambda event: -event["at_ms"])[:_NOTICES]
    ]  # fmt: skip


def _describe_event(event: EventRow) -> str:
    """The stage; for a feed's state change its name and new state, for the checkpoint what happened to it."""
    if event["stage"] == moved.STAGE:
        return f"checkpoint {event['state']}"
    feed = parse_feed_sink(event["sink"])
    return f"feed {feed} {event['state']}" if event["stage"] == FEED_STATE else str(event["stage"])


def list_stage_names(replication: Replication) -> list[str]:
    """The stages of its DAG, in order; a feed's stages with its name."""
    return [stage.task for stage in replication.list_stages()]


def _list_shard_locks(log: Events) -> list[dict[str, Any]]:
    """The tables whose rows waited for others at the end of the last merged window."""
    merged = log.read_newest(("merge",), 1)
    locks = _parse_detail(merged[0]).get("shard_locks", ()) if merged else ()
    return [{**lock, "since": build_ts_view(int(lock["since"]))} for lock in locks]


def _list_tables_set_aside(log: Events) -> list[dict[str, Any]]:
    """The tables that are set aside, according to the last event of each."""
    events = log.read_last_events((asides.STAGE,), _ASIDE_EVENTS)[::-1]
    return [{**table, "since": build_ts_view(int(table["since"]))} for table in asides.list_set_aside(events)]


def _find_blocked_since(log: Events, last_plan: EventRow) -> int:
    """Unix ms of the first of the consecutive blocked plans up to `last_plan`."""
    since: int = last_plan["at_ms"]
    plans = log.read_events(stage="plan", within=(last_plan["lo"] - 1, last_plan["lo"] + 1))
    for event in reversed([event for event in plans if event["lo"] == last_plan["lo"]]):
        if event["state"] != "blocked":
            break
        since = event["at_ms"]
    return since


def _format_checkpoint_detail(event: EventRow) -> str:
    detail = _parse_detail(event)
    return ", ".join(f"{detail[name]} {name}" for name in ("segments", "batches", "ddl") if name in detail)


def _parse_detail(event: EventRow) -> dict[str, Any]:
    detail: dict[str, Any] = json.loads(event["detail"] or "{}")
    return detail


def _find_highest_hi(events: Sequence[EventRow]) -> int | None:
    return events[0]["hi"] if events else None


def _find_last_window_with_rows(landed: Sequence[EventRow]) -> dict[str, Any]:
    """The newest window that had a transaction: commit time may advance while no transaction arrives."""
    newest = next((event for event in landed if event["rows"]), None)
    return {"window": build_ts_view(newest["hi"]) if newest else None, "looked_at": len(landed)}


def _build_blocking_pump(row: Mapping[str, Any]) -> dict[str, str]:
    return {"by": row["blocked_by"], "reason": row["reason"]}
