"""A feed from the lake to a real Kafka and a real registry: the compacted topics equal the tables (MISSION S2)."""

from __future__ import annotations

from collections import Counter

import pytest
from fed import FEED, Make, windows
from history import shop
from support.topics import read_topic
from support.workload import Workload, integer

from binlake.errors import ConfigError, ImmutableWindow, IncompleteWindow
from binlake.feed.manifest import EncodeManifest
from binlake.feed.registry import SchemaRefused
from binlake.feed.schemaids import SchemaIds
from binlake.feed.sink import open_sink
from binlake.pipeline import name_feed_sink
from binlake.spark_jobs.stages import encode, publish


# S2-01, S2-02, S2-03, S2-13, S2-36, S2-37, S2-48
def test_compacted_topics_equal_the_tables_at_the_feeds_position(make: Make) -> None:
    history = shop()
    fed = make(history.workload, rules=["shop.item"])
    for bounds in windows(history):
        fed.land(bounds.lo, bounds.hi)
        assert fed.send(bounds) > 0
    rows = [{k: v for k, v in row.items() if not k.startswith("_tidb")} for row in fed.compacted("item")]
    wanted = history.workload.rows["shop", "item"]
    assert {row["id"]: row["name"] for row in rows} == {int(row["id"] or 0): row["name"] for row in wanted}
    assert {row["id"]: row.get("stock", 5) for row in rows} == {int(r["id"] or 0): int(r["stock"] or 0) for r in wanted}
    moved = [fed.decode(read.value) for read in fed.read("item") if fed.decode(read.key)["id"] in (4, 4000)]
    assert [value and value["_tidb_op"] for value in moved].count(None) == 1
    assert not read_topic(fed.kafka.address, f"{fed.prefix}.shop.log")
    assert fed.ctx.windows.find_greatest_hi("publish", name_feed_sink(FEED)) == history.cuts[-1]


#
def test_reruns_send_each_message_once(make: Make) -> None:
    history = shop()
    fed = make(history.workload, rules=["shop.item"])
    bounds = windows(history)[0]
    fed.land(bounds.lo, bounds.hi)
    fed.send(bounds)
    before = Counter(fed.read("item"))
    assert max(before.values()) == 1
    assert encode.run(fed.ctx, bounds, FEED).state == "already"
    assert publish.run(fed.ctx, bounds, FEED).state == "already"
    # Imitate a kill between Kafka's commit and the lake's event.
    (event,) = fed.ctx.windows.read_events(stage="encode", state="done", sealed=True)
    feed = fed.ctx.replication.require_feed(FEED)
    with open_sink(feed, fed.ctx.replication.name) as sink, SchemaIds(feed) as ids:
        manifest = EncodeManifest.from_json(event["manifest"])
        assert publish.publish_window(fed.ctx.paths, manifest, sink, ids).messages == 0
    assert Counter(fed.read("item")) == before


# S2-38, S2-39
def test_refused_schema_stops_the_feed_after_the_last_good_message(make: Make) -> None:
    workload = Workload()
    workload.create_database("shop")
    workload.create_table("shop", "item", [integer("id")], ["id"])
    workload.begin().insert("shop", "item", id=1).commit()
    workload.add_column("shop", "item", integer("z", not_null=True))
    workload.begin().insert("shop", "item", id=2, z=0).commit()
    hi = workload.clock()
    fed = make(workload)
    bounds = fed.land(0, hi)
    encode.run(fed.ctx, bounds, FEED)
    with pytest.raises(SchemaRefused, match="item-value"):
        publish.run(fed.ctx, bounds, FEED)
    assert [fed.decode(read.value)["id"] for read in fed.read("item")] == [1]
    assert fed.ctx.windows.find_greatest_hi("publish", name_feed_sink(FEED)) is None
    fed.registry.set_compatibility("NONE")
    assert publish.run(fed.ctx, bounds, FEED).rows == 1
    assert sorted(fed.decode(read.value)["id"] for read in fed.read("item")) == [1, 2]


# S2-38, S2-39
def test_refused_schema_is_named_where_other_topics_follow_in_the_window(make: Make) -> None:
    """The lake's columns are read as dictionaries: those of the messages that are sent name the later topics too."""
    workload = Workload()
    workload.create_database("shop")
    for name in ("item", "other"):
        workload.create_table("shop", name, [integer("id")], ["id"])
    for number in range(1, 4):
        workload.begin().insert("shop", "item", id=number).commit()
    workload.add_column("shop", "item", integer("z", not_null=True))
    workload.begin().insert("shop", "item", id=4, z=0).commit()
    workload.begin().insert("shop", "other", id=1).commit()
    hi = workload.clock()
    fed = make(workload)
    bounds = fed.land(0, hi)
    encode.run(fed.ctx, bounds, FEED)
    with pytest.raises(SchemaRefused, match="item-value"):
        publish.run(fed.ctx, bounds, FEED)
    assert sorted(fed.decode(read.value)["id"] for read in fed.read("item")) == [1, 2, 3]
    fed.registry.set_compatibility("NONE")
    assert publish.run(fed.ctx, bounds, FEED).rows == 2
    assert [fed.decode(read.value)["id"] for read in fed.read("other")] == [1]


# S2-42
def test_new_table_that_would_share_a_topic_is_refused(make: Make) -> None:
    workload = Workload()
    workload.create_database("shop")
    for name in ("a-b", "a_b"):
        workload.create_table("shop", name, [integer("id")], ["id"])
    workload.begin().insert("shop", "a_b", id=1).commit()
    hi = workload.clock()
    fed = make(workload, dispatchers=[{"matcher": ["*.*"], "topic": "{schema}{table}"}], rules=["shop.*"])
    # `-` is allowed in a topic name; `:` is not.
    bounds = fed.land(0, hi)
    encode.run(fed.ctx, bounds, FEED)
    workload.create_table("shop", "a:b", [integer("id")], ["id"])
    workload.begin().insert("shop", "a:b", id=1).commit()
    later = make(workload, dispatchers=[{"matcher": ["*.*"], "topic": "{schema}{table}"}], rules=["shop.*"])
    with pytest.raises(ConfigError, match=r"shopa_b.*shop\.a"):
        encode.run(later.ctx, later.land(hi, workload.clock()), FEED)


# S2-15
def test_table_without_a_key_is_refused_by_name(make: Make) -> None:
    history = shop()
    fed = make(history.workload)
    with pytest.raises(ConfigError, match=r"shop\.log"):
        fed.send(fed.land(0, history.cuts[0]))


def test_publish_waits_for_encode_and_refuses_changed_messages(make: Make) -> None:
    history = shop()
    fed = make(history.workload, rules=["shop.item"])
    bounds = fed.land(0, history.cuts[0])
    with pytest.raises(IncompleteWindow):
        publish.run(fed.ctx, bounds, FEED)
    encode.run(fed.ctx, bounds, FEED)
    from deltalake import DeltaTable

    DeltaTable(fed.ctx.paths.locate_table(f"feed/{FEED}")).delete("seq = 0 AND start_ts % 2 = 0")
    with pytest.raises(ImmutableWindow):
        publish.run(fed.ctx, bounds, FEED)
