"""The state of a feed, with TiCDC's names: that of its sink's last event of stage `feed` in the window log.

`normal`; `stopped`: paused by an operator; `error`: encode or publish had a Permanent error; `finished`: it reached its
target-ts; `removed`. Rule: only a feed in state normal runs, and these events affect no other feed or sink (MISSION
S2-39). A new feed with the name of a removed one starts from scratch: each has a number, its `life`.

The log also tells which windows of a feed are encoded and not yet published.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import structlog

from binlake import tso
from binlake.config.feed import FeedSection
from binlake.errors import Fenced, IncompleteWindow, LostRange, Permanent
from binlake.feed.manifest import EncodeManifest
from binlake.lake.failures import describe
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.pipeline import name_feed_sink
from binlake.window.events import EventRow

log = structlog.get_logger(__name__)

STAGE = "feed"
"""The stage of these events; their state is the feed's."""
BEGIN = "feed-begin"
"""The stage of the event that says after which commit_ts a feed without start-ts begins."""
State = Literal["normal", "stopped", "error", "finished", "removed"]
_SHOWN = ("table", "subject", "commit_ts")
"""The parts of an error's `where` that are shown in one line."""
_SAME_MS = 8
"""The maximum number of events that may have equal milliseconds; their numbers show which one is last."""


@dataclass(frozen=True)
class FeedError:
    """Why a feed is in state error: the failed stage, and the error's class, text, hint and `where`.

    `where` has table, subject and commit_ts (of the DDL that created the schema, as text), as far as they are known.
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
    """The state of a feed since `since_ms` (Unix ms; 0 = always), and the operator's reason, if any.

    `number`: counts its events; `life`: the number of removed feeds with this name; `life_ms`: when the last one was
    removed.
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
        """True when the feed's stages run."""
        return self.state in ("normal", "removed")

    def explain_skip(self, feed: str) -> str:
        """Why the feed's stages do nothing, for people."""
        why = str(self.error) if self.error is not None else self.reason
        done = "" if self.state == "finished" else f"; `binlake changefeed resume -c {feed}` lets it continue"
        return f"the feed is in state {self.state}{f': {why}' if why else ''}{done}"


@dataclass(frozen=True)
class FeedProgress:
    """The progress of a feed, in commit_ts. Everything up to `checkpoint` is published; None before the start."""

    checkpoint: int | None
    encoded: int | None
    landed: int | None

    @property
    def lag_s(self) -> float | None:
        """Seconds of commit time from the checkpoint to the end of the lake; None if one of them is unknown."""
        if self.checkpoint is None or self.landed is None:
            return None
        return max(tso.extract_physical(self.landed) - tso.extract_physical(self.checkpoint), 0) / 1000


def read_state(windows: WindowLog, feed: str) -> FeedState:
    """The state of the feed `feed`; normal if it has no events."""
    events = windows.read_last_events((STAGE,), _SAME_MS, sink=name_feed_sink(feed)) if windows.exists() else []
    return max((parse_state(event) for event in events), key=lambda state: state.number, default=FeedState())


def find_begin(windows: WindowLog, feed: str, state: FeedState) -> int | None:
    """The commit_ts after which the feed begins in its present life; None if no window was sealed for it yet."""
    events = windows.read_events(stage=BEGIN) if windows.exists() else []
    own = (event for event in events if event["sink"] == name_feed_sink(feed) and event["at_ms"] > state.life_ms)
    return min((event["hi"] for event in own), default=None)


def list_begins(windows: WindowLog, feeds: Iterable[FeedSection], lo: int, run_id: str) -> list[WindowEvent]:
    """The events to record with the seal of the window that starts at `lo`: one for each feed that begins with it.

    They are part of the seal: if the run dies before encode, the next run must not take its own window for the first.
    """
    waiting = [feed.name for feed in feeds if feed.first_ts is None]
    states = {name: read_state(windows, name) for name in waiting}
    return [
        build_begin(name, lo, run_id)
        for name, state in states.items()
        if find_begin(windows, name, state) is None and find_greatest_hi_of_feed(windows, "encode", name, state) is None
    ]


def build_begin(feed: str, lo: int, run_id: str) -> WindowEvent:
    """The event that says that the feed begins after `lo`."""
    return WindowEvent(BEGIN, lo, lo, "done", run_id=run_id, sink=name_feed_sink(feed), detail={"feed": feed})


def read_progress(windows: WindowLog, feed: str, start_ts: int | None = None) -> FeedProgress:
    """The progress of the feed. `start_ts`: its start in the configuration."""
    if not windows.exists():
        return FeedProgress(start_ts, None, None)
    state = read_state(windows, feed)
    encoded, checkpoint = (find_greatest_hi_of_feed(windows, stage, feed, state) for stage in ("encode", "publish"))
    if checkpoint is None:
        checkpoint = find_begin(windows, feed, state) if start_ts is None else start_ts
    return FeedProgress(checkpoint, encoded, windows.find_landed_ts())


def find_greatest_hi_of_feed(windows: WindowLog, stage: str, feed: str, state: FeedState) -> int | None:
    """The greatest hi for which `stage` of the feed is done in its present life, or None."""
    return windows.find_greatest_hi(stage, name_feed_sink(feed), since_ms=state.life_ms)


def require_in_lake(windows: WindowLog, feed: str, start_ts: int) -> None:
    """Require that a feed can start at `start_ts` (commit_ts, exclusive). Raises LostRange if the lake begins later."""
    landed = windows.find_landed_range() if windows.exists() else None
    if landed is not None and start_ts < landed[0]:
        raise LostRange(
            "the lake does not have the start of the feed",
            where={"feed": feed, "start_ts": start_ts, "earliest": landed[0]},
            hint=f"the earliest possible start-ts is {landed[0]}",
        )


def stops_feed(error: BaseException) -> bool:
    """True for a Permanent error, which would occur again in the next run. Being fenced is not the feed's failure."""
    return isinstance(error, Permanent) and not isinstance(error, Fenced)


def record_feed_error(windows: WindowLog, feed: str, stage: str, error: BaseException, *, run_id: str) -> None:
    """Set the feed's state to error. An error that does not stop the feed is not recorded.

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
    """Record the removal of the feed. A later feed with its name starts anew."""
    return _record(windows, feed, "removed", run_id, reason)


def _record(
    windows: WindowLog, feed: str, state: State, run_id: str, reason: str = "", detail: Mapping[str, Any] | None = None
) -> FeedState:
    if not windows.exists():
        # An event would create a lake, which plan would mistake for a damaged one.
        raise Permanent(
            "there is no lake yet, so the feed has no state to change",
            where={"feed": feed, "lake": windows.paths.root},
            hint="change it after the replication's first window",
        )
    before = read_state(windows, feed)
    new = replace(before, state=state, number=before.number + 1, reason=reason, error=None)
    place = read_progress(windows, feed).checkpoint or windows.find_landed_ts() or 0
    numbers = {"number": new.number, "life": new.life + (state == "removed"), "life_ms": new.life_ms}
    body = {"feed": feed, "reason": reason, **numbers, **(detail or {})}
    windows.record(WindowEvent(STAGE, place, place, state, run_id=run_id, sink=name_feed_sink(feed), detail=body))
    return read_state(windows, feed)


def parse_state(event: EventRow) -> FeedState:
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


_HINT = "run encode first"


def list_waiting_windows(windows: WindowLog, feed: FeedSection, state: FeedState, hi: int) -> list[EncodeManifest]:
    """The windows that end at or below `hi`, in order. For a window that was encoded again, the last manifest."""
    sink = name_feed_sink(feed.name)
    reached = find_greatest_hi_of_feed(windows, "publish", feed.name, state) or 0
    events = windows.read_events(stage="encode", state="done", within=(reached, hi), sealed=True)
    events_of_feed = [event for event in events if event["sink"] == sink and event["at_ms"] > state.life_ms]
    sealed = {(event["lo"], event["hi"]): event["manifest"] for event in events_of_feed}
    return [EncodeManifest.from_json(text) for (_, end), text in sorted(sealed.items()) if reached < end <= hi]


def list_windows_to_publish(windows: WindowLog, feed: FeedSection, state: FeedState, hi: int) -> list[EncodeManifest]:
    """As `list_waiting_windows`, for publish. Raises IncompleteWindow if encode must run first."""
    hi, reached = feed.limit_ts(hi), find_greatest_hi_of_feed(windows, "publish", feed.name, state)
    manifests = list_waiting_windows(windows, feed, state, hi)
    if not manifests and max(reached or 0, feed.first_ts or 0) < hi:
        raise IncompleteWindow("a feed's window is not encoded", where={"feed": feed.name}, hint=_HINT)
    for manifest in manifests:
        if not matches_section(manifest, feed):
            raise IncompleteWindow(
                "the feed was changed after its window was encoded",
                where={"feed": feed.name, "window": manifest.window},
                hint=_HINT,
            )
    return manifests


def matches_section(manifest: EncodeManifest, feed: FeedSection) -> bool:
    """True if it was encoded with the feed's present section; assumed for a manifest without `config`."""
    return manifest.config in ("", feed.compute_data_hash())
