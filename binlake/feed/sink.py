"""The interface of a feed's sink, for publish.

Rule: a sink stores messages and the position that they reach atomically. The feed continues at the position that the
sink reports when it is opened.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import pyarrow as pa

from binlake.config.feed import FeedSection
from binlake.errors import ConfigError
from binlake.feed.kafka import KafkaPublisher
from binlake.feed.kafkaclient import require_brokers
from binlake.feed.position import ChangePosition


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
