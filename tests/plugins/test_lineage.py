"""The datasets of a window have the names of the OpenLineage specification, and contain no password."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from airflow.providers.openlineage.utils.utils import OpenLineageRedactor
from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
from openlineage.client.serde import Serde

from binlake.config import Replication
from binlake.window.lineage import MOST_COLUMNS
from binlake_airflow.telemetry import lineage

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


def test_each_stage_reads_what_the_previous_one_wrote() -> None:
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
        assert datasets(lineage.build_lineage_of_stages(replication(), [result(stage, **detail)], TABLES)) == way, stage


def test_fused_window_shows_its_ends_with_their_versions() -> None:
    stages = [result(name) for name in ("plan", "land", "merge", "compact", "convert", "finalize")]
    found = lineage.build_lineage_of_stages(replication(), [*stages, result("mirror", changed=TABLES[:1])], TABLES)
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


def test_stage_that_wrote_nothing_has_no_datasets() -> None:
    for state in ("blocked", "waiting", "skipped", "already"):
        assert datasets(lineage.build_lineage_of_stages(replication(), [result("finalize", state)], TABLES)) == ([], [])


def test_source_has_a_name_that_other_systems_use() -> None:
    def list_inputs(**sections: Any) -> list[tuple[str, str]]:
        inputs, _ = datasets(lineage.build_lineage_of_stages(replication(**sections), [result("finalize")], TABLES[:1]))
        return inputs[1:]

    sql = {"sql": {"host": "tidb", "port": 4001, "password": "s3cret"}}
    assert list_inputs(source=sql) == source("shop.item", namespace="mysql://tidb:4001")
    assert list_inputs(source={"cluster-id": "77"}) == source("shop.item", namespace="tidb://77")
    assert list_inputs(source={"pd-urls": "http://me:s3cret@pd-1:2379, http://pd-2:2379"}) == source(
        "shop.item", namespace="tidb://pd-1:2379"
    )
    assert list_inputs(source={"pd-urls": "http://me:s3/cret@pd-1:2379/?token=s3cret"}) == source(
        "shop.item", namespace="tidb://pd-1:2379"
    )
    # Several tables may be routed into one, so the source names are unknown here.
    assert list_inputs(routes=[{"schema-pattern": "shop*", "target-schema": "shop"}]) == []


def lineage_table(
    table: str, *columns: str, sources: tuple[str, ...] = (), own: tuple[str, ...] = ()
) -> dict[str, Any]:
    """A table of `shop` in the form in which a sink reports it."""
    typed = [[name, "int unsigned"] for name in columns]
    origins = [{"db": "shop", "table": name, "columns": typed} for name in sources or (table,)]
    return {"db": "shop", "table": table, "columns": [*typed, *([name, ""] for name in own)],
            "copied": list(columns), "sources": origins}  # fmt: skip


def send(found: Any) -> dict[str, dict[str, Any]]:
    """Facets by dataset name in the form in which they are sent: redacted and serialised by the provider."""
    run, job = Run("01234567-0123-7123-8123-0123456789ab"), Job("airflow", "orders.finalize")
    event = RunEvent(eventTime="2026-11-20T00:00:00Z", eventType=RunState.COMPLETE, run=run, job=job,
                     inputs=found.inputs, outputs=found.outputs)  # fmt: skip
    event = json.loads(Serde.to_json(OpenLineageRedactor().redact(event, max_depth=20)))
    return {one["name"]: one["facets"] for one in [*event["inputs"], *event["outputs"]]}


def test_columns_are_reported_with_their_origins() -> None:
    # `password`: the provider's redactor must not mistake a column's name for a secret.
    told = lineage_table("item", "id", "password", own=("mine",))
    for stage, name in (("finalize", "shop.item"), ("mirror", f"{LAKE}/mirror/shop/item")):
        results = [result(stage, lineage={"wrote": [told]})]
        found = lineage.build_lineage_of_stages(replication(), results, TABLES)
        facets = send(found)
        assert facets[name]["schema"]["fields"] == [
            {"name": "id", "type": "int unsigned", "fields": []},
            {"name": "password", "type": "int unsigned", "fields": []},
            {"name": "mine", "fields": []},
        ]
        assert facets[name]["schema"]["_schemaURL"].endswith("/SchemaDatasetFacet.json#/$defs/SchemaDatasetFacet")
        lines = facets[name]["columnLineage"]
        assert lines["_schemaURL"].endswith("/ColumnLineageDatasetFacet.json#/$defs/ColumnLineageDatasetFacet")
        assert lines["fields"] == {
            column: {"inputFields": [{
                "namespace": "tidb://pd:2379", "name": "shop.item", "field": column,
                "transformations": [{"type": "DIRECT", "subtype": "IDENTITY", "description": "", "masking": False}],
            }]} for column in ("id", "password")
        }  # fmt: skip
        # Marquez draws a line only from a column that is in the schema of an input of the same event.
        assert [one["name"] for one in facets["shop.item"]["schema"]["fields"]][:2] == ["id", "password"]
        assert ("tidb://pd:2379", "shop.item") in datasets(found)[0]


def test_shards_of_one_table_are_its_sources_with_their_own_columns() -> None:  # S4-03
    told = lineage_table("all", "id", "more", sources=("t_1", "t_2"))
    told["sources"][0]["columns"] = [["id", "int"]]
    routed = replication(routes=[{"schema-pattern": "shop*", "target-schema": "shop"}])
    found = lineage.build_lineage_of_stages(routed, [result("finalize", lineage={"wrote": [told]})], TABLES)
    assert datasets(found)[0] == [*lake("statement"), *source("shop.t_1", "shop.t_2")]
    # The stage's report overrides the names from before the window.
    assert datasets(found)[1] == [("mysql://db:3307", "shop.all")]
    fields = send(found)["shop.all"]["columnLineage"]["fields"]
    assert {name: [one["name"] for one in field["inputFields"]] for name, field in fields.items()} == {
        "id": ["shop.t_1", "shop.t_2"], "more": ["shop.t_2"],
    }  # fmt: skip


def test_columns_of_many_windows_are_limited_but_each_table_has_its_version() -> None:
    columns = [f"c{n}" for n in range(MOST_COLUMNS)]
    first = {
        **result("finalize", lineage={"wrote": [lineage_table("item", "old"), lineage_table("line", "id")]}),
        "hi": "5",
    }
    second = result("finalize", lineage={"wrote": [lineage_table("item", *columns)]})
    facets = send(lineage.build_lineage_of_stages(replication(), [first, second]))
    assert len(facets["shop.item"]["columnLineage"]["fields"]) == MOST_COLUMNS
    assert facets["shop.item"]["version"]["datasetVersion"] == "9"
    # The limit left no room for the columns of this table, so only its name is sent.
    assert set(facets["shop.line"]) == {"version"}
    assert facets["shop.line"]["version"]["datasetVersion"] == "5"


def test_redactor_does_not_visit_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    # The redactor takes milliseconds per column, and Airflow waits for it.
    looked: list[str | None] = []
    search = OpenLineageRedactor._redact

    def counting(self: Any, item: Any, name: str | None, *more: Any, **named: Any) -> Any:
        looked.append(name)
        return search(self, item, name, *more, **named)

    monkeypatch.setattr(OpenLineageRedactor, "_redact", counting)
    told = lineage_table("item", *(f"c{n}" for n in range(MOST_COLUMNS)))
    facets = send(lineage.build_lineage_of_stages(replication(), [result("finalize", lineage={"wrote": [told]})]))
    assert len(facets["shop.item"]["columnLineage"]["fields"]) == MOST_COLUMNS
    assert 0 < len(looked) < 100


def test_lineage_loads_neither_spark_nor_arrow() -> None:
    heavy = "('pyspark', 'pyarrow', 'deltalake')"
    program = f"import sys, binlake_airflow.telemetry.lineage; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


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
def test_lake_is_named_by_its_storage(path: str, namespace: str, name: str) -> None:
    _, outputs = datasets(lineage.build_lineage_of_stages(replication(lake={"path": path}), [result("land")], ()))
    assert outputs[0] == (namespace, name)


def test_feed_writes_its_own_table_and_topics() -> None:
    feeds = [
        {"name": "a", "sink-uri": "kafka://u:s3cret@k1:9092,k2:9093/t?protocol=avro", "schema-registry": "http://r"},
        {"name": "b", "sink-uri": "file:///var/feed?protocol=avro", "schema-registry": "http://r"},
    ]
    own = replication(feed=feeds)
    encoded = lineage.build_lineage_of_stages(own, [result("encode", feed="a")])
    assert datasets(encoded) == (lake("mutation", "ddl"), lake("feed/a"))
    assert encoded.outputs[0].outputFacets["outputStatistics"].rowCount == 3
    published = lineage.build_lineage_of_stages(own, [result("publish", feed="a", topics=["shop_item"])])
    assert datasets(published) == (lake("feed/a"), [("kafka://k1:9092", "shop_item")])
    assert datasets(lineage.build_lineage_of_stages(own, [result("publish", feed="b")]))[1] == [("file", "/var/feed")]
    both = [result(stage, feed=feed, topics=["t"]) for feed in ("a", "b") for stage in ("encode", "publish")]
    assert lake("feed/a", "feed/b") == [
        one for one in datasets(lineage.build_lineage_of_stages(own, both))[1] if "feed/" in one[1]
    ]
    assert "s3cret" not in str(published)
