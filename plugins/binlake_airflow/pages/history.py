"""What the pages show from the table `window`: windows with their stages, checkpoints, notices.

A commit_ts is a string with its UTC time (hazards R-46). Every read is by range or starts at the newest event.

A notice is what happened to a replication that a person should know, as one sentence; never the raw record. One of a
kind that has no sentence here names its stage and state: nothing is hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from binlake.config import Replication
from binlake.ddl import rewrites
from binlake.feed.state import STAGE as FEED_STATE
from binlake.health.positions import list_stage_names
from binlake.health.values import (
    WindowEvents,
    build_blocking_pump,
    build_stage_row,
    build_ts_view,
    format_utc,
    parse_detail,
)
from binlake.lake import targetevents
from binlake.lake.failures import FAILURE, Failure
from binlake.pipeline import BY_NAME, ENDED, parse_feed_sink
from binlake.window.events import ASIDE, INCIDENT, SET_ASIDE, EventRow, describe_incidents

Detail = Mapping[str, Any]
_Sentence = Callable[[EventRow, Detail], str]


def describe_notice(event: EventRow, detail: Detail) -> str:
    """The sentence of one event."""
    sentence = _SENTENCES.get(event["stage"])
    return f"{event['stage']}: {event['state']}." if sentence is None else sentence(event, detail)


def _tell_incident(_: EventRow, detail: Detail) -> str:
    return f"A pump saw transactions too late or gave them up: {describe_incidents(detail['pumps'])}."


def _tell_forget(_: EventRow, detail: Detail) -> str:
    return f"The pump {detail.get('pump')} was given up; its binlogs with commit_ts {detail.get('lost')} are lost."


def _tell_release(_: EventRow, detail: Detail) -> str:
    return (
        f"The window of the DDL at commit_ts {detail.get('ddl_commit_ts')} was released; the next window starts after "
        f"the checkpoint {detail.get('checkpoint')}."
    )


def _tell_choice(_: EventRow, detail: Detail) -> str:
    what = f"replaced by “{detail['sql']}”" if detail.get("sql") else "left out"
    why = f": {detail['reason']}" if detail.get("reason") else ""
    return f"The DDL at commit_ts {detail.get('commit_ts')} is {what}, as a person chose{why}."


def _tell_skip(_: EventRow, detail: Detail) -> str:
    kind = {"dml": "transaction", "ddl": "DDL"}.get(detail.get("kind", ""), "transaction")
    return f"The {kind} at commit_ts {detail.get('commit_ts')} was left out, as {detail.get('rule', 'a rule')} says."


def _tell_injection(_: EventRow, detail: Detail) -> str:
    what = f"The injected statement “{detail.get('sql')}” at commit_ts {detail.get('commit_ts')}"
    return f"{what} was {detail.get('reason')}."


def _tell_repair(event: EventRow, detail: Detail) -> str:
    return f"{event['rows']:,} rows of the target were repaired; {detail.get('keys', 0):,} keys were compared."


def _tell_rollback(event: EventRow, detail: Detail) -> str:
    if event["state"] == "written":
        return f"The undo of {detail.get('keys', 0):,} keys was written to a file; the target was not changed."
    return f"{event['rows']:,} rows were set back to what they were before the range; {detail.get('keys', 0):,} keys."


def _tell_emit(event: EventRow, detail: Detail) -> str:
    return f"{event['rows']:,} messages of the feed {detail.get('feed')} were sent again to {detail.get('topic')}."


def _tell_validation(event: EventRow, detail: Detail) -> str:
    numbers = detail.get("numbers", ())
    named = f" (numbers {', '.join(str(number) for number in numbers)})" if numbers else ""
    return f"{event['rows']:,} differing rows{named} were {event['state']} by hand; {detail.get('errors', 0)} are open."


def _tell_aside(event: EventRow, detail: Detail) -> str:
    table = detail.get("table")
    if event["state"] == SET_ASIDE:
        return f"The table {table} was set aside by {_name_hand(detail)}: {detail.get('reason') or 'no reason given'}."
    return f"The table {table} is back: it equals the source's again, with {event['rows']:,} rows written."


def _name_hand(detail: Detail) -> str:
    return {"policy": "the configured policy", "command": "a person"}.get(detail.get("by", ""), "an unknown hand")


def _tell_position(event: EventRow, detail: Detail) -> str:
    if event["state"] == targetevents.MOVED:
        return (
            f"Another hand moved the target's checkpoint from {event['hi']} to {detail.get('found')}: "
            "no window is applied until it is back."
        )
    return f"The target's checkpoint is back at {event['hi']}, where Binlake left it."


def _tell_backfill(event: EventRow, _: Detail) -> str:
    return f"A backfill of the windows ({event['lo']}, {event['hi']}] has ended."


_COMPARED = {
    "equal": "equals the source's", "different": "differs from the source's", "not-comparable": "cannot be compared",
}  # fmt: skip


def _tell_verify_after_ddl(event: EventRow, detail: Detail) -> str:
    names = ", ".join(str(table.get("table")) for table in detail.get("tables", ())) or "a table"
    return f"After a DDL that changed its rows, {names} {_COMPARED.get(event['state'], event['state'])}."


_FEED = {
    "normal": "goes on", "stopped": "was stopped", "error": "stopped at an error", "finished": "is finished",
    "removed": "was removed",
}  # fmt: skip


def _tell_feed(event: EventRow, detail: Detail) -> str:
    failure = detail.get("failure") or {}
    why = detail.get("reason") or failure.get("text") or ""
    said = _FEED.get(event["state"], f"is {event['state']}")
    return f"The feed {parse_feed_sink(event['sink'])} {said}{f': {why}' if why else ''}."


_SENTENCES: Mapping[str, _Sentence] = {
    INCIDENT: _tell_incident, "forget": _tell_forget, "release": _tell_release, "ddl-choice": _tell_choice,
    "skip": _tell_skip,
    "injection": _tell_injection, "repair": _tell_repair, "rollback": _tell_rollback, "emit": _tell_emit,
    "validation": _tell_validation, ASIDE: _tell_aside, targetevents.POSITION: _tell_position,
    "backfill": _tell_backfill, rewrites.STAGE: _tell_verify_after_ddl, FEED_STATE: _tell_feed,
}  # fmt: skip


_NOTICES = 10
# Late transactions, forgotten pumps, released windows, skipped transactions, injections that never run, rows changed
# manually, tables that were set aside or brought back, a checkpoint that was moved by hand or is back.
_NOTED = ("incident", "forget", "release", "ddl-choice", "skip", "injection", "repair", "rollback", "emit",
          "validation", ASIDE, targetevents.POSITION)  # fmt: skip
PAGE = 25
"""Rows of a list; older ones are on the next page."""


def _build_failure_row(event: EventRow) -> dict[str, Any]:
    """A failure as a row of the stage that failed."""
    failure = Failure.of(event)
    return {
        **build_stage_row(event),
        "stage": failure.stage,
        "task": failure.task,
        "reason": str(failure).removeprefix(f"{failure.task} failed: "),
    }


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
        "blocked": next((build_blocking_pump(row) for row in rows if row["blocked_by"]), None),
        "seconds": round(sum(row["seconds"] for row in rows), 2),
        "stages": rows,
    }


def build_windows_view(replication: Replication, log: WindowEvents, upto: int | None = None) -> dict[str, Any]:
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


def build_checkpoints_view(log: WindowEvents, upto: int | None = None, count: int = PAGE) -> dict[str, Any]:
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


def build_notices_view(log: WindowEvents) -> list[dict[str, Any]]:
    """What an operator must see, and what operators did manually; newest first."""
    events = [*log.read_last_events(_NOTED, _NOTICES), *log.read_last_events(("backfill",), _NOTICES, ("finished",))]
    events += log.read_last_events((rewrites.STAGE,), _NOTICES, rewrites.FOUND)
    events += log.read_last_events((FEED_STATE,), _NOTICES)
    return [
        {"at": format_utc(event["at_ms"]), "what": _describe_event(event), "window": f"{event['lo']}-{event['hi']}",
         "text": describe_notice(event, parse_detail(event)), "detail": parse_detail(event)}
        for event in sorted(events, key=lambda event: -event["at_ms"])[:_NOTICES]
    ]  # fmt: skip


def _describe_event(event: EventRow) -> str:
    """The stage; for a feed's state change its name and new state, for the checkpoint what happened to it."""
    if event["stage"] == targetevents.POSITION:
        return f"checkpoint {event['state']}"
    feed = parse_feed_sink(event["sink"])
    return f"feed {feed} {event['state']}" if event["stage"] == FEED_STATE else str(event["stage"])


def _format_checkpoint_detail(event: EventRow) -> str:
    detail = parse_detail(event)
    return ", ".join(f"{detail[name]} {name}" for name in ("segments", "batches", "ddl") if name in detail)
