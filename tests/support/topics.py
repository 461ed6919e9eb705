"""What readers of committed messages find in the topics of a real Kafka."""

from __future__ import annotations

from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

_WAIT_S = 60.0


@dataclass(frozen=True)
class Read:
    """A message as it lies in its partition."""

    partition: int
    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


def read_topic(brokers: str, topic: str) -> list[Read]:
    """All committed messages of `topic`, each partition in its order; [] when it does not exist."""
    settings = {"bootstrap.servers": brokers, "group.id": "test", "isolation.level": "read_committed"}
    with Consumer(settings | {"enable.partition.eof": True}) as consumer:
        there = consumer.list_topics(timeout=_WAIT_S).topics
        left = set(there[topic].partitions) if topic in there else set()
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in left])
        found: list[Read] = []
        while left:
            message = consumer.poll(_WAIT_S)
            assert message is not None, "Kafka does not answer"
            number, problem = message.partition() or 0, message.error()
            if problem is None:
                headers = tuple((name, _as_bytes(value)) for name, value in dict(message.headers() or ()).items())
                found.append(Read(number, message.key() or b"", message.value(), headers))
            else:
                assert problem.code() == KafkaError._PARTITION_EOF, problem
                left.discard(number)
        return sorted(found, key=lambda read: read.partition)


def _as_bytes(value: str | bytes | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""
