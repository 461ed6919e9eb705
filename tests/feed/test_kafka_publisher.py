"""Messages reach a real Kafka once, even if a publisher is killed, fenced or refused (hazards R-31, S2-45)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from support.topics import read_topic

from binlake.config.sinkuri import KafkaConnection as Brokers
from binlake.errors import Fenced, Permanent, Transient
from binlake.feed.kafka import POSITIONS, KafkaPublisher
from binlake.feed.manifest import ChangePosition
from binlake.feed.messages import MESSAGE_SCHEMA

if TYPE_CHECKING:
    from deploy.local.kafka import KafkaBroker

pytestmark = pytest.mark.process


@pytest.fixture
def brokers(kafka: KafkaBroker) -> Brokers:
    return Brokers((kafka.address,), partitions=3)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)[:200].replace("[", ".").replace("]", "")


def message(topic: str, commit_ts: int, number: int, key: bytes, value: bytes | None) -> pa.Table:
    row = {"db": "d", "table": "t", "topic": topic, "commit_ts": commit_ts, "hash": number, "key": key, "value": value}
    return pa.Table.from_pylist([row], MESSAGE_SCHEMA)


def changes(topic: str, first: int, last: int) -> pa.Table:
    """One message per change: change n writes key n % 10."""
    return pa.concat_tables(
        [MESSAGE_SCHEMA.empty_table()]
        + [message(topic, n, n % 10, b"%d" % (n % 10), b"value %d" % n) for n in range(first, last)]
    )


def position_of(commit_ts: int) -> ChangePosition:
    return ChangePosition(commit_ts, commit_ts - 1, 0)


def read_numbers(kafka: KafkaBroker, topic: str) -> list[int]:
    """The stored changes by number; asserts that each partition has them in order."""
    found = [(read.partition, int((read.value or b"").split()[1])) for read in read_topic(kafka.address, topic)]
    assert found == sorted(found)
    return sorted(number for _, number in found)


# S2-45
def test_messages_of_a_key_stay_in_one_partition_and_in_order(kafka: KafkaBroker, brokers: Brokers, topic: str) -> None:
    with KafkaPublisher(brokers, topic) as publisher:
        assert publisher.position is None
        publisher.publish(changes(topic, 0, 500), position_of(499))
        publisher.publish(changes(topic, 500, 1000), position_of(999))
    assert read_numbers(kafka, topic) == list(range(1000))
    places = {(read.key, read.partition) for read in read_topic(kafka.address, topic)}
    assert len(places) == len({key for key, _ in places}) == 10


def test_next_publisher_continues_after_the_position(brokers: Brokers, topic: str) -> None:
    with KafkaPublisher(brokers, topic) as publisher:
        publisher.publish(changes(topic, 0, 3), ChangePosition(447, 440, 2))
    with KafkaPublisher(brokers, f"{topic}-other") as other:
        assert other.position is None
        other.publish(changes(topic, 0, 0), position_of(9))
    with KafkaPublisher(brokers, topic) as publisher:
        assert publisher.position == ChangePosition(447, 440, 2)


# S2-48, X-16
def test_deletion_is_a_tombstone_with_its_commit_ts_in_a_header(
    kafka: KafkaBroker, brokers: Brokers, topic: str
) -> None:
    with KafkaPublisher(brokers, topic) as publisher:
        publisher.publish(message(topic, 417318403368288260, 0, b"k", None), position_of(1))
    (read,) = read_topic(kafka.address, topic)
    assert (read.key, read.value) == (b"k", None)
    assert read.headers == (("tidb_commit_ts", b"417318403368288260"),)


_KILLED = """
import os, signal, sys
import pyarrow as pa
from binlake.feed.kafka import KafkaPublisher
from binlake.feed.manifest import ChangePosition
from binlake.config.sinkuri import KafkaConnection

address, topic, step = sys.argv[1:]

def die():
    os.kill(os.getpid(), signal.SIGKILL)

with KafkaPublisher(KafkaConnection((address,), partitions=3), topic) as publisher:
    producer = publisher._producer

    class Dying:
        def __getattr__(self, name):
            if name == step:
                if name == "commit_transaction":
                    return lambda *a: (producer.commit_transaction(*a), die())
                if name == "poll":
                    return lambda *a: (producer.flush(), die())
                die()
            return getattr(producer, name)

        def __len__(self):
            return len(producer)

    publisher._producer = Dying()
    rows = [{"topic": topic, "hash": n % 10, "key": b"%d" % (n % 10), "value": b"value %d" % n, "commit_ts": n}
            for n in range(100, 200)]
    publisher.publish(pa.Table.from_pylist(rows), ChangePosition(199, 198, 0))
"""


# killed before, between and after the steps of a transaction
@pytest.mark.parametrize("step", ["begin_transaction", "poll", "commit_transaction"])
def test_killed_publisher_leaves_each_message_once(kafka: KafkaBroker, brokers: Brokers, topic: str, step: str) -> None:
    with KafkaPublisher(brokers, topic) as publisher:
        publisher.publish(changes(topic, 0, 100), position_of(99))
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, kafka.address, topic, step], env=dict(os.environ), check=False
    )
    assert done.returncode == -signal.SIGKILL
    with KafkaPublisher(brokers, topic) as publisher:
        reached = publisher.position
        assert reached == (position_of(199) if step == "commit_transaction" else position_of(99))
        publisher.publish(changes(topic, reached.commit_ts + 1, 300), position_of(299))
    assert read_numbers(kafka, topic) == list(range(300))


def test_second_publisher_fences_the_first(kafka: KafkaBroker, brokers: Brokers, topic: str) -> None:
    with KafkaPublisher(brokers, topic) as first:
        first.publish(changes(topic, 0, 10), position_of(9))
        with KafkaPublisher(brokers, topic) as second:
            second.publish(changes(topic, 10, 20), position_of(19))
        with pytest.raises(Fenced):
            first.publish(changes(topic, 10, 20), position_of(19))
    with KafkaPublisher(brokers, topic) as third:
        assert third.position == position_of(19)
        third.publish(changes(topic, 20, 30), position_of(29))
    assert read_numbers(kafka, topic) == list(range(30))


def test_publisher_that_is_fenced_while_it_queues_messages_says_so(
    brokers: Brokers, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with KafkaPublisher(brokers, topic) as first:
        first.publish(changes(topic, 0, 10), position_of(9))
        with KafkaPublisher(brokers, topic) as second:
            second.publish(changes(topic, 10, 20), position_of(19))
        send = first._send

        def send_until_refused(messages: pa.Table) -> None:
            while True:
                send(messages)

        monkeypatch.setattr(first, "_send", send_until_refused)
        with pytest.raises(Fenced):
            first.publish(changes(topic, 10, 20), position_of(19))


def test_too_large_message_is_named_and_nothing_is_sent(kafka: KafkaBroker, brokers: Brokers, topic: str) -> None:
    with KafkaPublisher(replace(brokers, max_message_bytes=2000), topic) as publisher:
        large = message(topic, 11, 0, b"0", b"x" * 5000)
        named = rf"table=d\.t topic={topic} key=0 bytes=5001 max-message-bytes=2000"
        with pytest.raises(Permanent, match=named):
            publisher.publish(pa.concat_tables([changes(topic, 0, 10), large]), position_of(11))
    with KafkaPublisher(brokers, topic) as publisher:
        assert publisher.position is None
        publisher.publish(changes(topic, 0, 10), position_of(9))
    assert read_numbers(kafka, topic) == list(range(10))


def test_large_message_refused_by_the_broker_fails_the_whole_call(
    kafka: KafkaBroker, brokers: Brokers, topic: str
) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.create_topics([NewTopic(topic, 1, config={"max.message.bytes": "2000"})])[topic].result()
    with KafkaPublisher(brokers, topic) as publisher:
        large = message(topic, 11, 0, b"0", os.urandom(5000))
        with pytest.raises(Permanent, match=rf"table=d\.t topic={topic} key=0 bytes=5001"):
            publisher.publish(pa.concat_tables([changes(topic, 0, 10), large]), position_of(11))
    with KafkaPublisher(brokers, topic) as publisher:
        assert publisher.position is None
        publisher.publish(changes(topic, 0, 10), position_of(9))
    assert read_numbers(kafka, topic) == list(range(10))


def test_missing_topics_that_may_not_be_created_are_named(brokers: Brokers, topic: str) -> None:
    with (
        KafkaPublisher(replace(brokers, auto_create_topic=False), topic) as publisher,
        pytest.raises(Permanent, match="auto-create-topic"),
    ):
        publisher.publish(changes(topic, 0, 1), position_of(0))


def test_message_without_a_hash_goes_to_every_partition_in_order(
    kafka: KafkaBroker, brokers: Brokers, topic: str
) -> None:
    mark = pa.Table.from_pylist([{"topic": topic, "commit_ts": 5, "key": b"m", "value": b"mark 5"}], MESSAGE_SCHEMA)
    with KafkaPublisher(brokers, topic) as publisher:
        publisher.publish(pa.concat_tables([changes(topic, 0, 5), mark, changes(topic, 6, 9)]), position_of(8))
    found = [(read.partition, int((read.value or b"").split()[1])) for read in read_topic(kafka.address, topic)]
    assert found == sorted([(n % 10 % 3, n) for n in (0, 1, 2, 3, 4, 6, 7, 8)] + [(n, 5) for n in range(3)])


# S2-45: without transactions the producer is idempotent, and the position is stored after the messages
def test_without_transactions_the_position_follows_the_messages(
    kafka: KafkaBroker, brokers: Brokers, topic: str
) -> None:
    with KafkaPublisher(brokers, topic, transactions=False) as publisher:
        publisher.publish(changes(topic, 0, 100), position_of(99))
    with KafkaPublisher(brokers, topic, transactions=False) as publisher:
        assert publisher.position == position_of(99)
        publisher.publish(changes(topic, 100, 200), position_of(199))
    assert read_numbers(kafka, topic) == list(range(200))


@pytest.mark.soak
def test_restarted_broker_keeps_committed_messages(kafka: KafkaBroker, brokers: Brokers, topic: str) -> None:
    with KafkaPublisher(brokers, topic) as publisher:
        publisher.publish(changes(topic, 0, 100), position_of(99))
        kafka.stop()
        kafka.start()
        # The session with the former broker may be lost; the next publisher reads what is stored.
        with contextlib.suppress(Transient):
            publisher.publish(changes(topic, 100, 200), position_of(199))
    with KafkaPublisher(brokers, topic) as publisher:
        assert publisher.position in (position_of(99), position_of(199))
        if publisher.position == position_of(99):
            publisher.publish(changes(topic, 100, 200), position_of(199))
    assert read_numbers(kafka, topic) == list(range(200))


def test_unreachable_brokers_are_a_transient_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("binlake.feed.kafka.TIMEOUT_S", 1.0)
    with pytest.raises(Transient, match="feed=f"):
        KafkaPublisher(Brokers(("127.0.0.1:9",)), "f").__enter__()


def test_topic_of_positions_is_compacted(kafka: KafkaBroker, brokers: Brokers) -> None:
    from confluent_kafka.admin import ConfigResource, ResourceType

    with KafkaPublisher(brokers, "compacted"):
        admin = AdminClient({"bootstrap.servers": kafka.address})
        resource = ConfigResource(ResourceType.TOPIC, POSITIONS)
        assert admin.describe_configs([resource])[resource].result()["cleanup.policy"].value == "compact"
