"""The state of a feed, as TiCDC names them: the last event of stage `feed` of its sink in the window log decides.

`normal`; `stopped`: paused by a person; `error`: encode or publish met a Permanent error; `finished`: it reached its
target-ts; `removed`. Rule: only a feed in state normal runs, and none of these events stops anything else (MISSION
S2-39). A new feed with the name of a removed one starts from scratch: each has a number, its `life`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import structlog

from binlake import tso
from binlake.errors import Fenced, LostRange, Permanent
from binlake.lake.failures import describe
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.pipeline import feed_sink
from binlake.window.eventrow import EventRow

log = structlog.get_logger(__name__)

STAGE = "feed"
"""The stage of these events; their state is the feed's."""
State = Literal["normal", "stopped", "error", "finished", "removed"]
_SHOWN = ("table", "subject", "commit_ts")
"""The parts of an error's location that are shown in one line."""
_SAME_MS = 8
"""Events with possibly equal milliseconds: their numbers show which is last."""


@dataclass(frozen=True)
class FeedError:
    """Why a feed is in state error: the stage that met it, class, text and hint of the error, and where it was.

    `where` has what is known of table, subject and commit_ts (of the DDL that made the schema, as text).
    """

    stage: str
    error: str
    text: str
    hint: str
    where: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """For people: `publish: SchemaRefused: the text [table=shop.item] Hint: what to do`."""
        details = {key: value for key, value in self.where.items() if key in _SHOWN} or self.where
        place = " ".join(f"{key}={value}" for key, value in details.items())
        parts = [f"{self.stage}: {self.error}: {self.text}", f"[{place}]" if place else ""]
        return " ".join(part for part in [*parts, f"Hint: {self.hint}" if self.hint else ""] if part)


@dataclass(frozen=True)
class FeedState:
    """The state of a feed since `since_ms` (Unix ms; 0 = always), and a person's reason, if any.

    `number` counts its events; `life` the feeds of this name that were removed, `life_ms` when the last of them was.
    """

    state: State = "normal"
    since_ms: int = 0
    reason: str = ""
    error: FeedError | None = None
    number: int = 0
    life: int = 0
    life_ms: int = 0

    @property
    def works(self) -> bool:
        """True when its stages run."""
        return self.state in ("normal", "removed")

    def why_skipped(self, feed: str) -> str:
        """Why its stages do nothing, for people."""
        why = str(self.error) if self.error is not None else self.reason
        done = "" if self.state == "finished" else f"; `binlake changefeed resume -c {feed}` lets it continue"
        return f"the feed is in state {self.state}{f': {why}' if why else ''}{done}"


@dataclass(frozen=True)
class FeedProgress:
    """The progress of a feed, in commit_ts: everything up to `checkpoint` is published; None before the begin."""

    checkpoint: int | None
    encoded: int | None
    landed: int | None

    @property
    def lag_s(self) -> float | None:
        """Seconds of commit time from its checkpoint to the end of the lake; None where one of them is unknown."""
        if self.checkpoint is None or self.landed is None:
            return None
        return max(tso.physical(self.landed) - tso.physical(self.checkpoint), 0) / 1000


def read_state(windows: WindowLog, feed: str) -> FeedState:
    """The state of the feed `feed`; one without events is normal."""
    events = windows.last_events((STAGE,), _SAME_MS, sink=feed_sink(feed)) if windows.exists() else []
    return max((state_of(event) for event in events), key=lambda state: state.number, default=FeedState())


def read_progress(windows: WindowLog, feed: str, start_ts: int | None = None) -> FeedProgress:
    """The progress of the feed; `start_ts`: where it begins by its section."""
    if not windows.exists():
        return FeedProgress(start_ts, None, None)
    state = read_state(windows, feed)
    encoded, checkpoint = (greatest_hi_of_feed(windows, stage, feed, state) for stage in ("encode", "publish"))
    return FeedProgress(start_ts if checkpoint is None else checkpoint, encoded, windows.landed_ts())


def greatest_hi_of_feed(windows: WindowLog, stage: str, feed: str, state: FeedState) -> int | None:
    """The greatest hi that `stage` of the feed in `state` ended with; None when it never did, in its present life."""
    return windows.greatest_hi(stage, feed_sink(feed), since_ms=state.life_ms)


def require_in_lake(windows: WindowLog, feed: str, start_ts: int) -> None:
    """A feed can begin at `start_ts` (commit_ts, exclusive). Raises LostRange where the lake begins later."""
    landed = windows.landed_range() if windows.exists() else None
    if landed is not None and start_ts < landed[0]:
        raise LostRange(
            "the lake does not have the start of the feed",
            where={"feed": feed, "start_ts": start_ts, "earliest": landed[0]},
            hint=f"the earliest start-ts that is possible is {landed[0]}",
        )


def stops_feed(error: BaseException) -> bool:
    """True for a Permanent error, which the next run would meet again; being fenced is not the feed's failure."""
    return isinstance(error, Permanent) and not isinstance(error, Fenced)


def record_feed_error(windows: WindowLog, feed: str, stage: str, error: BaseException, *, run_id: str) -> None:
    """Set the feed's state to error; an error that does not stop it is not recorded.

    As `record_failure`, it never raises.
    """
    if not stops_feed(error):
        return
    described = describe(error)
    where = {name: str(value) for name, value in getattr(error, "where", {}).items()}
    failure = {name: described[name] for name in ("error", "text", "hint")} | {"stage": stage, "where": where}
    try:
        _record(windows, feed, "error", run_id, detail={"failure": failure})
    except Exception as unwritten:  # noqa: BLE001 - an error must not hide the one that it is about
        log.warning("feed_error_not_recorded", feed=feed, failure=str(error), error=str(unwritten))


def record_pause(windows: WindowLog, feed: str, *, run_id: str = "", reason: str = "") -> FeedState:
    """Stop the feed until it is resumed."""
    return _record(windows, feed, "stopped", run_id, reason)


def record_resume(windows: WindowLog, feed: str, *, run_id: str = "", reason: str = "") -> FeedState:
    """Let the feed continue after its checkpoint."""
    return _record(windows, feed, "normal", run_id, reason)


def record_finish(windows: WindowLog, feed: str, *, run_id: str = "") -> FeedState:
    """Record that the feed has published everything up to its target-ts."""
    return _record(windows, feed, "finished", run_id)


def record_removal(windows: WindowLog, feed: str, *, run_id: str = "", reason: str = "") -> FeedState:
    """Record the end of the feed; a later one with its name begins anew."""
    return _record(windows, feed, "removed", run_id, reason)


def _record(
    windows: WindowLog, feed: str, state: State, run_id: str, reason: str = "", detail: Mapping[str, Any] | None = None
) -> FeedState:
    if not windows.exists():
        # An event would create a lake, which plan would mistake for a lost one.
        raise Permanent(
            "there is no lake yet, so the feed has no state to change",
            where={"feed": feed, "lake": windows.paths.root},
            hint="change it after the replication's first window",
        )
    before = read_state(windows, feed)
    new = replace(before, state=state, number=before.number + 1, reason=reason, error=None)
    place = read_progress(windows, feed).checkpoint or windows.landed_ts() or 0
    numbers = {"number": new.number, "life": new.life + (state == "removed"), "life_ms": new.life_ms}
    body = {"feed": feed, "reason": reason, **numbers, **(detail or {})}
    windows.record(WindowEvent(STAGE, place, place, state, run_id=run_id, sink=feed_sink(feed), detail=body))
    return read_state(windows, feed)


def state_of(event: EventRow) -> FeedState:
    """The state that an event of stage STAGE recorded."""
    detail = json.loads(event["detail"] or "{}")
    failure = detail.get("failure")
    removed = event["state"] == "removed"
    return FeedState(
        state=event["state"],  # type: ignore[arg-type]
        since_ms=event["at_ms"],
        reason=str(detail.get("reason", "")),
        error=FeedError(**failure) if failure else None,
        number=int(detail["number"]),
        life=int(detail["life"]),
        life_ms=event["at_ms"] if removed else int(detail["life_ms"]),
    )
