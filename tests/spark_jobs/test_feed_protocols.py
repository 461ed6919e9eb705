"""Feeds in protocols without a registry, from the lake to a real Kafka: order, DDL, and the end of a window."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fed import FEED, Fed, windows
from history import History, shop
from support.openprotocol import decode_open
from support.topics import Read, read_topic

from binlake.errors import ConfigError
from binlake.feed.canaljson import WATERMARK
from binlake.pipeline import name_feed_sink
from binlake.spark_jobs.stages import publish
from binlake.wire import slave_binlog_pb2 as pb

if TYPE_CHECKING:
    from deploy.local.apicurio import Apicurio
    from deploy.local.kafka import KafkaBroker

PARTITIONS = 2


class Sent:
    """The history of the shop, sent window by window in one protocol to one topic."""

    def __init__(self, root: Path, kafka: KafkaBroker, registry: Apicurio, words: str, **feed: Any) -> None:
        self.history: History = shop()
        self.topic = f"{root.name}.all"
        uri = f"kafka://{kafka.address}/{self.topic}?partition-num={PARTITIONS}&protocol={words}"
        section = {"sink-uri": uri, "schema-registry": "", "dispatchers": [], **feed}
        self.fed = Fed(root / "lake", self.history.workload, kafka, registry, **section)
        for bounds in windows(self.history):
            self.fed.land(bounds.lo, bounds.hi)
            self.fed.send(bounds)

    def partitions(self) -> list[list[Read]]:
        reads = read_topic(self.fed.kafka.address, self.topic)
        return [[read for read in reads if read.partition == number] for number in range(PARTITIONS)]


# S2-45, U-27
def test_canal_json_in_one_topic_has_all_changes_in_order(
    tmp_path: Path, kafka: KafkaBroker, schema_registry: Apicurio
) -> None:
    sent = Sent(tmp_path, kafka, schema_registry, "canal-json&enable-tidb-extension=true")
    cuts, rows = sent.history.cuts, {}
    for number, reads in enumerate(sent.partitions()):
        messages = [json.loads(read.value or b"") for read in reads]
        assert {read.key for read in reads} == {b""}
        marks = [one["_tidb"]["watermarkTs"] for one in messages if one["type"] == WATERMARK]
        assert marks == cuts
        times = [one["_tidb"].get("commitTs", one["_tidb"].get("watermarkTs")) for one in messages]
        assert times == sorted(times)
        assert messages[-1]["type"] == WATERMARK
        assert any(one["isDdl"] for one in messages) == (number == 0)
        for one in (one for one in messages if one["table"] == "item" and not one["isDdl"]):
            [row] = one["data"]
            if one["type"] == "DELETE":
                del rows[row["id"]]
            else:
                assert (one["old"] is not None) == (one["type"] == "UPDATE") == (row["id"] in rows)
                rows[row["id"]] = row
    wanted = {row["id"]: row for row in sent.history.workload.rows["shop", "item"]}
    assert {key: row.get("stock", "5") for key, row in rows.items()} == {k: row["stock"] for k, row in wanted.items()}
    assert {key: row["name"] for key, row in rows.items()} == {key: row["name"] for key, row in wanted.items()}
    assert sent.fed.ctx.windows.find_greatest_hi("publish", name_feed_sink(FEED)) == cuts[-1]


def test_ddl_message_precedes_the_rows_in_its_form(
    tmp_path: Path, kafka: KafkaBroker, schema_registry: Apicurio
) -> None:
    sent = Sent(tmp_path, kafka, schema_registry, "canal-json", rules=["shop.item", "shop.temp"])
    messages = [json.loads(read.value or b"") for read in sent.partitions()[0]]
    ddls = [(one["type"], one["table"]) for one in messages if one["isDdl"]]
    assert ddls == [("CREATE", "item"), ("ALTER", "item"), ("CREATE", "temp"), ("TRUNCATE", "temp")]
    added = next(number for number, one in enumerate(messages) if one["type"] == "ALTER")
    assert "stock" in messages[added]["sql"]
    shown = [("stock" in one["mysqlType"], number > added) for number, one in enumerate(messages)
             if one["table"] == "item" and not one["isDdl"]]  # fmt: skip
    assert set(shown) == {(False, False), (True, True)}


# U-27
def test_raw_updates_keep_a_moved_row_in_one_message(
    tmp_path: Path, kafka: KafkaBroker, schema_registry: Apicurio
) -> None:
    words = "open-protocol&output-raw-change-event=true"
    sent = Sent(tmp_path, kafka, schema_registry, words, rules=["shop.item"])
    moved, resolved = [], []
    for reads in sent.partitions():
        events = [event for read in reads for event in decode_open(read.key, read.value or b"")]
        resolved.append([key["ts"] for key, _ in events if key["t"] == 3])
        values = [value for key, value in events if key["t"] == 1 and value]
        moved += [value for value in values if "p" in value and value["p"]["id"]["v"] != value["u"]["id"]["v"]]
    assert resolved == [sent.history.cuts] * PARTITIONS
    assert [(value["p"]["id"]["v"], value["u"]["id"]["v"]) for value in moved] == [(4, 4000)]


def test_drainer_messages_are_whole_transactions_in_one_partition(
    tmp_path: Path, kafka: KafkaBroker, schema_registry: Apicurio, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A transaction is one message, however its rows reach the encoder.
    monkeypatch.setattr("binlake.spark_jobs.engine.exchange.BATCH_ROWS", 1)
    sent = Sent(tmp_path, kafka, schema_registry, "slave-binlog")
    first, other = sent.partitions()
    assert not other
    assert {read.key for read in first} == {b""}
    binlogs = [pb.Binlog.FromString(read.value or b"") for read in first]
    assert all(one.commit_ts < two.commit_ts for one, two in pairwise(binlogs))
    # Every commit and every DDL of the history, including those on databases, has a message.
    assert len(binlogs) == len(sent.history.states) + 1
    assert [ts for ts, _ in sent.history.states] == [one.commit_ts for one in binlogs][1:]
    ddls = [one.ddl_data.ddl_query.decode().upper() for one in binlogs if one.type == pb.DDL]
    assert [words.split()[0] for words in ddls].count("CREATE") == 5
    counts = [[len(table.mutations) for table in one.dml_data.tables] for one in binlogs if one.type == pb.DML]
    assert counts[0] == [1, 1]
    mutations = [row for one in binlogs for table in one.dml_data.tables for row in table.mutations]
    ids = [
        [row.columns[0].int64_value for row in (one.change_row, one.row)] for one in mutations if one.type == pb.Update
    ]
    assert [4, 4000] in ids
    # A published window is not sent again.
    bounds = windows(sent.history)[-1]
    assert publish.run(sent.fed.ctx, bounds, FEED).state == "already"


def test_feed_of_whole_transactions_needs_one_topic(
    tmp_path: Path, kafka: KafkaBroker, schema_registry: Apicurio
) -> None:
    with pytest.raises(ConfigError, match="one topic"):
        Sent(tmp_path, kafka, schema_registry, "slave-binlog", dispatchers=[{"matcher": ["*.*"], "topic": "t"}])
