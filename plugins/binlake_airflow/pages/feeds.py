"""The feeds of a replication as its page shows them, and what a person may do to one: pause and resume.

A feed's state, failures and reachability are its own: none of them makes the replication fail (MISSION S2-39). Neither
passwords nor the query of an address are shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

from binlake.config import Replication
from binlake.config.feed import Feed
from binlake.config.sinkuri import mask_sink_uri
from binlake.feed.state import FeedState, read_progress, read_state, record_pause, record_resume
from binlake.lake.failures import FAILURE, Failure
from binlake.lake.windowlog import WindowLog
from binlake.pipeline import ENDED, FEED, feed_sink, names_of_sink
from binlake_airflow.pages.history import position_view, utc_text
from binlake_airflow.pages.request import NotPossible

_WINDOWS = 20
"""Published windows whose topics are listed."""
_MOST_TOPICS = 50
ACTIONS: Mapping[str, Mapping[str, Callable[..., FeedState]]] = {
    "normal": {"pause": record_pause},
    "stopped": {"resume": record_resume},
    "error": {"resume": record_resume},
}
"""What may be done to a feed, by its state."""


def feeds_view(replication: Replication, log: WindowLog, now_ms: int) -> list[dict[str, Any]]:
    """Each feed: where to, state with the last error, position, topics, and what may be done to it."""
    return [_feed_view(feed, log, now_ms) for feed in replication.feed]


def act_on_feed(log: WindowLog, name: str, action: str, who: str) -> dict[str, Any]:
    """Pause or resume the feed `name` for the user `who`; its state then. Raises NotPossible, Permanent."""
    state = read_state(log, name)
    act = ACTIONS.get(state.state, {}).get(action)
    if act is None:
        raise NotPossible(f"{action[:20]!r} is not possible in state {state.state}: was it changed meanwhile?")
    return state_view(act(log, name, reason=f"{action} by {who[:80]}, on the page"))


def state_view(state: FeedState) -> dict[str, Any]:
    """State, since when, why, and the error that stopped it."""
    return {
        "state": state.state,
        "since": utc_text(state.since_ms) if state.since_ms else None,
        "reason": state.reason,
        "error": asdict(state.error) if state.error is not None else None,
        "actions": list(ACTIONS.get(state.state, {})),
    }


def _feed_view(feed: Feed, log: WindowLog, now_ms: int) -> dict[str, Any]:
    state, progress = read_state(log, feed.name), read_progress(log, feed.name)
    failure = _failure(feed.name, log, state)
    return {
        "name": feed.name,
        "protocol": feed.sink.protocol,
        "sink": mask_sink_uri(feed.sink_uri),
        "registry": _server(feed.schema_registry),
        "rules": list(feed.rules),
        "topic_rules": [rule.topic for rule in feed.dispatchers],
        "topics": _topics(feed.name, log),
        **state_view(state),
        "failure": failure,
        "position": position_view(progress.checkpoint, now_ms),
        "encoded": position_view(progress.encoded, now_ms),
        "lag_seconds": progress.lag_s,
    }


def _failure(name: str, log: WindowLog, state: FeedState) -> dict[str, Any] | None:
    """The last failure of one of its stages that has not ended well since, and that nobody resumed it from."""
    found = log.last_events((FAILURE,), 1, sink=feed_sink(name)) if log.exists() else []
    if not found or (state.error is None and found[0]["at_ms"] <= state.since_ms):
        return None
    failure, stages = Failure.of(found[0]), names_of_sink(FEED)
    behind = stages[stages.index(failure.stage) :] if failure.stage in stages else stages
    ended = log.last_events(behind, 1, ENDED, sink=feed_sink(name))
    if ended and ended[0]["at_ms"] >= failure.at_ms:
        return None
    return {"text": str(failure), "at_ms": failure.at_ms, "at": utc_text(failure.at_ms), "run_id": failure.run_id}


def _topics(name: str, log: WindowLog) -> list[str]:
    """The topics that its last windows went to."""
    events = log.last_events(("publish",), _WINDOWS, ENDED, sink=feed_sink(name)) if log.exists() else []
    return sorted({topic for event in events for topic in json.loads(event["detail"] or "{}").get("topics", ())})[
        :_MOST_TOPICS
    ]


def _server(url: str) -> str:
    """Scheme, host and port of an address."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if url else ""
