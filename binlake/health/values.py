"""How positions, times and events look in answers: a commit_ts is a string with its UTC time (hazards R-46)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from binlake import tso
from binlake.cluster.source.hearing import Hearing
from binlake.pipeline import name_task
from binlake.window.cuts import describe_waiting_ddl
from binlake.window.events import EventRow


class WindowEvents(Protocol):
    """The reads of `binlake.lake.windowlog.WindowLog` that health and pages need."""

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


def format_utc(ms: int) -> str:
    """Unix ms as ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


def build_stage_row(event: EventRow) -> dict[str, Any]:
    """One event: stage, state, bounds, rows, seconds, what blocks and why, when it ended (Unix ms, and UTC text).

    `task`: the stage's unique name, which for a feed's stage includes the feed; `engine`: empty if one process ran it;
    `engine_url`: Spark's own pages, if they are known.
    """
    detail = parse_detail(event)
    pages = str(detail.get("spark_pages", ""))
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
        "reason": str(detail.get("reason", "")) or describe_waiting_ddl(detail),
        "engine": f"Spark, {detail['spark_tasks']:,} tasks" if "spark_tasks" in detail else "",
        # Who writes to the lake must not be able to put a script into a page.
        "engine_url": pages if pages.startswith(("http://", "https://")) else "",
        "run_id": event["run_id"],
        "at_ms": event["at_ms"],
        "at": format_utc(event["at_ms"]),
    }


def build_blocking_pump(row: Mapping[str, Any]) -> dict[str, str]:
    return {"by": row["blocked_by"], "reason": row["reason"]}


def parse_detail(event: EventRow) -> dict[str, Any]:
    detail: dict[str, Any] = json.loads(event["detail"] or "{}")
    return detail
