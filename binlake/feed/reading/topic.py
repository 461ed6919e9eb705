"""Reads the committed messages of a topic up to its present end, each partition in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from binlake.config.sinkuri import KafkaConnection
from binlake.errors import Permanent, Transient
from binlake.feed.kafkaclient import TIMEOUT_S, build_client_settings, convert_error
from binlake.feed.reading.events import FeedRecord

_SETTINGS: dict[str, Any] = {
    "group.id": "binlake-feed-read",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
}


def read_topic(kafka: KafkaConnection, topic: str) -> Iterator[FeedRecord]:
    """All committed messages of `topic`. Raises Permanent when it does not exist, Transient."""
    where = {"topic": topic, "brokers": ",".join(kafka.brokers)}
    try:
        with Consumer(build_client_settings(kafka) | _SETTINGS) as consumer:
            left = _list_partitions(consumer, topic, where)
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in left])
            while left:
                message = consumer.poll(TIMEOUT_S)
                if message is None:
                    raise Transient("Kafka does not answer", where=where, hint="check the brokers")
                problem = message.error()
                if problem is None:
                    yield _build_record(topic, message)
                elif problem.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition() or 0)
                else:
                    raise KafkaException(problem)
    except KafkaException as error:
        raise convert_error(error, where) from error


def _list_partitions(consumer: Consumer, topic: str, where: dict[str, str]) -> set[int]:
    known = consumer.list_topics(timeout=TIMEOUT_S).topics
    if topic not in known:
        raise Permanent(
            "the topic does not exist", where=where, hint="`binlake changefeed query` shows a feed's topics"
        )
    return set(known[topic].partitions)


def _build_record(topic: str, message: Message) -> FeedRecord:
    headers = {name: _convert_to_bytes(value) for name, value in dict(message.headers() or ()).items()}
    return FeedRecord(f"{topic}[{message.partition()}]@{message.offset()}", message.key(), message.value(), headers)


def _convert_to_bytes(value: str | bytes | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""
