"""Filters and routes through merge, convert and finalize on a real MariaDB: which rows arrive, renamed and counted."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from lakehouse import Lakehouse, Source, rows_of
from pyspark.sql import SparkSession
from support.mariadb import MariaDb, execute, rows
from support.workload import Col, Workload, integer, text

from binlake.errors import ConfigError, SchemaError
from binlake.rows.schema import mysqltypes as t
from binlake.spark_jobs.job.context import Bounds
from binlake.spark_jobs.job.stagerun import run_stage
from binlake.spark_jobs.stages import compact, convert, finalize, mirror
from binlake.statements.literal import quote_name

pytestmark = [pytest.mark.spark, pytest.mark.mariadb]

CHANNEL = 7
CONFIG: dict[str, Any] = {
    "block-allow-list": {"ignore-dbs": ["noise*"]},
    "filters": [{"schema-pattern": "s1", "table-pattern": "log", "events": ["delete", "update"], "action": "Ignore"}],
    "routes": [
        {"schema-pattern": "s?", "target-schema": "xs"},
        {"schema-pattern": "s?", "table-pattern": "t_*", "target-schema": "xs", "target-table": "t"},
    ],
    "expression-filter": [
        {"schema": "s1", "table": "log", "insert-value-expr": "price = 10.1 OR name IS NULL"},
        {"schema": "s1", "table": "plain", "update-old-value-expr": "id > 1", "update-new-value-expr": "name = 'x'"},
    ],
    "loopback": {"loopback-control": True, "channel-id": CHANNEL, "sync-ddl": True},
}


def history() -> tuple[Workload, list[int]]:
    """Two windows: shards s1.t_1 and s2.t_2 of xs.t, filtered kinds and rows, a noise table, Binlake's own
    transactions.
    """
    w, cuts = Workload(), []
    for name in ("s1", "s2", "noise1", "retl"):
        w.create_database(name)
    w.create_table(
        "retl", "_drainer_repl_mark", [integer("id"), integer("channel_id"), integer("val")], ["id", "channel_id"]
    )
    w.create_table("noise1", "n", [integer("id")], ["id"])
    price = Col("price", t.NEWDECIMAL, 5, 2)
    w.create_table("s1", "log", [integer("id"), text("name"), price], ["id"])
    w.create_table("s1", "plain", [integer("id"), text("name")], ["id"])
    w.create_table("s1", "t_1", [integer("id"), text("name")], ["id"])
    w.create_table("s2", "t_2", [integer("id"), text("name")], ["id"])
    txn = (
        w.begin()
        .insert("s1", "log", id=1, name="v1", price="10.10")
        .insert("s1", "log", id=2, name="v2", price="10.11")
    )
    txn.insert("s1", "log", id=3, name=None, price="1.00").insert("noise1", "n", id=1).commit()
    w.begin().update("s1", "log", {"id": "2", "name": "v2", "price": "10.11"}, name="ignored").commit()
    w.begin().delete("s1", "log", id=2, name="ignored", price="10.11").commit()
    w.begin().insert("s1", "t_1", id=1, name="a").insert("s2", "t_2", id=2, name="b").commit()
    w.begin().insert("s1", "plain", id=1, name="p").insert("s1", "plain", id=2, name="q").commit()
    mine = w.begin().insert("retl", "_drainer_repl_mark", id=0, channel_id=CHANNEL, val=1)
    mine.insert("s1", "plain", id=99, name="came from the other side").commit()
    other = w.begin().insert("retl", "_drainer_repl_mark", id=0, channel_id=CHANNEL + 1, val=1)
    other.insert("s1", "plain", id=3, name="another channel").commit()
    cuts.append(w.clock())
    # A widening DDL runs once, with the first shard; the other's rows have the default until that shard follows.
    w.add_column("s1", "t_1", integer("stock", default="5"))
    w.begin().insert("s1", "t_1", id=11, name="c", stock=1).insert("s2", "t_2", id=12, name="d").commit()
    w.add_column("s2", "t_2", integer("stock", default="5"))
    w.begin().update("s1", "plain", {"id": "1", "name": "p"}, name="x").commit()
    w.begin().update("s1", "plain", {"id": "2", "name": "q"}, name="x").commit()
    w.drop_table("s2", "t_2")
    w.truncate("s1", "plain")
    w.begin().insert("s1", "plain", id=5, name="e").commit()
    cuts.append(w.clock())
    return w, cuts


class Sink:
    def __init__(self, spark: SparkSession, root: Path, server: MariaDb, workload: Workload, config: Any) -> None:
        names = ("xs", "s1", "s2", "retl", "tidb_binlog")
        execute(server, *(f"DROP DATABASE IF EXISTS {quote_name(name)}" for name in names))
        address = {"host": "127.0.0.1", "port": server.port, "user": server.user, "password": server.password}
        target = {"db-type": "mariadb", **address}
        self.lakehouse = Lakehouse(spark, root, Source.of_workload(workload), {**config, "target": target})
        self.ctx = self.lakehouse.context()

    def detail(self, bounds: Bounds) -> dict[str, Any]:
        events = self.ctx.windows.read_events(stage="merge", within=(bounds.lo, bounds.hi))
        return json.loads(next(e["detail"] for e in events if e["state"] == "done"))

    def apply(self, bounds: Bounds) -> dict[str, Any]:
        """Land the window and apply it to the target; return the lineage of its tables."""
        self.lakehouse.land(bounds.lo, bounds.hi)
        compact.run(self.ctx, bounds)
        convert.run(self.ctx, bounds)
        return lineage_tables(finalize.run(self.ctx, bounds).detail)


def lineage_tables(detail: Any) -> dict[str, Any]:
    """By table: its columns, and the columns of the source tables."""
    return {
        one["table"]: (
            dict(one["columns"]),
            {f"{s['db']}.{s['table']}": [name for name, _ in s["columns"]] for s in one["sources"]},
        )
        for one in detail["lineage"]["wrote"]
    }


def test_rows_and_ddl_follow_filters_and_routes(spark: SparkSession, mariadb: MariaDb, tmp_path: Path) -> None:
    # S4-03 S4-04 S4-05 S4-06 S4-07 R-14 R-15 R-47
    workload, cuts = history()
    sink = Sink(spark, tmp_path, mariadb, workload, CONFIG)
    first, second = Bounds(0, cuts[0]), Bounds(cuts[0], cuts[1])
    told = sink.apply(first)
    shards = {"id": "int", "name": "varchar(64)"}
    assert told["t"] == (shards, {"s1.t_1": ["id", "name"], "s2.t_2": ["id", "name"]})
    assert told["log"][1] == {"s1.log": ["id", "name", "price"]}

    # The rows with price = 10.1 and with a NULL name are dropped; the ignored update and delete leave the insert.
    assert rows(mariadb, "SELECT id, name, price FROM xs.log") == [(2, "v2", Decimal("10.11"))]
    assert rows(mariadb, "SELECT * FROM xs.t ORDER BY id") == [(1, "a"), (2, "b")]
    assert rows(mariadb, "SELECT id FROM xs.plain ORDER BY id") == [(1,), (2,), (3,)]
    assert sink.detail(first)["filtered"] == {
        "event_filter": 2, "expression_filter": 2, "loopback": 1, "table_filter": 2,
    }  # fmt: skip
    marks = rows(mariadb, "SELECT channel_id, channel_info, val > 0 FROM retl._drainer_repl_mark")
    assert marks == [(CHANNEL, "demo", 1)]

    # seq is assigned before filters; the row keeps the source's names.
    written = rows_of(sink.ctx.paths.locate_table("mutation"))
    found = {(r["source_db"], r["source_table"], r["db"], r["table"]) for r in written}
    assert found == {
        ("s1", "log", "xs", "log"), ("s1", "plain", "xs", "plain"), ("s1", "t_1", "xs", "t"), ("s2", "t_2", "xs", "t"),
    }  # fmt: skip
    numbers = [r["seq"] for r in written if r["source_table"] == "log"]
    assert numbers == [1]

    # One shard was dropped inside the window.
    wider = {**shards, "stock": "int"}
    assert sink.apply(second)["t"] == (wider, {"s1.t_1": ["id", "name", "stock"]})
    assert rows(mariadb, "SELECT * FROM xs.t ORDER BY id") == [(1, "a", 5), (2, "b", 5), (11, "c", 1), (12, "d", 5)]
    # TRUNCATE was routed; an UPDATE is dropped only if both parts of its filter are TRUE.
    assert rows(mariadb, "SELECT * FROM xs.plain") == [(5, "e")]
    updates = [r["key"] for r in rows_of(sink.ctx.paths.locate_table("mutation")) if r["op"] == "update"]
    assert updates == ['["1"]']
    ddls = {r["query"]: r for r in rows_of(sink.ctx.paths.locate_table("ddl")) if r["commit_ts"] > cuts[0]}
    texts = [(r["sql"], r["decision"]) for r in sorted(ddls.values(), key=lambda r: r["commit_ts"])]
    assert texts[0][0].startswith("ALTER TABLE `xs`.`t` ADD COLUMN `stock`")
    assert [decision for _, decision in texts] == ["apply", "skip", "skip", "apply"]
    assert texts[3][0].rstrip(";") == "TRUNCATE TABLE `xs`.`plain`"
    assert [alert["query"].rstrip(";") for alert in sink.detail(second)["alerts"]] == ["DROP TABLE `t_2`"]
    columns, sources = lineage_tables(mirror.run(sink.ctx, second).detail)["t"]
    delta = {"id": "integer", "name": "string", "stock": "integer", "_commit_ts": "long", "_rowkey": "string",
             "_copy": "integer", "_text": "map"}  # fmt: skip
    assert (columns, sources) == (delta, {"s1.t_1": ["id", "name", "stock"]})
    mirrored = {r["id"]: r for r in rows_of(sink.ctx.paths.locate_mirror("xs", "t"))}
    assert sorted(mirrored) == [1, 2, 11, 12]


def test_two_shards_with_one_key_or_an_unknown_column_stop_by_name(spark: SparkSession, tmp_path: Path) -> None:
    # S4-03 S4-06 R-15
    w = Workload()
    for name in ("s1", "s2"):
        w.create_database(name)
        w.create_table(name, "t_1", [integer("id"), text("name")], ["id"])
    w.begin().insert("s1", "t_1", id=1, name="a").insert("s2", "t_1", id=1, name="b").commit()
    window = Bounds(0, w.clock())
    route = {"schema-pattern": "s*", "table-pattern": "t_*", "target-schema": "xs", "target-table": "t"}
    source = Source.of_workload(w)

    clashing = Lakehouse(spark, tmp_path / "a", source, {"routes": [route]})
    clashing.land(window.lo, window.hi)
    with pytest.raises(SchemaError, match=r"key=#43de3a417d75 sources=s1\.t_1,s2\.t_1"):
        run_stage("mirror", clashing.context(), window)

    told_apart = {**route, "extract-schema": {"schema-regexp": "s(.)", "target-column": "c_schema"}}
    extracting = Lakehouse(spark, tmp_path / "b", source, {"routes": [told_apart]})
    extracting.land(window.lo, window.hi)
    told = mirror.run(extracting.context(), window).detail["lineage"]["wrote"]
    assert [(one["table"], one["copied"], len(one["sources"])) for one in told] == [("t", ["id", "name"], 2)]
    rows_apart = rows_of(extracting.context().paths.locate_mirror("xs", "t"), ["id", "name", "c_schema"])
    assert sorted(row["c_schema"] + row["name"] for row in rows_apart) == ["1a", "2b"]

    unknown = {"expression-filter": [{"schema": "s1", "table": "t_1", "insert-value-expr": "missing > 1"}]}
    with pytest.raises(ConfigError, match=r"no column `missing` \[table=s1\.t_1 expression=missing > 1\]"):
        Lakehouse(spark, tmp_path / "c", source, unknown).land(window.lo, window.hi)
