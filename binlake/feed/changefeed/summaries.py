"""A changefeed in the output of commands: with the names of `cdc cli`, passwords as ***, commit_ts as text."""

from __future__ import annotations

from typing import Any

from binlake import tso
from binlake.config.feed import Feed
from binlake.config.model import Replication
from binlake.config.sinkuri import mask_credentials, mask_sink_uri
from binlake.feed.state import FeedProgress, FeedState, read_progress, read_state
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowLog


def summary_of(replication: Replication, feed: Feed) -> dict[str, Any]:
    """The feed as shown by `list`: id and namespace, state, checkpoint, lag, error."""
    windows = WindowLog(LakePaths.of(replication))
    state, progress = read_state(windows, feed.name), read_progress(windows, feed.name, feed.first_ts)
    return {
        "id": feed.name,
        "namespace": feed.namespace,
        "replication": replication.name,
        "summary": {
            "state": visible_state(state),
            "tso": _text(progress.checkpoint),
            "checkpoint": _time(progress.checkpoint),
            "lag_s": progress.lag_s,
            "error": _error(state),
        },
    }


def info_of(replication: Replication, feed: Feed) -> dict[str, Any]:
    """The feed as shown by `query`: section, progress, state and reason."""
    windows = WindowLog(LakePaths.of(replication))
    state, progress = read_state(windows, feed.name), read_progress(windows, feed.name, feed.first_ts)
    return {**section_of(feed), "replication": replication.name, **_progress(progress), **_state(state)}


def section_of(feed: Feed) -> dict[str, Any]:
    """The section as printed by `create`."""
    config = {"rules": list(feed.rules), "dispatchers": [rule.model_dump(mode="json") for rule in feed.dispatchers]}
    return {
        "id": feed.name,
        "namespace": feed.namespace,
        "sink_uri": mask_sink_uri(feed.sink_uri),
        "schema_registry": mask_credentials(feed.schema_registry),
        "start_ts": feed.start_ts,
        "target_ts": feed.target_ts,
        "config": {**config, "time_zone": feed.time_zone, "transactions": feed.transactions},
    }


def visible_state(state: FeedState) -> str:
    """The state of a configured feed: a removed feed with its name was another feed."""
    return "normal" if state.state == "removed" else state.state


def _progress(progress: FeedProgress) -> dict[str, Any]:
    values = {"checkpoint_tso": progress.checkpoint, "encoded_tso": progress.encoded, "landed_tso": progress.landed}
    times = {"checkpoint_time": _time(progress.checkpoint), "lag_s": progress.lag_s}
    return {name: _text(ts) for name, ts in values.items()} | times


def _state(state: FeedState) -> dict[str, Any]:
    values = {"state": visible_state(state), "reason": state.reason}
    return values | {"error": _error(state)}


def _error(state: FeedState) -> dict[str, Any] | None:
    error = state.error
    if error is None:
        return None
    return {"stage": error.stage, "code": error.error, "message": error.text, "hint": error.hint, **error.where}


def _text(ts: int | None) -> str | None:
    return None if ts is None else str(ts)


def _time(ts: int | None) -> str | None:
    return None if ts is None else tso.to_datetime(ts).isoformat(sep=" ", timespec="milliseconds")
