"""The feeds of a replication: state, position, failure, and which actions are possible.

A feed's state, failures and reachability concern only that feed: the replication does not fail (MISSION S2-39).
Passwords and the query parts of addresses are not shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
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
from binlake.health.values import build_position_view, format_utc
from binlake.lake.failures import FAILURE, Failure
from binlake.lake.windowlog import WindowLog
from binlake.pipeline import ENDED, FEED, list_required_stages, name_feed_sink
from binlake.window.events import EventRow

WINDOWS = 20
"""Published windows whose topics are listed."""
_ENCODED = 3
_MOST_TOPICS = 50
ACTIONS: Mapping[str, Mapping[str, Callable[..., FeedState]]] = {
    "normal": {"pause": record_pause},
    "stopped": {"resume": record_resume},
    "error": {"resume": record_resume},
}
"""The actions that are possible for a feed, by its state."""


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
            for stage, count in (("encode", _ENCODED), ("publish", WINDOWS))
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
