"""A changefeed in the output of commands: with the names of `cdc cli`, passwords as ***, commit_ts as text."""

from __future__ import annotations

from typing import Any

from binlake import tso
from binlake.config.feed import FeedSection
from binlake.config.model import Replication
from binlake.config.sinkuri import mask_credentials, mask_sink_uri
from binlake.feed.state import FeedProgress, FeedState, read_progress, read_state
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowLog


def summarize_feed(replication: Replication, feed: FeedSection) -> dict[str, Any]:
    """The feed as shown by `list`: id and namespace, state, checkpoint, lag, error."""
    windows = WindowLog(LakePaths.of(replication))
    state, progress = read_state(windows, feed.name), read_progress(windows, feed.name, feed.first_ts)
    return {
        "id": feed.name,
        "namespace": feed.namespace,
        "replication": replication.name,
        "summary": {
            "state": choose_visible_state(state),
            "tso": _format_ts(progress.checkpoint),
            "checkpoint": _format_time(progress.checkpoint),
            "lag_s": progress.lag_s,
            "error": _describe_error(state),
        },
    }


def describe_feed(replication: Replication, feed: FeedSection) -> dict[str, Any]:
    """The feed as shown by `query`: section, progress, state and reason."""
    windows = WindowLog(LakePaths.of(replication))
    state, progress = read_state(windows, feed.name), read_progress(windows, feed.name, feed.first_ts)
    return {
        **describe_section(feed),
        "replication": replication.name,
        **_describe_progress(progress),
        **_describe_state(state),
    }


def describe_section(feed: FeedSection) -> dict[str, Any]:
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


def choose_visible_state(state: FeedState) -> str:
    """The state of a configured feed: a removed feed with its name was another feed."""
    return "normal" if state.state == "removed" else state.state


def _describe_progress(progress: FeedProgress) -> dict[str, Any]:
    values = {"checkpoint_tso": progress.checkpoint, "encoded_tso": progress.encoded, "landed_tso": progress.landed}
    times = {"checkpoint_time": _format_time(progress.checkpoint), "lag_s": progress.lag_s}
    return {name: _format_ts(ts) for name, ts in values.items()} | times


def _describe_state(state: FeedState) -> dict[str, Any]:
    values = {"state": choose_visible_state(state), "reason": state.reason}
    return values | {"error": _describe_error(state)}


def _describe_error(state: FeedState) -> dict[str, Any] | None:
    error = state.error
    if error is None:
        return None
    return {"stage": error.stage, "code": error.error, "message": error.text, "hint": error.hint, **error.where}


def _format_ts(ts: int | None) -> str | None:
    return None if ts is None else str(ts)


def _format_time(ts: int | None) -> str | None:
    return None if ts is None else tso.to_datetime(ts).isoformat(sep=" ", timespec="milliseconds")
