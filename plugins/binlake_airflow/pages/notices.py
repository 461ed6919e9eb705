"""What happened to a replication that a person should know, each as one sentence; never the raw record.

A record of a kind that has no sentence here names its stage and state: nothing is hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from binlake.ddl import rewrites
from binlake.feed.state import STAGE as FEED_STATE
from binlake.lake import targetevents
from binlake.pipeline import parse_feed_sink
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
