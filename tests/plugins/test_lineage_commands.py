"""The commands of the side DAGs report what they really read and wrote, and never fail a task by it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.openlineage.extractors.base import DefaultExtractor
from support.replication_files import write_replication
from test_lineage import LAKE, datasets, lake, lineage_table, replication, result, send, source

from binlake.errors import Permanent
from binlake_airflow.operators import command, commands
from binlake_airflow.operators.commands import BackfillOperator, MaintainOperator, RecoverOperator, VerifyOperator
from binlake_airflow.telemetry import lineage

TARGET = "mysql://db:3307"


def lineage_of(command: str, told: Any, asked: dict[str, Any] | None = None, **sections: Any) -> Any:
    return lineage.build_lineage_of_command(command, replication(**sections), asked or {}, told)


def target(*names: str) -> list[tuple[str, str]]:
    return [(TARGET, f"shop.{name}") for name in names]


def named(table: str) -> dict[str, Any]:
    return lineage_table(table, sources=(table,))


def test_verify_reads_the_target_and_the_compared_side() -> None:
    read = {"read": [named("item"), lineage_table("all", sources=("t_1", "t_2"))]}
    against_lake = lineage_of("verify", [result("verify", "equal", against="lake", lineage=read)])
    mirrors = lake("mirror/shop/item", "mirror/shop/all")
    inputs, outputs = datasets(against_lake)
    assert sorted(inputs) == sorted([*target("item", "all"), *mirrors, *lake("mutation")])
    assert outputs == []
    facets = send(against_lake)
    assert facets["shop.item"]["version"]["datasetVersion"] == "9"
    assert facets[f"{LAKE}/mirror/shop/item"]["version"]["datasetVersion"] == "9"
    against_source = lineage_of("verify", [result("verify", "different", against="source", lineage=read)])
    assert sorted(datasets(against_source)[0]) == sorted(
        [*target("item", "all"), *source("shop.item", "shop.t_1", "shop.t_2")]
    )
    # Nothing could be compared.
    assert datasets(lineage_of("verify", [result("verify", "partial", against="lake")])) == ([], [])


def test_repairing_verify_writes_the_tables_that_differed() -> None:
    looked = result("verify", "different", against="lake", lineage={"read": [named("item"), named("line")]})
    mended = result(
        "repair", lineage={"wrote": [{**lineage_table("item", "id"), "sources": []}], "read": [named("item")]}
    )
    found = lineage_of("verify", [looked, mended])
    inputs, outputs = datasets(found)
    assert sorted(inputs) == sorted([*target("line"), *lake("mirror/shop/item", "mirror/shop/line", "mutation")])
    assert outputs == target("item")
    # The rows come from several sources, so the columns have no single origin.
    assert {"schema", "version"} == set(send(found)["shop.item"])


def test_repair_reads_mirrors_and_writes_wrong_tables_as_of_the_checkpoint() -> None:
    told = {"wrote": [named("item")], "read": [named("item"), named("line")]}
    found = lineage_of(
        "backfill", [result("backfill", mode="repair", checkpoint="12", lineage=told)], {"mode": "repair"}
    )
    inputs, outputs = datasets(found)
    assert sorted(inputs) == sorted([*target("line"), *lake("mirror/shop/item", "mirror/shop/line", "mutation")])
    assert outputs == target("item")
    assert send(found)["shop.item"]["version"]["datasetVersion"] == "12"
    assert datasets(
        lineage_of("backfill", [result("backfill", mode="repair", checkpoint="0")], {"mode": "repair"})
    ) == ([], [])


def test_rebuild_writes_the_tables_that_it_derived_again() -> None:
    merged = {"mutation": [3, 3], "ddl": [0, 0]}
    through = {"change": [1, 1], "statement": [1, 1]}
    found = lineage_of("backfill", [result("rebuild", "same", rows_before_and_after=merged)], {"mode": "rebuild"})
    assert datasets(found) == (lake("binlog", "schema_change"), lake("mutation", "ddl"))
    found = lineage_of(
        "backfill", [result("rebuild", "changed", rows_before_and_after=merged | through)], {"mode": "rebuild"}
    )
    assert datasets(found) == (lake("binlog", "schema_change"), lake("mutation", "ddl", "change", "statement"))


@pytest.mark.parametrize(("side", "namespace"), [("target", TARGET), ("source", "tidb://pd:2379")])
def test_rollback_writes_tables_of_its_side(side: str, namespace: str) -> None:
    told = {"wrote": [named("item")]}
    found = lineage_of("backfill", [result("rollback", write_to=side, lineage=told)], {"mode": "rollback"})
    assert datasets(found) == (lake("mutation"), [(namespace, "shop.item")])
    # Afterwards the target matches the source at no commit_ts.
    assert "version" not in send(found)["shop.item"]


def test_replay_writes_to_the_other_replications_target() -> None:
    elsewhere = {"db-type": "tidb", "host": "copy", "port": 4000}
    results = [result("compact", changed=[["shop", "item"]]), result("convert"), result("finalize", "already"),
               result("finalize", lineage={"wrote": [lineage_table("item", "id")]})]  # fmt: skip
    found = lineage.build_lineage_of_command(
        "backfill", replication(), {"mode": "replay"}, results, into=replication(target=elsewhere)
    )
    inputs, outputs = datasets(found)
    assert inputs == [*lake("mutation", "ddl"), *source("shop.item")]
    assert outputs == [*lake("change", "statement"), ("mysql://copy:4000", "shop.item")]
    assert "columnLineage" in send(found)["shop.item"]


def test_recovery_reads_the_source_from_which_it_finished_the_window() -> None:
    done = result("finalize", lineage={"wrote": [lineage_table("item", "id")]})
    found = lineage_of("recover", [done, result("recover", "recovered", source="lake")])
    assert datasets(found) == ([*lake("statement"), *source("shop.item")], target("item"))
    relayed = {**done, "detail": {"lineage": {"wrote": [{**named("item"), "sources": []}]}}}
    found = lineage_of(
        "recover", [relayed, result("recover", "recovered", source="relay")], relay={"log-dir": "/share/relay"}
    )
    assert datasets(found) == ([("file", "/share/relay")], target("item"))
    assert datasets(lineage_of("recover", [result("recover", "nothing-to-do")])) == ([], [])


def test_maintenance_writes_only_what_it_changed() -> None:
    def table_report(table: str, joined: int = 0, dropped: int = 0, windows: int = 0, **more: Any) -> dict[str, Any]:
        return {"table": table, "joined": joined, "dropped": dropped, "windows": windows, "seconds": 0.1, **more}

    mirrors = [["shop", "item"]]
    told = [table_report("window"), table_report("binlog", joined=3), table_report("change", windows=1),
            table_report("ddl", dropped=1), table_report("mirror", joined=2, mirrors=mirrors)]  # fmt: skip
    assert datasets(lineage_of("maintain", told)) == ([], lake("binlog", "change", "ddl", "mirror/shop/item"))
    assert datasets(lineage_of("maintain", [])) == ([], [])


def test_audit_reads_the_tables_that_answer() -> None:
    mirror = {"db": "shop", "table": "Item", "delta_version": 3, "hi": "7"}
    found = lineage_of("audit", {"rows": [], "mirror": mirror}, {"what": "table", "table": "shop.item"})
    assert datasets(found) == (lake("mutation", "mirror/shop/Item"), [])
    assert send(found)[f"{LAKE}/mirror/shop/Item"]["version"]["datasetVersion"] == "7"
    untouched = {**mirror, "delta_version": -1}
    assert datasets(lineage_of("audit", {"mirror": untouched}, {"what": "table"})) == (lake("mutation"), [])
    assert datasets(lineage_of("audit", [], {"what": "row"})) == (lake("mutation"), [])
    assert datasets(lineage_of("audit", None, {"what": "transaction"})) == (lake("binlog", "mutation", "ddl"), [])


def operator(cls: type, folder: Path, **more: Any) -> Any:
    file = str(write_replication(folder, "orders"))
    return cls(task_id="t", replication="orders", replication_file=file, engine="submit", spark_conn_id="spark", **more)


def context(**params: Any) -> dict[str, Any]:
    pushed: dict[str, Any] = {}
    ti = SimpleNamespace(xcom_push=lambda key, value: pushed.update({key: value}), pushed=pushed)
    return {"params": params, "ti": ti, "run_id": "r"}


def answers(task: Any, monkeypatch: pytest.MonkeyPatch, told: Any, status: int = 0) -> None:
    monkeypatch.setattr(task, "run_child", lambda *_: "exit status 0")
    monkeypatch.setattr(task, "_locate_spark", lambda _: ([], {}))
    monkeypatch.setattr(command, "_read_outcome", lambda *_: (json.dumps(told), status))


def test_task_that_fails_because_of_a_difference_reports_its_inputs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, asked = operator(VerifyOperator, folder), context(against="lake", sample=1.0)
    wrong = {"missing": 1, "extra": 0, "different": 0, "against": "lake", "lineage": {"read": [named("item")]}}
    answers(task, monkeypatch, [{**result("verify", "different"), "detail": wrong}], status=commands.DIFFERENT)
    with pytest.raises(Permanent, match="1 rows missing"):
        task.attempt(asked, 0)
    # The provider asks in the same way for a failed task and for a successful one.
    found = DefaultExtractor(task).extract_on_failure(None)
    assert found is not None
    assert [one.name.rpartition("/")[2] for one in found.inputs] == ["shop.item", "item", "mutation"]
    # XCom is meant for small values.
    assert "lineage" not in json.dumps(asked["ti"].pushed["return_value"])


def test_maintenance_stores_no_names_of_mirrors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = operator(MaintainOperator, folder, locks=["merge"])
    kept = {"table": "mirror", "joined": 2, "dropped": 0, "windows": 0, "seconds": 0.1}
    answers(task, monkeypatch, [{**kept, "mirrors": [["shop", "item"]]}])
    assert task.attempt(context(), 0) == [kept]
    found = DefaultExtractor(task).extract_on_complete(None)
    assert found is not None
    assert [one.name.rpartition("/")[2] for one in found.outputs] == ["item"]


def test_replay_finds_the_other_target_by_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = operator(BackfillOperator, folder)
    write_replication(folder, "copy", target='db-type = "mariadb"\nhost = "elsewhere"')
    told = [result("finalize", lineage={"wrote": [named("item")]})]
    answers(task, monkeypatch, told)
    bounds = {"from": "470548480001835008", "to": "470548480001835009", "commit_ts": None}
    task.attempt(context(**{"mode": "replay", "into": "copy", **bounds}), 0)
    found = DefaultExtractor(task).extract_on_complete(None)
    assert found is not None
    assert [one.namespace.partition(":3")[0] for one in found.outputs] == ["mysql://elsewhere"]


@pytest.mark.parametrize("told", [None, ({}, [{"stage": "finalize", "state": "done"}, {"detail": {}}])])
def test_error_in_lineage_is_logged_and_affects_nothing_else(
    folder: Path, told: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    task = operator(RecoverOperator, folder)
    task._printed = told
    assert DefaultExtractor(task).extract_on_complete(None) is None
    # A task that ended without an answer reports nothing.
    assert ("failed to extract data" in capsys.readouterr().out) == (told is not None)
