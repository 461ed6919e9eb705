"""`make bench-feed`: messages/s and MB/s of a feed's stages, each compared with its floor in the same run.

encode: rows of `mutation` to Avro messages, compared with fastavro writing the same rows from prepared Python objects.
The stage also writes them to the lake and digests them. publish: a sealed window from the lake to a real Kafka, with
schemas from a real registry, compared with a producer with the same settings that sends the same bytes from prepared
lists. Compare ratios.
"""

from __future__ import annotations

import gc
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Producer
from feed_load import AVRO, FeedRows, build_loads

from binlake.common import rowhash
from binlake.config.feed import FeedSection
from binlake.config.protocols import (
    CanalJsonOptions,
    DebeziumOptions,
    OpenProtocolOptions,
    Options,
    SlaveBinlogOptions,
)
from binlake.feed.kafka import KafkaPublisher
from binlake.feed.manifest import EncodeManifest
from binlake.feed.schemaids import SchemaIds
from binlake.feed.sealed import find_last_position, read_sealed, split_changes
from binlake.lake.paths import LakePaths
from binlake.lake.tables import build_message_table
from binlake.rules.tables import TableMatcher
from binlake.spark_jobs.job.lake import commit_parts, ensure_table
from binlake.spark_jobs.shared.messages import Encoded, EncodeTask
from binlake.spark_jobs.stages.publish import TRANSACTION_ROWS, publish_window
from deploy.local.apicurio import Apicurio
from deploy.local.kafka import KafkaBroker

REPEATS = int(os.environ.get("ROUNDS", "5"))
PARTITIONS = 3
PROTOCOLS: dict[str, Options] = {
    "canal-json": CanalJsonOptions(extension=True),
    "open-protocol": OpenProtocolOptions(),
    "debezium": DebeziumOptions(schemas=False),
    "slave-binlog": SlaveBinlogOptions(),
}


@dataclass
class BestRun:
    """The least CPU and wall time of some runs."""

    cpu: float = float("inf")
    wall: float = float("inf")

    def run(self, work: Callable[[], object]) -> None:
        """Run `work` once more."""
        gc.collect()
        cpu, wall = time.process_time(), time.perf_counter()
        work()
        self.cpu = min(self.cpu, time.process_time() - cpu)
        self.wall = min(self.wall, time.perf_counter() - wall)


def main() -> int:
    """Print a line for each stage and load."""
    pa.set_cpu_count(1)
    rows = build_loads()
    for load in rows:
        measure_encoding(load)
        measure_protocols(load)
    with KafkaBroker() as kafka, Apicurio() as registry:
        for load in rows:
            measure_publishing(load, kafka, registry)
    return 0


def measure_encoding(load: FeedRows) -> None:
    """Print the rows per second of CPU of one core."""
    ours, stage, floor = BestRun(), BestRun(), BestRun()
    values = build_ready_values(load)
    with tempfile.TemporaryDirectory(prefix="binlake-feed-") as folder:
        for number in range(REPEATS):
            ours.run(partial(encode_all, load))
            stage.run(partial(write_messages, load, f"{folder}/{number}", "f"))
            floor.run(partial(write_by_fastavro, values))
    size = sum(map(len, write_by_fastavro(values)))
    print(
        f"encode  {load.name:<18} {load.count / ours.cpu:>9,.0f} rows/s {size / ours.cpu / 1e6:>6,.0f} MB/s"
        f"   with lake and digest {load.count / stage.cpu:>9,.0f} rows/s"
        f"   fastavro {load.count / floor.cpu:>9,.0f} rows/s: {floor.cpu / ours.cpu:.2f} times as fast",
        flush=True,
    )


def measure_protocols(load: FeedRows) -> None:
    """Print the rows per second of CPU of one core for the protocols without a registry."""
    for name, options in PROTOCOLS.items():
        ours = BestRun()
        for _ in range(REPEATS):
            ours.run(partial(encode_all, load, options))
        encoder = load.build_encoder(options=options)
        size = sum(pc.sum(pc.binary_length(encoder.encode(batch)["value"])).as_py() for batch in load.batches)
        speed = f"{load.count / ours.cpu:>9,.0f} rows/s {size / ours.cpu / 1e6:>6,.0f} MB/s"
        print(f"encode  {load.name:<18} {speed}   {name}", flush=True)


def encode_all(load: FeedRows, options: Options = AVRO) -> None:
    """Encode all rows, as the stage encode does."""
    encoder = load.build_encoder(options=options)
    for batch in load.batches:
        encoder.encode(batch)


def build_ready_values(load: FeedRows) -> list[tuple[Any, Any]]:
    """(parsed schema, the object for fastavro to write) of each key and value, in turn."""
    encoder, values = load.build_encoder(), []
    for batch in load.batches:
        messages = encoder.encode(batch)
        parsed = {name: fastavro.parse_schema(json.loads(text)) for name, text in encoder.collect_schemas().items()}
        for side in ("key", "value"):
            for schema, body in zip(messages[f"{side}_schema"].to_pylist(), messages[side].to_pylist(), strict=True):
                if body is not None:
                    value = fastavro.schemaless_reader(io.BytesIO(body), parsed[schema], None)
                    values.append((parsed[schema], value))
    return values


def write_by_fastavro(values: list[tuple[Any, Any]]) -> list[bytes]:
    """Write the values with fastavro; returns the message bodies."""
    bodies = []
    for schema, value in values:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, schema, value)
        bodies.append(stream.getvalue())
    return bodies


def write_messages(load: FeedRows, folder: str, feed: str) -> Encoded:
    """Encode and write the messages, as the stage encode does in the driver."""
    encoder = load.build_encoder(f"{load.name.split()[0]}.{{schema}}.{{table}}")
    table = LakePaths(folder).locate_table(build_message_table(feed).name)
    task = EncodeTask(encoder, TableMatcher(("*.*",)), feed, "0-1", table, whole=False)
    return task.write(iter(load.batches))


def measure_publishing(load: FeedRows, kafka: KafkaBroker, registry: Apicurio) -> None:
    """Print the messages per second of wall time and of this process's CPU (including the producer's threads)."""
    uri = f"kafka://{kafka.address}/t?protocol=avro&enable-tidb-extension=true&partition-num={PARTITIONS}"
    feed = FeedSection.model_validate({"name": "f", "sink-uri": uri, "schema-registry": registry.url})
    assert feed.sink.kafka is not None
    whole, sending, floor = BestRun(), BestRun(), BestRun()
    with tempfile.TemporaryDirectory(prefix="binlake-feed-") as folder, SchemaIds(feed) as ids:
        paths, manifest = seal_window(load, folder)
        parts = [
            messages
            for part in read_sealed(paths, manifest, None)
            for messages in split_changes(part, TRANSACTION_ROWS)
        ]
        parts = [ids.add_headers(messages, manifest.schemas) for messages in parts]
        ready = [message for part in parts for message in build_ready_messages(part)]
        for number in range(REPEATS):
            with KafkaPublisher(feed.sink.kafka, f"{load.name}.{number}") as out:
                out.ensure_topics({ready[0].topic})
                whole.run(partial(publish_window, paths, manifest, out, ids))
            with KafkaPublisher(feed.sink.kafka, f"{load.name}.{number}.sending") as out:
                out.ensure_topics({ready[0].topic})
                sending.run(partial(send_parts, out, parts))
            with KafkaPublisher(feed.sink.kafka, f"{load.name}.{number}.floor") as out:
                floor.run(partial(send_ready, out._producer, ready))
    count, size = len(ready), sum(len(message.key) + len(message.value or b"") for message in ready)
    print(
        f"publish {load.name:<18} {count / whole.wall:>9,.0f} messages/s {size / whole.wall / 1e6:>6,.0f} MB/s"
        f"   prepared bytes {count / floor.wall:>9,.0f} messages/s {size / floor.wall / 1e6:>6,.0f} MB/s"
        f"   CPU us a message {whole.cpu / count * 1e6:.2f}, of it sending {sending.cpu / count * 1e6:.2f},"
        f" prepared bytes {floor.cpu / count * 1e6:.2f}: {sending.cpu / floor.cpu:.2f} of it,"
        f" {whole.cpu / floor.cpu:.2f} with the lake read, its digest and the headers",
        flush=True,
    )


def seal_window(load: FeedRows, folder: str) -> tuple[LakePaths, EncodeManifest]:
    """Encode the rows into a lake, as the stage encode does, and return the sealed manifest."""
    paths, table = LakePaths(folder), build_message_table("f")
    ensure_table(paths, table)
    encoded = write_messages(load, folder, "f")
    commit_parts(paths, table, encoded.parts, [], {})
    digest = rowhash.compute_digest(encoded.fold)
    return paths, EncodeManifest("r", "f", 0, 1, encoded.fold.count, 0, digest, encoded.schemas)


class Ready(NamedTuple):
    """A message in the form in which it is sent."""

    topic: str
    key: bytes
    value: bytes | None
    partition: int
    headers: list[tuple[str, str | bytes | None]]


def build_ready_messages(part: pa.Table) -> Iterator[Ready]:
    """All messages of `part`, which has its headers."""
    columns = (part[name].to_pylist() for name in ("topic", "key", "value", "hash", "commit_ts"))
    for topic, key, value, number, commit_ts in zip(*columns, strict=True):
        headers: list[tuple[str, str | bytes | None]] = []
        if value is None:
            headers = [("tidb_commit_ts", str(commit_ts).encode())]
        yield Ready(topic, key, value, number % PARTITIONS, headers)


def send_parts(out: KafkaPublisher, parts: list[pa.Table]) -> None:
    """Publish each part in one transaction, as the stage publish does."""
    for part in parts:
        out.publish(part, find_last_position(part))


def send_ready(producer: Producer, ready: list[Ready]) -> None:
    """Send the messages with the least possible work, in transactions as long as those of publish."""
    for first in range(0, len(ready), TRANSACTION_ROWS):
        producer.begin_transaction()
        for topic, key, value, partition, headers in ready[first : first + TRANSACTION_ROWS]:
            while True:
                try:
                    if headers:
                        producer.produce(topic, value, key, partition, headers=headers)
                    else:
                        producer.produce(topic, value, key, partition)
                    break
                except BufferError:
                    producer.poll(0.1)
        while len(producer):
            producer.poll(0.1)
        producer.commit_transaction(30)


if __name__ == "__main__":
    raise SystemExit(main())
