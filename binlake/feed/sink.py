"""A feed's sink, as publish uses it: its interface, and whether the position that it reports is this lake's own.

Rule: a sink stores messages and the position that they reach atomically. The feed continues at the position that the
sink reports when it is opened.

Others can change that position: a topic or folder was restored from an older copy, emptied, or edited. A position
further on would leave out messages, and one further back would write over files. Publish records in the lake where each
window begins and ends. So two positions are right: the end of the last window, or a place in the next one if publish
has begun it and was killed. Any other is refused until it is back, or until an operator adopts it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import pyarrow as pa

from binlake.config.feed import FeedSection
from binlake.config.sinkuri import BINLOG_FILES
from binlake.errors import ConfigError, PositionMoved
from binlake.feed.files.binlogs import BinlogPublisher
from binlake.feed.files.publisher import FilePublisher
from binlake.feed.kafka import KafkaPublisher
from binlake.feed.kafkaclient import require_brokers
from binlake.feed.manifest import ChangePosition, EncodeManifest
from binlake.feed.state import FeedState
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.pipeline import name_feed_sink


class FeedSink(Protocol):
    """Once opened, the only writer of a feed. `position`: the last stored change; None at first."""

    position: ChangePosition | None

    def publish(self, messages: pa.Table, position: ChangePosition) -> None:
        """Write `messages` (columns of MESSAGE_SCHEMA, with keys and values as consumers get them) in their order.

        The feed is at `position` afterwards. Raises Permanent, Fenced, Transient; after a failure the sink must be
        opened again.
        """


def build_writer_name(feed: FeedSection, replication: str, life: int = 0) -> str:
    """The unique name of a feed at its sink. `life`: how many feeds with its name were removed before."""
    return f"{replication}.{feed.name}" + (f".{life}" if life else "")


def open_sink(feed: FeedSection, replication: str, life: int = 0) -> AbstractContextManager[FeedSink]:
    """The sink of a feed as a context manager; entering it raises Transient, Permanent. Raises ConfigError."""
    if feed.sink.kafka is None:
        raise ConfigError("a feed needs a Kafka sink", where={"feed": feed.name}, hint="use kafka://host:port/topic")
    return KafkaPublisher(feed.sink.kafka, build_writer_name(feed, replication, life), transactions=feed.transactions)


def forget_position(feed: FeedSection, replication: str, life: int = 0) -> None:
    """Delete the feed's position at the sink, and fence a running writer. Raises as `open_sink`."""
    if feed.sink.kafka is not None:
        require_brokers(feed.sink.kafka)
        with KafkaPublisher(
            feed.sink.kafka, build_writer_name(feed, replication, life), transactions=feed.transactions
        ) as out:
            out.forget()


STAGE = "feed-position"
"""The stage of the event that says which position of a sink an operator adopted."""


def build_file_publisher(
    windows: WindowLog, feed: FeedSection, replication: str, state: FeedState
) -> FilePublisher | BinlogPublisher:
    """The publisher of a feed that writes files. Raises ConfigError."""
    writer = build_writer_name(feed, replication, state.life)
    storage = feed.sink.storage
    if storage is None:
        raise ConfigError("the feed writes no files", where={"feed": feed.name})
    if feed.sink.protocol == BINLOG_FILES:
        return BinlogPublisher(storage, writer, time_zone=feed.time_zone)
    recorded = _find_published(windows, feed, state.life_ms, with_rows=False)
    return FilePublisher(storage, feed.sink.protocol, writer, terminator=feed.terminator, recorded=recorded)


def end_of(checkpoint: int | None) -> ChangePosition | None:
    """The position of a sink that has everything up to `checkpoint` (commit_ts); None for None."""
    return None if checkpoint is None else ChangePosition.after_commit(checkpoint)


def require_own_position(
    windows: WindowLog,
    feed: FeedSection,
    state: FeedState,
    waiting: Sequence[EncodeManifest],
    found: ChangePosition | None,
) -> None:
    """Require that the sink's position `found` is this lake's own. `waiting`: the windows that publish takes next.

    Raises PositionMoved.
    """
    own = _find_own_end(windows, feed, state)
    if found == own or _is_inside(windows, feed, state, waiting, found) or _is_adopted(windows, feed, state, found):
        return
    raise PositionMoved(
        f"the position of the feed at its sink is not where publish left it: {_describe(own, found)}",
        where={"feed": feed.name, "written": _name(own), "found": _name(found)},
        hint="restore the topic or folder, or set its position back; or, if the sink really has everything up to there"
        f" and nothing more: `binlake changefeed resume -c {feed.name} --adopt-position`",
    )  # fmt: skip


def adopt_position(windows: WindowLog, feed: FeedSection, replication: str, state: FeedState) -> ChangePosition | None:
    """From now on believe the position that the sink reports; returns it. Raises Transient, Permanent, ConfigError."""
    found = _read_sink_position(windows, feed, replication, state)
    place = 0 if found is None else found.commit_ts
    detail = {"feed": feed.name, "position": None if found is None else found.to_text()}
    windows.record(WindowEvent(STAGE, place, place, "adopted", sink=name_feed_sink(feed.name), detail=detail))
    return found


def _read_sink_position(
    windows: WindowLog, feed: FeedSection, replication: str, state: FeedState
) -> ChangePosition | None:
    if feed.sink.storage is not None:
        with build_file_publisher(windows, feed, replication, state) as files:
            return end_of(files.checkpoint)
    with open_sink(feed, replication, state.life) as out:
        return out.position


def _find_own_end(windows: WindowLog, feed: FeedSection, state: FeedState) -> ChangePosition | None:
    """The end of the last window that left a position: for Kafka, a window without messages leaves none."""
    only_with_rows = feed.sink.storage is None
    return end_of(_find_published(windows, feed, state.life_ms, with_rows=only_with_rows))


def _find_published(windows: WindowLog, feed: FeedSection, since_ms: int, *, with_rows: bool) -> int | None:
    return windows.find_greatest_hi("publish", name_feed_sink(feed.name), since_ms=since_ms, with_rows=with_rows)


def leaves_position(feed: FeedSection, manifest: EncodeManifest) -> bool:
    """True when publishing the window moves the sink's position: Kafka gets nothing of a window without messages."""
    return bool(manifest.messages) or feed.sink.storage is not None


def build_start(feed: FeedSection, manifest: EncodeManifest, run_id: str) -> WindowEvent:
    """The event to record before the first write of the window to the sink."""
    return WindowEvent("publish", manifest.lo, manifest.hi, "started", run_id=run_id, sink=name_feed_sink(feed.name))


def _is_inside(
    windows: WindowLog,
    feed: FeedSection,
    state: FeedState,
    waiting: Sequence[EncodeManifest],
    found: ChangePosition | None,
) -> bool:
    """True inside the first window that leaves a position, if it was begun."""
    first = next((one for one in waiting if leaves_position(feed, one)), None)
    if first is None or found is None:
        return False
    # Binlog files have the window's lo at first.
    low = ChangePosition.after_commit(first.lo - 1 if feed.sink.storage is not None else first.lo)
    if not low < found <= ChangePosition.after_commit(first.hi):
        return False
    begun = windows.read_events(stage="publish", state="started", within=(first.lo, first.hi))
    own = [event for event in begun if event["sink"] == name_feed_sink(feed.name) and event["at_ms"] > state.life_ms]
    return any((event["lo"], event["hi"]) == (first.lo, first.hi) for event in own)


def _is_adopted(windows: WindowLog, feed: FeedSection, state: FeedState, found: ChangePosition | None) -> bool:
    """True for the position that was adopted last, until publish went past it."""
    events = windows.read_last_events((STAGE,), 1, ("adopted",), sink=name_feed_sink(feed.name))
    if not events or events[0]["at_ms"] <= state.life_ms:
        return False
    (last,) = events
    if json.loads(last["detail"])["position"] != (None if found is None else found.to_text()):
        return False
    later = _find_published(windows, feed, last["at_ms"], with_rows=True)
    return later is None or later <= last["hi"]


def _describe(own: ChangePosition | None, found: ChangePosition | None) -> str:
    if found is None:
        return f"everything up to {_name(own)} was sent, and the sink has no position"
    if own is None:
        return f"nothing was sent yet, and the sink is at {_name(found)}"
    return f"the sink is at {_name(found)}, {'ahead of' if found > own else 'behind'} {_name(own)}"


def _name(position: ChangePosition | None) -> str:
    """A position for people: the commit_ts alone where that is all."""
    if position is None:
        return "none"
    return str(position.commit_ts) if position == end_of(position.commit_ts) else position.to_text()
