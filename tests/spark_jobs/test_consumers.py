"""The consumers of examples/ and `binlake feed read` on a genuine capture: their result equals the table."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lakehouse import Lakehouse, Source
from support.topics import read_topic

from binlake.cli import run
from binlake.feed.kafka import POSITIONS
from binlake.spark_jobs.stages import encode, publish
from binlake.testkit.captures import read_expected_states
from binlake.testkit.captures.capture import Capture

if TYPE_CHECKING:
    from deploy.local.apicurio import Apicurio
    from deploy.local.kafka import KafkaBroker

REPOSITORY = Path(__file__).parents[2]
CAPTURE = REPOSITORY / "tests" / "captures" / "shard"
TABLES = ("shard_1.t_1", "shard_1.o_2")
Row = tuple[str | None, ...]


def consume(program: str, **arguments: object) -> None:
    words = [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, str(REPOSITORY / "examples" / program), *words]
    subprocess.run(command, check=True, timeout=120)


def rows_of(database: Path, table: str, columns: list[str]) -> list[Row]:
    names = ", ".join(f'"{name}"' for name in columns)
    with sqlite3.connect(database) as opened:
        found = opened.execute(f'SELECT {names} FROM "{table}"').fetchall()
    return sorted((tuple(None if one is None else str(one) for one in row) for row in found), key=repr)


def expected() -> dict[str, tuple[list[str], list[Row]]]:
    """Columns and rows of TABLES at the end of the capture."""
    last = list(read_expected_states(Capture(CAPTURE)))[-1]
    found = {f"{content['schema']}.{content['name']}": content for content in last.contents}
    return {
        name: (found[name]["columns"], sorted((tuple(row) for row in found[name]["rows"]), key=repr)) for name in TABLES
    }


class World:
    """A lake of the capture, sent in two windows to topics and to files; consumers have read the first window."""

    def __init__(self, root: Path, kafka: KafkaBroker, registry: Apicurio) -> None:
        registry.set_compatibility("NONE")
        self.files, self.database, self.kafka, self.registry = root / "files", root / "copy.db", kafka, registry
        words = "protocol=avro&enable-tidb-extension=true&avro-bigint-unsigned-handling-mode=string"
        topics = [{"matcher": ["*.*"], "topic": "consumers.{schema}.{table}"}]
        own = {"rules": list(TABLES), "dispatchers": topics, "schema-registry": registry.url}
        self.uris = {
            "topics": f"kafka://{kafka.address}/t?{words}&partition-num=3",
            "files": f"file://{self.files}?{words}",
        }
        feeds = [{"name": name, "sink-uri": uri, **own} for name, uri in self.uris.items()]
        config = {"name": "consumers", "feed": feeds, "mirror": {"enabled": False}}
        lakehouse = Lakehouse(None, root / "lake", Source.of_capture(CAPTURE), config)
        binlogs = lakehouse.source.binlogs
        self.cut, self.last = binlogs[len(binlogs) // 2].commit_ts, binlogs[-1].commit_ts
        self.sent = [self._send(lakehouse, lo, hi) for lo, hi in ((0, self.cut), (self.cut, self.last))]

    def _send(self, lakehouse: Lakehouse, lo: int, hi: int) -> int:
        bounds, ctx = lakehouse.land(lo, hi), lakehouse.context()
        counts = set()
        for name in self.uris:
            encode.run(ctx, bounds, name)
            counts.add(publish.run(ctx, bounds, name).rows)
        if lo == 0:
            # With the next window, the consumers continue where they ended.
            self.consume(TABLES[0])
        (count,) = counts
        return count

    def consume(self, table: str) -> None:
        consume("consume_avro_files.py", folder=self.files, table=table, database=self.database)
        consume("consume_avro_topic.py", brokers=self.kafka.address, registry=self.registry.url,
                topic=f"consumers.{table}", database=self.database)  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, kafka: KafkaBroker, schema_registry: Apicurio) -> World:
    return World(tmp_path_factory.mktemp("consumers"), kafka, schema_registry)


# S0-04, S0-08, S2-01, S2-13, S2-30, S2-36, S2-48, R-31
def test_consumers_of_topics_and_files_reproduce_the_tables(world: World) -> None:
    for table, (columns, rows) in expected().items():
        world.consume(table)
        assert rows_of(world.database, f"consumers.{table}", columns) == rows
        assert rows_of(world.database, table, columns) == rows


#
def test_position_of_a_feed_is_the_end_of_its_last_window(world: World) -> None:
    own = [read.value for read in read_topic(world.kafka.address, POSITIONS) if read.key == b"consumers.topics"]
    ends = [int(value.split(b"-")[0]) for value in own if value]
    assert (ends[0], ends[-1]) == (world.cut, world.last)


def lines(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run(["feed", "read", *words, "--output", "json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


# S2-10, S2-48, DESIGN 3.12
def test_feed_read_shows_the_same_for_topic_and_files(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    table, registry = TABLES[0], ["--schema-registry", world.registry.url]
    topic = world.uris["topics"].replace("/t?", f"/consumers.{table}?")
    found = [lines(capsys, topic, *registry), lines(capsys, world.uris["files"], "--table", table)]
    both = [
        Counter(json.dumps([line["commit_ts"], line["op"], line["key"], line["value"]]) for line in side)
        for side in found
    ]
    assert both[0] == both[1]
    assert {line["op"] for line in found[0]} == {"c", "u", "d"}
    late = lines(capsys, topic, *registry, "--from", str(world.cut), "--to", str(world.last))
    # Each partition is ordered; the order between partitions is up to Kafka.
    places = {line["place"] for line in found[0] if int(line["commit_ts"]) > world.cut}
    assert {line["place"] for line in late} == places
    assert 0 < len(late) == len(places) < len(found[0])
    assert len(lines(capsys, topic, *registry, "--limit", "3")) == 3


def test_feed_read_reports_what_is_missing(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    address, registry = world.kafka.address, ["--schema-registry", world.registry.url]
    for words, error in (
        ([f"kafka://{address}/nowhere?protocol=avro", *registry], "the topic does not exist"),
        ([f"kafka://{address}/nowhere?protocol=avro"], "need their schema registry"),
        ([f"kafka://{address}?protocol=avro", *registry], "the URI names no topic"),
        ([f"file://{world.files}/shop?protocol=avro"], "no window of a feed is complete in it"),
        ([], "there is nothing to read"),
    ):
        assert run(["feed", "read", *words]) == 1
        assert error in capsys.readouterr().err
