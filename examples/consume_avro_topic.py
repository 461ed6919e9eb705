"""Rebuilds a table in SQLite from its Avro topic. Stops at the end of the topic; with --follow it waits for more."""

from __future__ import annotations

import argparse
import io
import json
from typing import Any

import fastavro
import httpx
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from replica import SqliteReplica

_COMMIT_EVERY = 1000
_HEADER = 5


class RegistrySchemas:
    """The schemas that messages refer to by id; each is requested once from the registry."""

    def __init__(self, registry: str) -> None:
        self._registry = registry
        self._known: dict[int, Any] = {}

    def decode(self, body: bytes) -> tuple[Any, Any]:
        """(writer's schema, value) of a message's key or value: a zero byte, a schema id of four bytes, then Avro."""
        number = int.from_bytes(body[1:_HEADER], "big")
        if number not in self._known:
            answer = httpx.get(f"{self._registry}/schemas/ids/{number}").raise_for_status()
            self._known[number] = fastavro.parse_schema(json.loads(answer.json()["schema"]))
        schema = self._known[number]
        return schema, fastavro.schemaless_reader(io.BytesIO(body[_HEADER:]), schema, None)


def consume(consumer: Consumer, schemas: RegistrySchemas, replica: SqliteReplica, topic: str, *, follow: bool) -> None:
    """Apply the messages of all partitions, from the replica's positions on."""
    unfinished = set(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
    consumer.assign(
        [
            TopicPartition(topic, number, replica.positions.get(f"{topic}[{number}]", OFFSET_BEGINNING))
            for number in unfinished
        ]
    )
    positions: dict[str, int] = {}
    uncommitted = 0
    while unfinished or follow:
        message = consumer.poll(1.0)
        if message is None:
            continue
        problem = message.error()
        if problem is not None and problem.code() == KafkaError._PARTITION_EOF:
            unfinished.discard(message.partition())
        elif problem is not None:
            raise KafkaException(problem)
        else:
            _, key = schemas.decode(message.key())
            schema, value = schemas.decode(message.value()) if message.value() is not None else (None, None)
            replica.apply(key, value, schema)
            positions[f"{topic}[{message.partition()}]"] = message.offset() + 1
            uncommitted += 1
        if positions and (problem is not None or uncommitted >= _COMMIT_EVERY):
            replica.commit(positions)
            positions, uncommitted = {}, 0


def main() -> None:
    """Read the arguments and consume."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("brokers", "registry", "topic", "database"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--follow", action="store_true", help="wait for more at the end of the topic")
    args = parser.parse_args()
    settings = {
        "bootstrap.servers": args.brokers,
        "group.id": "example",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        # Messages of transactions that were not committed are skipped, so each change is read once.
        "isolation.level": "read_committed",
    }
    replica = SqliteReplica(args.database, args.topic)
    with Consumer(settings) as consumer:
        consume(consumer, RegistrySchemas(args.registry), replica, args.topic, follow=args.follow)
    replica.close()


if __name__ == "__main__":
    main()
