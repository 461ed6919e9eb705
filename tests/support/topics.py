"""Read a real Kafka's topics as readers of committed messages do."""

from __future__ import annotations

from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

_WAIT_S = 60.0


@dataclass(frozen=True)
class Read:
    """A message as stored in its partition."""

    partition: int
    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


def read_topic(brokers: str, topic: str) -> list[Read]:
    """All committed messages of `topic` in partition order; [] if it does not exist.

    Kafka acknowledges a commit before it writes the commit markers to the partitions; until then, readers see less. So
    this reads up to where each partition ended when it began, whoever wrote the last messages.
    """
    settings = {"bootstrap.servers": brokers, "group.id": "test", "isolation.level": "read_committed"}
    with Consumer(settings | {"enable.partition.eof": True}) as consumer:
        there = consumer.list_topics(timeout=_WAIT_S).topics
        places = [TopicPartition(topic, number) for number in there[topic].partitions] if topic in there else []
        left = _ends(brokers, places)
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in left])
        found: list[Read] = []
        while left:
            message = consumer.poll(_WAIT_S)
            assert message is not None, f"Kafka does not answer, or a transaction is open: {topic} {left}"
            number, problem = message.partition() or 0, message.error()
            if problem is None:
                headers = tuple((name, _as_bytes(value)) for name, value in dict(message.headers() or ()).items())
                found.append(Read(number, message.key() or b"", message.value(), headers))
                continue
            assert problem.code() == KafkaError._PARTITION_EOF, problem
            if (message.offset() or 0) >= left.get(number, 0):
                left.pop(number, None)
        return sorted(found, key=lambda read: read.partition)


def _ends(brokers: str, places: list[TopicPartition]) -> dict[int, int]:
    """The end of each partition, including what uncommitted transactions have written so far."""
    settings = {"bootstrap.servers": brokers, "group.id": "test", "isolation.level": "read_uncommitted"}
    with Consumer(settings) as consumer:
        return {place.partition: consumer.get_watermark_offsets(place, _WAIT_S)[1] for place in places}


def _as_bytes(value: str | bytes | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""
