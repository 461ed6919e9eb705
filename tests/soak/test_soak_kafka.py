"""A feed to three brokers whose leaders are stopped, killed and restarted meanwhile: each message arrives once."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from support.topics import read_topic

from binlake.config.sinkuri import KafkaConnection as Brokers
from binlake.errors import Transient
from binlake.feed.kafka import POSITIONS, KafkaPublisher
from binlake.feed.manifest import ChangePosition
from binlake.feed.messages import MESSAGE_SCHEMA
from deploy.local.kafka import KafkaCluster

pytestmark = [pytest.mark.soak, pytest.mark.process]

TOPIC, PART, PARTS, TRIES = "moved", 200, 24, 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster() as brokers:
        yield brokers


def part(topic: str, first: int) -> pa.Table:
    rows = [
        {"topic": topic, "commit_ts": n, "hash": n % 10, "key": b"%d" % (n % 10), "value": b"%d" % n}
        for n in range(first, first + PART)
    ]
    return pa.Table.from_pylist(rows, MESSAGE_SCHEMA)


def leader_of(cluster: KafkaCluster, topic: str) -> int:
    admin = AdminClient({"bootstrap.servers": ",".join(cluster.addresses)})
    return int(admin.list_topics(topic, timeout=60).topics[topic].partitions[0].leader)


# R-31, S2-45
@pytest.mark.parametrize("transactions", [True, False])
def test_no_message_is_lost_or_repeated_when_leaders_move(cluster: KafkaCluster, transactions: bool) -> None:
    topic = f"{TOPIC}-{transactions}"
    brokers = Brokers(cluster.addresses, partitions=3, replication_factor=3)
    draw, end, down = random.Random(7), PARTS * PART, None
    tries = 0
    next_fault = PART * 3
    while True:
        tries += 1
        assert tries < TRIES
        try:
            with KafkaPublisher(brokers, topic, transactions=transactions) as publisher:
                reached = publisher.position
                first = 0 if reached is None else reached.commit_ts + 1
                while first < end:
                    publisher.publish(part(topic, first), ChangePosition(first + PART - 1, 0, 0))
                    first += PART
                    if first >= next_fault:
                        next_fault += PART * 4
                        if down is not None:
                            cluster.brokers[down].start()
                            down = None
                        # The first broker is the only controller.
                        leads = [leader_of(cluster, name) for name in (topic, POSITIONS)]
                        messages = [node for node in leads if node != 1] or [2]
                        down = draw.choice(messages)
                        (cluster.brokers[down].kill9 if draw.random() < 0.5 else cluster.brokers[down].stop)()
                break
        except Transient:
            continue
    if down is not None:
        cluster.brokers[down].start()
    messages = [(read.partition, int(read.value or b"")) for read in read_topic(",".join(cluster.addresses), topic)]
    once = list(dict.fromkeys(messages))
    assert once == sorted(once)
    assert sorted(number for _, number in once) == list(range(end))
    assert not transactions or messages == once
