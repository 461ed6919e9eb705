"""The commands beside the windows name what they really read and wrote, and never fail a task by it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.openlineage.extractors.base import DefaultExtractor
from support.replication_files import write_replication
from test_lineage import LAKE, copied, datasets, lake, replication, result, sent, source

from binlake.errors import Permanent
from binlake_airflow.operators import commands
from binlake_airflow.operators.commands import BackfillOperator, MaintainOperator, RecoverOperator, VerifyOperator
from binlake_airflow.telemetry import lineage

TARGET = "mysql://db:3307"


def of(command: str, told: Any, asked: dict[str, Any] | None = None, **sections: Any) -> Any:
    return lineage.lineage_of_command(command, replication(**sections), asked or {}, told)


def target(*names: str) -> list[tuple[str, str]]:
    return [(TARGET, f"shop.{name}") for name in names]


def named(table: str) -> dict[str, Any]:
    return copied(table, sources=(table,))


def test_a_verify_reads_the_target_and_what_it_is_compared_with() -> None:
    read = {"read": [named("item"), copied("all", sources=("t_1", "t_2"))]}
    against_lake = of("verify", [result("verify", "equal", against="lake", lineage=read)])
    mirrors = lake("mirror/shop/item", "mirror/shop/all")
    inputs, outputs = datasets(against_lake)
    assert sorted(inputs) == sorted([*target("item", "all"), *mirrors, *lake("mutation")])
    assert outputs == []
    facets = sent(against_lake)
    assert facets["shop.item"]["version"]["datasetVersion"] == "9"
    assert facets[f"{LAKE}/mirror/shop/item"]["version"]["datasetVersion"] == "9"
    against_source = of("verify", [result("verify", "different", against="source", lineage=read)])
    assert sorted(datasets(against_source)[0]) == sorted(
        [*target("item", "all"), *source("shop.item", "shop.t_1", "shop.t_2")]
    )
    # Nothing could be compared.
    assert datasets(of("verify", [result("verify", "partial", against="lake")])) == ([], [])


def test_a_verify_that_repairs_writes_the_tables_that_differed() -> None:
    looked = result("verify", "different", against="lake", lineage={"read": [named("item"), named("line")]})
    mended = result("repair", lineage={"wrote": [{**copied("item", "id"), "sources": []}], "read": [named("item")]})
    found = of("verify", [looked, mended])
    inputs, outputs = datasets(found)
    assert sorted(inputs) == sorted([*target("line"), *lake("mirror/shop/item", "mirror/shop/line", "mutation")])
    assert outputs == target("item")
    # The rows are put together from several places, so its columns come from no one of them.
    assert {"schema", "version"} == set(sent(found)["shop.item"])


def test_a_repair_reads_mirrors_and_writes_what_was_wrong_as_of_the_checkpoint() -> None:
    told = {"wrote": [named("item")], "read": [named("item"), named("line")]}
    found = of("backfill", [result("backfill", mode="repair", checkpoint="12", lineage=told)], {"mode": "repair"})
    inputs, outputs = datasets(found)
    assert sorted(inputs) == sorted([*target("line"), *lake("mirror/shop/item", "mirror/shop/line", "mutation")])
    assert outputs == target("item")
    assert sent(found)["shop.item"]["version"]["datasetVersion"] == "12"
    assert datasets(of("backfill", [result("backfill", mode="repair", checkpoint="0")], {"mode": "repair"})) == ([], [])


def test_a_rebuild_writes_the_tables_that_it_derived_again() -> None:
    merged = {"mutation": [3, 3], "ddl": [0, 0]}
    through = {"change": [1, 1], "statement": [1, 1]}
    found = of("backfill", [result("rebuild", "same", rows_before_and_after=merged)], {"mode": "rebuild"})
    assert datasets(found) == (lake("binlog", "schema_change"), lake("mutation", "ddl"))
    found = of("backfill", [result("rebuild", "changed", rows_before_and_after=merged | through)], {"mode": "rebuild"})
    assert datasets(found) == (lake("binlog", "schema_change"), lake("mutation", "ddl", "change", "statement"))


@pytest.mark.parametrize(("side", "namespace"), [("target", TARGET), ("source", "tidb://pd:2379")])
def test_a_rollback_writes_tables_of_its_side(side: str, namespace: str) -> None:
    told = {"wrote": [named("item")]}
    found = of("backfill", [result("rollback", write_to=side, lineage=told)], {"mode": "rollback"})
    assert datasets(found) == (lake("mutation"), [(namespace, "shop.item")])
    # The target is then as the source was at no commit_ts.
    assert "version" not in sent(found)["shop.item"]


def test_a_replay_writes_to_the_target_of_the_other_replication() -> None:
    elsewhere = {"db-type": "tidb", "host": "copy", "port": 4000}
    results = [result("compact", changed=[["shop", "item"]]), result("convert"), result("finalize", "already"),
               result("finalize", lineage={"wrote": [copied("item", "id")]})]  # fmt: skip
    found = lineage.lineage_of_command(
        "backfill", replication(), {"mode": "replay"}, results, into=replication(target=elsewhere)
    )
    inputs, outputs = datasets(found)
    assert inputs == [*lake("mutation", "ddl"), *source("shop.item")]
    assert outputs == [*lake("change", "statement"), ("mysql://copy:4000", "shop.item")]
    assert "columnLineage" in sent(found)["shop.item"]


def test_a_recovery_reads_what_it_finished_the_window_from() -> None:
    done = result("finalize", lineage={"wrote": [copied("item", "id")]})
    found = of("recover", [done, result("recover", "recovered", source="lake")])
    assert datasets(found) == ([*lake("statement"), *source("shop.item")], target("item"))
    relayed = {**done, "detail": {"lineage": {"wrote": [{**named("item"), "sources": []}]}}}
    found = of("recover", [relayed, result("recover", "recovered", source="relay")], relay={"log-dir": "/share/relay"})
    assert datasets(found) == ([("file", "/share/relay")], target("item"))
    assert datasets(of("recover", [result("recover", "nothing-to-do")])) == ([], [])


def test_upkeep_writes_what_it_changed_and_no_more() -> None:
    def kept(table: str, joined: int = 0, dropped: int = 0, windows: int = 0, **more: Any) -> dict[str, Any]:
        return {"table": table, "joined": joined, "dropped": dropped, "windows": windows, "seconds": 0.1, **more}

    mirrors = [["shop", "item"]]
    told = [kept("window"), kept("binlog", joined=3), kept("change", windows=1), kept("ddl", dropped=1),
            kept("mirror", joined=2, mirrors=mirrors)]  # fmt: skip
    assert datasets(of("maintain", told)) == ([], lake("binlog", "change", "ddl", "mirror/shop/item"))
    assert datasets(of("maintain", [])) == ([], [])


def test_an_audit_reads_the_tables_that_answer() -> None:
    mirror = {"db": "shop", "table": "Item", "delta_version": 3, "hi": "7"}
    found = of("audit", {"rows": [], "mirror": mirror}, {"what": "table", "table": "shop.item"})
    assert datasets(found) == (lake("mutation", "mirror/shop/Item"), [])
    assert sent(found)[f"{LAKE}/mirror/shop/Item"]["version"]["datasetVersion"] == "7"
    untouched = {**mirror, "delta_version": -1}
    assert datasets(of("audit", {"mirror": untouched}, {"what": "table"})) == (lake("mutation"), [])
    assert datasets(of("audit", [], {"what": "row"})) == (lake("mutation"), [])
    assert datasets(of("audit", None, {"what": "transaction"})) == (lake("binlog", "mutation", "ddl"), [])


def operator(cls: type, folder: Path, **more: Any) -> Any:
    file = str(write_replication(folder, "orders"))
    return cls(task_id="t", replication="orders", replication_file=file, engine="submit", spark_conn_id="spark", **more)


def context(**params: Any) -> dict[str, Any]:
    pushed: dict[str, Any] = {}
    ti = SimpleNamespace(xcom_push=lambda key, value: pushed.update({key: value}), pushed=pushed)
    return {"params": params, "ti": ti, "run_id": "r"}


def answers(task: Any, monkeypatch: pytest.MonkeyPatch, told: Any, status: int = 0) -> None:
    monkeypatch.setattr(task, "run_child", lambda *_: "exit status 0")
    monkeypatch.setattr(task, "_spark", lambda _: ([], {}))
    monkeypatch.setattr(commands, "_read_outcome", lambda *_: (json.loads(json.dumps(told)), status))


def test_a_task_that_fails_over_a_difference_tells_what_it_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, asked = operator(VerifyOperator, folder), context(against="lake", sample=1.0)
    wrong = {"missing": 1, "extra": 0, "different": 0, "against": "lake", "lineage": {"read": [named("item")]}}
    answers(task, monkeypatch, [{**result("verify", "different"), "detail": wrong}], status=commands.DIFFERENT)
    with pytest.raises(Permanent, match="1 rows missing"):
        task.attempt(asked, 0)
    # As the provider asks, of a failed task as of a good one.
    found = DefaultExtractor(task).extract_on_failure(None)
    assert found is not None
    assert [one.name.rpartition("/")[2] for one in found.inputs] == ["shop.item", "item", "mutation"]
    # XCom is for small things.
    assert "lineage" not in json.dumps(asked["ti"].pushed["return_value"])


def test_upkeep_keeps_no_names_of_mirrors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = operator(MaintainOperator, folder, locks=["merge"])
    kept = {"table": "mirror", "joined": 2, "dropped": 0, "windows": 0, "seconds": 0.1}
    answers(task, monkeypatch, [{**kept, "mirrors": [["shop", "item"]]}])
    assert task.attempt(context(), 0) == [kept]
    found = DefaultExtractor(task).extract_on_complete(None)
    assert found is not None
    assert [one.name.rpartition("/")[2] for one in found.outputs] == ["item"]


def test_a_replay_finds_the_other_target_by_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_an_error_in_it_is_logged_and_is_nobody_elses(
    folder: Path, told: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    task = operator(RecoverOperator, folder)
    task._printed = told
    assert DefaultExtractor(task).extract_on_complete(None) is None
    # A task that ended without an answer has nothing to tell.
    assert ("failed to extract data" in capsys.readouterr().out) == (told is not None)
