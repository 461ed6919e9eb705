"""Whatever dies or is unreachable while a feed is published, each message reaches a real Kafka.

With transactions: once, for readers of committed messages. Without: at least once, and in each partition no message
before one that must precede it.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fed import FEED, Fed
from support.killer import Killer
from support.publish_killer import STEPS
from support.topics import read_topic
from support.workload import Workload, integer, text

from binlake.errors import Transient
from binlake.feed import registry as registry_module
from binlake.feed.state import find_greatest_hi_of_feed, read_state
from binlake.spark_jobs.job.context import Bounds
from binlake.spark_jobs.stages import encode, publish
from deploy.local.ports import free_port

if TYPE_CHECKING:
    from deploy.local.apicurio import Apicurio
    from deploy.local.kafka import KafkaBroker

pytestmark = pytest.mark.process

WINDOWS, CHANGES = 4, 60


def publish_killer(fed: Fed, folder: Path, bounds: Bounds) -> Killer:
    """A process that publishes a feed and is killed at any requested step."""
    config = folder / "replication.json"
    raw = {"name": "demo", "lake": {"path": str(fed.lakehouse.root)}, **fed.lakehouse.config}
    config.write_text(json.dumps(raw), encoding="utf-8")
    return Killer("publish_killer", config, FEED, bounds.lo, bounds.hi)


def write_windows() -> tuple[Workload, list[int]]:
    """Windows of single-row changes; the n-th window writes n changes."""
    w = Workload()
    w.create_database("shop")
    w.create_table("shop", "item", [integer("id"), text("name")], ["id"])
    cuts = [0]
    for number in range(WINDOWS * CHANGES):
        there = next((dict(row) for row in w.rows["shop", "item"] if row["id"] == str(number % 10)), None)
        change = w.begin()
        if there is None:
            change.insert("shop", "item", id=number % 10, name=f"n{number}")
        else:
            change.update("shop", "item", there, name=f"n{number}")
        change.commit()
        if number % CHANGES == CHANGES - 1:
            cuts.append(w.clock())
    return w, cuts


def build_encoded_feed(root: Path, kafka: KafkaBroker, registry: Any, **feed: Any) -> tuple[Fed, Bounds]:
    """A feed whose windows are encoded but not published."""
    workload, cuts = write_windows()
    fed = Fed(root, workload, kafka, registry, **feed)
    for lo, hi in itertools.pairwise(cuts):
        encode.run(fed.ctx, fed.land(lo, hi), FEED)
    return fed, Bounds(0, cuts[-1])


def read_numbers(fed: Fed) -> list[tuple[int, int]]:
    """(partition, number) of the messages as they are stored."""
    found = [(read.partition, re.search(rb"n(\d+)", read.value or b"")) for read in fed.read("item")]
    return [(partition, int(name[1])) for partition, name in found if name is not None]


# R-31, S2-45
def test_publish_killed_at_every_step_sends_each_message_once(
    tmp_path: Path, kafka: KafkaBroker, schema_registry: Apicurio
) -> None:
    fed, bounds = build_encoded_feed(tmp_path / "lake", kafka, schema_registry)
    with publish_killer(fed, tmp_path, bounds) as killer:
        for step in STEPS:
            killer.kill_at(step, 1 if "position" in step or "record" in step or "former" in step else 2)
    before = len(read_numbers(fed))
    assert 0 < before < WINDOWS * CHANGES
    assert publish.run(fed.ctx, bounds, FEED).state == "done"
    found = read_numbers(fed)
    assert sorted(number for _, number in found) == list(range(WINDOWS * CHANGES))
    assert found == sorted(found)


# S2-45
def test_killed_publish_without_transactions_sends_each_message_in_order(
    tmp_path: Path, kafka: KafkaBroker, schema_registry: Apicurio
) -> None:
    fed, bounds = build_encoded_feed(tmp_path / "lake", kafka, schema_registry, transactions=False)
    with publish_killer(fed, tmp_path, bounds) as killer:
        # The third complete delivery is that of the second part's messages, before its position.
        for step, number in (("queued the messages", 2), ("delivered the messages", 3), ("before the record", 1)):
            killer.kill_at(step, number)
    publish.run(fed.ctx, bounds, FEED)
    found = read_numbers(fed)
    first = list(dict.fromkeys(found))
    assert sorted(number for _, number in first) == list(range(WINDOWS * CHANGES))
    assert first == sorted(first)
    assert len(found) > len(first), "a kill after the delivery must repeat delivered messages"


class Away(ThreadingHTTPServer):
    """A registry that assigns a number to each schema; it listens as soon as it is made."""

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Numbers)
        self.schemas: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class _Numbers(BaseHTTPRequestHandler):
    server: Away

    def do_GET(self) -> None:
        self._reply({})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["schema"] not in self.server.schemas:
            self.server.schemas.append(body["schema"])
        self._reply({"id": self.server.schemas.index(body["schema"]) + 1})

    def _reply(self, answer: object) -> None:
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


class _Somewhere:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"


# S2-44
def test_publish_waits_for_an_unreachable_registry_and_sends_nothing(
    tmp_path: Path, kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "_TRIES", 1)
    port = free_port()
    fed, bounds = build_encoded_feed(tmp_path / "lake", kafka, _Somewhere(port))
    with pytest.raises(Transient, match="schema registry does not answer"):
        publish.run(fed.ctx, bounds, FEED)
    assert not read_topic(kafka.address, f"{fed.prefix}.shop.item")
    assert find_greatest_hi_of_feed(fed.ctx.windows, "publish", FEED, read_state(fed.ctx.windows, FEED)) is None
    server = Away(port)
    try:
        assert publish.run(fed.ctx, bounds, FEED).rows == WINDOWS * CHANGES
    finally:
        server.close()
    assert len(read_topic(kafka.address, f"{fed.prefix}.shop.item")) == WINDOWS * CHANGES
