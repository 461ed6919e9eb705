"""Where a replication is: its lake, each sink and feed and its lag, what blocks it; from the table `window`.

Every read is by range or starts at the newest event. A feed's state, failures and reachability concern only that feed:
the replication does not fail (MISSION S2-39). Passwords and the query parts of addresses are not shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

from binlake.cluster.source.hearing import Hearing
from binlake.config import Replication
from binlake.config.feed import FeedSection
from binlake.config.sinkuri import mask_sink_uri
from binlake.feed.state import (
    FeedProgress,
    FeedState,
    find_greatest_hi_of_feed,
    read_state,
    record_pause,
    record_resume,
)
from binlake.health.values import (
    WindowEvents,
    build_blocking_pump,
    build_position_view,
    build_stage_row,
    build_ts_view,
    format_utc,
    parse_detail,
)
from binlake.lake.failures import FAILURE, Failure
from binlake.lake.windowlog import WindowLog
from binlake.pipeline import ENDED, FEED, list_required_stages, name_feed_sink, parse_feed_sink
from binlake.window.events import ASIDE, EventRow, list_set_aside

WINDOWS = 25
"""The newest landed windows among which the last one with rows is searched."""
_ASIDE_EVENTS = 200
PUBLISHED_WINDOWS = 20
"""Published windows whose topics are listed."""
_ENCODED = 3
_MOST_TOPICS = 50
ACTIONS: Mapping[str, Mapping[str, Callable[..., FeedState]]] = {
    "normal": {"pause": record_pause},
    "stopped": {"resume": record_resume},
    "error": {"resume": record_resume},
}
"""The actions that are possible for a feed, by its state."""


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


def build_feeds_view(replication: Replication, log: WindowLog, now_ms: int, hearing: Hearing) -> list[dict[str, Any]]:
    """Each feed: sink, state with the last error, position, topics, and the possible actions."""
    if not replication.feed:
        return []
    passages = _Passages(log, len(replication.feed))
    return [_build_feed_view(feed, log, passages, now_ms, hearing) for feed in replication.feed]


def build_state_view(state: FeedState) -> dict[str, Any]:
    """State, since when, why, and the error that stopped it."""
    return {
        "state": state.state,
        "since": format_utc(state.since_ms) if state.since_ms else None,
        "reason": state.reason,
        "error": asdict(state.error) if state.error is not None else None,
        "actions": list(ACTIONS.get(state.state, {})),
    }


class _Passages:
    """The newest windows of all feeds, read at once: a page shows every feed of every replication."""

    def __init__(self, log: WindowLog, feeds: int) -> None:
        self._log = log
        self._newest = {
            stage: log.read_newest((stage,), count * feeds) if log.exists() else []
            for stage, count in (("encode", _ENCODED), ("publish", PUBLISHED_WINDOWS))
        }
        self._landed = log.find_landed_ts() if log.exists() else None

    def compute_progress(self, feed: str, state: FeedState) -> FeedProgress:
        """As read_progress."""
        encoded, published = (self._find_greatest_hi(stage, feed, state) for stage in ("encode", "publish"))
        return FeedProgress(published, encoded, self._landed)

    def list_topics(self, feed: str) -> list[str]:
        """The topics of the feed's last windows."""
        details = (json.loads(event["detail"] or "{}") for event in self._select_events("publish", feed))
        return sorted({topic for detail in details for topic in detail.get("topics", ())})[:_MOST_TOPICS]

    def _select_events(self, stage: str, feed: str) -> list[EventRow]:
        return [event for event in self._newest[stage] if event["sink"] == name_feed_sink(feed)]

    def _find_greatest_hi(self, stage: str, feed: str, state: FeedState) -> int | None:
        # The events are sorted by hi, the greatest first, so the first of this feed is the greatest.
        events = (
            event
            for event in self._select_events(stage, feed)
            if event["at_ms"] > state.life_ms and event["state"] == "done"
        )
        newest = next(events, None)
        if newest is not None or not self._log.exists():
            return None if newest is None else newest["hi"]
        # The feed may be so far behind the others that its events were not read.
        return find_greatest_hi_of_feed(self._log, stage, feed, state)


def _build_feed_view(
    feed: FeedSection, log: WindowLog, passages: _Passages, now_ms: int, hearing: Hearing
) -> dict[str, Any]:
    state = read_state(log, feed.name)
    progress, failure = passages.compute_progress(feed.name, state), _find_failure(feed.name, log, state)
    return {
        "name": feed.name,
        "protocol": feed.sink.protocol,
        "sink": mask_sink_uri(feed.sink_uri),
        "registry": _format_server(feed.schema_registry),
        "rules": list(feed.rules),
        "topic_rules": [rule.topic for rule in feed.dispatchers],
        "topics": passages.list_topics(feed.name),
        **build_state_view(state),
        "failure": failure,
        "position": build_position_view(progress.checkpoint, now_ms, hearing),
        "encoded": build_position_view(progress.encoded, now_ms, hearing),
        "lag_seconds": progress.lag_s,
    }


def _find_failure(name: str, log: WindowLog, state: FeedState) -> dict[str, Any] | None:
    """The last failure of one of its stages, unless that stage has succeeded or the feed was resumed since."""
    failures = log.read_last_events((FAILURE,), 1, sink=name_feed_sink(name)) if log.exists() else []
    if not failures or (state.error is None and failures[0]["at_ms"] <= state.since_ms):
        return None
    failure, stages = Failure.of(failures[0]), list_required_stages(FEED)
    later_stages = stages[stages.index(failure.stage) :] if failure.stage in stages else stages
    ended = log.read_last_events(later_stages, 1, ENDED, sink=name_feed_sink(name))
    if ended and ended[0]["at_ms"] >= failure.at_ms:
        return None
    return {"text": str(failure), "at_ms": failure.at_ms, "at": format_utc(failure.at_ms), "run_id": failure.run_id}


def _format_server(url: str) -> str:
    """Scheme, host and port of an address."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if url else ""
