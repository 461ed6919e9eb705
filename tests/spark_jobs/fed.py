"""A lake with one feed to a real Kafka and a real registry, whose windows are landed by hand."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
from history import History
from lakehouse import Lakehouse, Source
from support.topics import Read, read_topic
from support.workload import Workload

from binlake.feed.registry import SchemaRegistry
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.stages import encode, publish

if TYPE_CHECKING:
    from deploy.local.apicurio import Apicurio
    from deploy.local.kafka import KafkaBroker

FEED = "kafka-avro"


class Fed:
    """A lake with one feed whose topics have names unique to this test."""

    def __init__(self, root: Path, workload: Workload, kafka: KafkaBroker, registry: Apicurio, **feed: Any) -> None:
        self.kafka, self.registry = kafka, registry
        self.prefix = root.parent.name
        section = {
            "name": FEED,
            "sink-uri": f"kafka://{kafka.address}/t?protocol=avro&enable-tidb-extension=true&partition-num=2",
            "schema-registry": registry.url,
            "dispatchers": [{"matcher": ["*.*"], "topic": f"{self.prefix}.{{schema}}.{{table}}"}],
            **feed,
        }
        # Kafka stores the position by replication and feed, so the replication's name must be unique too.
        config = {"feed": [section], "mirror": {"enabled": False}, "name": self.prefix.lower()[:60].strip("_")}
        self.lakehouse = Lakehouse(None, root, Source.of_workload(workload), config)
        self.ctx: StageContext = self.lakehouse.context()

    def land(self, lo: int, hi: int) -> Bounds:
        return self.lakehouse.land(lo, hi)

    def send(self, bounds: Bounds) -> int:
        encode.run(self.ctx, bounds, FEED)
        return publish.run(self.ctx, bounds, FEED).rows

    def read(self, table: str) -> list[Read]:
        return read_topic(self.kafka.address, f"{self.prefix}.shop.{table}")

    def decode(self, body: bytes | None) -> Any:
        if body is None:
            return None
        with SchemaRegistry(self.registry.url) as registry:
            schema = fastavro.parse_schema(json.loads(registry.fetch_schema(int.from_bytes(body[1:5], "big"))))
        assert body[0] == 0
        return fastavro.schemaless_reader(io.BytesIO(body[5:]), schema, None)

    def compacted(self, table: str) -> list[dict[str, Any]]:
        rows = {}
        for read in self.read(table):
            key = json.dumps(self.decode(read.key))
            rows[key] = self.decode(read.value)
        return [row for row in rows.values() if row is not None]


Make = Callable[..., Fed]
"""The fixture `make`, called with a workload and keys of the feed's section."""


def windows(history: History) -> list[Bounds]:
    return [Bounds(lo, hi) for lo, hi in zip([0, *history.cuts], history.cuts, strict=False)]
