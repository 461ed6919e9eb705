"""The datasets of a window carry the names that the OpenLineage specification gives, and no password."""

from __future__ import annotations

from typing import Any

import pytest

from binlake.config import Replication
from binlake_airflow import lineage

TABLES = [["shop", "item"], ["shop", "line"]]
LAKE = "/lake/orders"


def replication(**sections: Any) -> Replication:
    target = {"db-type": "mariadb", "host": "db", "port": 3307, "password": "s3cret"}
    parts = {"source": {"pd-urls": "http://pd:2379"}, "lake": {"path": "/lake"}, "target": target, **sections}
    return Replication.model_validate({"name": "orders", **parts})


def result(stage: str, state: str = "done", **detail: Any) -> dict[str, Any]:
    return {"stage": stage, "state": state, "lo": "1", "hi": "9", "rows": 3, "detail": detail}


def datasets(found: Any) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    inputs, outputs = ([(one.namespace, one.name) for one in side] for side in (found.inputs, found.outputs))
    return inputs, outputs


def lake(*tables: str) -> list[tuple[str, str]]:
    return [("file", f"{LAKE}/{table}") for table in tables]


def source(*names: str, namespace: str = "tidb://pd:2379") -> list[tuple[str, str]]:
    return [(namespace, name) for name in names]


def test_each_stage_reads_what_the_one_before_it_wrote() -> None:
    target = [("mysql://db:3307", "shop.item"), ("mysql://db:3307", "shop.line")]
    mirrors = lake("mirror/shop/item", "mirror/shop/line")
    ways = {
        "plan": ([], []),
        "land": (source("binlog"), lake("binlog", "schema_change")),
        "merge": (lake("binlog", "schema_change"), lake("mutation", "ddl")),
        "compact": (lake("mutation", "ddl"), lake("change")),
        "convert": (lake("change", "mutation", "ddl"), lake("statement")),
        "finalize": (lake("statement") + source("shop.item", "shop.line"), target),
        "mirror": (lake("mutation", "ddl") + source("shop.item", "shop.line"), mirrors),
    }
    for stage, way in ways.items():
        detail = {"changed": TABLES} if stage == "mirror" else {}
        assert datasets(lineage.of_stages(replication(), [result(stage, **detail)], TABLES)) == way, stage


def test_a_fused_window_shows_its_ends_and_says_where_they_stand() -> None:
    stages = [result(name) for name in ("plan", "land", "merge", "compact", "convert", "finalize")]
    found = lineage.of_stages(replication(), [*stages, result("mirror", changed=TABLES[:1])], TABLES)
    inputs, outputs = datasets(found)
    assert inputs == source("binlog", "shop.item", "shop.line")
    assert ("mysql://db:3307", "shop.line") in outputs
    assert lake("mirror/shop/item")[0] in outputs
    by_name = {one.name: one for one in [*found.inputs, *found.outputs]}
    for name in ("shop.item", f"{LAKE}/mirror/shop/item"):
        assert by_name[name].facets["version"].datasetVersion == "9"
    assert by_name[f"{LAKE}/mutation"].outputFacets["outputStatistics"].rowCount == 3
    assert by_name[f"{LAKE}/statement"].facets["storage"].storageLayer == "delta"
    assert "s3cret" not in str(found)


def test_what_wrote_nothing_has_no_datasets() -> None:
    for state in ("blocked", "waiting", "skipped", "already"):
        assert datasets(lineage.of_stages(replication(), [result("finalize", state)], TABLES)) == ([], [])


def test_the_source_is_named_as_it_can_be_met_elsewhere() -> None:
    def named(**sections: Any) -> list[tuple[str, str]]:
        inputs, _ = datasets(lineage.of_stages(replication(**sections), [result("finalize")], TABLES[:1]))
        return inputs[1:]

    sql = {"sql": {"host": "tidb", "port": 4001, "password": "s3cret"}}
    assert named(source=sql) == source("shop.item", namespace="mysql://tidb:4001")
    assert named(source={"cluster-id": "77"}) == source("shop.item", namespace="tidb://77")
    assert named(source={"pd-urls": "http://me:s3cret@pd-1:2379, http://pd-2:2379"}) == source(
        "shop.item", namespace="tidb://pd-1:2379"
    )
    assert named(source={"pd-urls": "http://me:s3/cret@pd-1:2379/?token=s3cret"}) == source(
        "shop.item", namespace="tidb://pd-1:2379"
    )
    # Several tables may go into one: their names are not known here.
    assert named(routes=[{"schema-pattern": "shop*", "target-schema": "shop"}]) == []


@pytest.mark.parametrize(
    ("path", "namespace", "name"),
    [
        ("s3a://bucket/lakes", "s3://bucket", "lakes/orders/binlog"),
        ("s3a://key:s3cret@bucket/lakes", "s3://bucket", "lakes/orders/binlog"),
        ("s3a://key:s3/cr@e?t@bucket/lakes", "s3://bucket", "lakes/orders/binlog"),
        ("s3a://key:3/cret@bucket/lakes", "s3://bucket", "lakes/orders/binlog"),
        ("s3a://token@bucket/l@kes", "s3://bucket", "l@kes/orders/binlog"),
        ("hdfs://me:s3/cret@name:8020/lakes", "hdfs://name:8020", "/lakes/orders/binlog"),
        ("hdfs://name:8020/l@kes", "hdfs://name:8020", "/l@kes/orders/binlog"),
        ("gs://bucket/lakes/", "gs://bucket", "lakes/orders/binlog"),
        ("abfss://box@us.dfs.core.windows.net/l", "abfss://box@us.dfs.core.windows.net", "l/orders/binlog"),
        ("hdfs://name:8020/lakes", "hdfs://name:8020", "/lakes/orders/binlog"),
        ("file:///mnt/lakes", "file", "/mnt/lakes/orders/binlog"),
    ],
)
def test_a_lake_is_named_by_its_storage(path: str, namespace: str, name: str) -> None:
    _, outputs = datasets(lineage.of_stages(replication(lake={"path": path}), [result("land")], ()))
    assert outputs[0] == (namespace, name)
