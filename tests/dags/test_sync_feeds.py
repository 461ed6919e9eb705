"""Feeds in the DAG: each has a group of tasks that fail, wait and are skipped independently. The jobs are scripted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.dag_runs import FEED, LO, LOWERED, Runner, answer, failure, window_of_feeds
from support.replication_files import write_replication

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

FEEDS = [FEED.format("a"), FEED.format("b-2")]
SKIPPED = {"feed": "a", "feed_state": "error", "reason": "the feed is in state error: publish: 409", "checkpoint": LO}


def build(folder: Path, **sections: Any) -> Any:
    from binlake_airflow.dags.factory import build_dag

    return build_dag(write_replication(folder, "orders", feeds=FEEDS, **sections))


def test_each_feed_has_a_group_of_tasks_that_depends_only_on_merge(folder: Path) -> None:
    # DESIGN 3.12
    dag = build(folder)
    groups = {name: set(group.children) for name, group in dag.task_group_dict.items() if name}
    assert groups["feed_a"] == {"encode-a", "publish-a"}
    assert groups["feed_b-2"] == {"encode-b-2", "publish-b-2"}
    assert dag.get_task("encode-a").upstream_task_ids == {"merge"}
    assert dag.get_task("publish-b-2").upstream_task_ids == {"encode-b-2"}
    assert dag.get_task("publish-a").downstream_task_ids == set()
    assert dag.get_task("encode-a").locks == ("feed-a",)
    assert "| `publish-b-2` |" in dag.doc_md
    assert "until an operator resumes it" in dag.doc_md
    assert dag.task_group_dict["feed_a"].tooltip == "feed a: *.* to kafka://k:9092/t?protocol=avro"


def test_failed_feed_stops_no_other_sink(run: Runner) -> None:
    # S2-39, DESIGN 3.12
    refused = failure("Permanent", "SchemaRefused", "409: the new schema is incompatible")
    done = run({**window_of_feeds("a", "b-2"), "publish-a": [refused]}, feeds=FEEDS)
    assert done.state == "failed"
    assert done.states.pop("publish-a") == "failed"
    assert done.tries("publish-a") == 1
    assert done.states.pop("recover") == "skipped"
    assert set(done.states.values()) == {"success"}
    assert done.note == "publish-a failed: 409: the new schema is incompatible"
    # Each feed works on its own bounds.
    assert {done.bounds()[name] for name in ("encode-a", "publish-a", "publish-b-2")} == {(LO, LOWERED)}
    assert {call["options"].get("--feed") for call in done.calls} == {None, "a", "b-2"}


def test_window_after_a_failed_feed_is_green_and_says_why_it_is_skipped(run: Runner) -> None:
    # S2-39
    skipped = answer("encode", LO, LOWERED, "skipped", detail=SKIPPED)
    window = window_of_feeds("a", "b-2", topics=["shop_item"])
    done = run({**window, "encode-a": [skipped]}, feeds=FEEDS, target=None)
    assert done.state == "success"
    assert (done.states["encode-a"], done.states["publish-a"]) == ("success", "skipped")
    assert {done.states[name] for name in ("publish-b-2", "mirror")} == {"success"}
    # Only the assets of published feeds are updated.
    assert ("binlake://orders/b-2", LOWERED, ["shop_item"]) in events(done.run_id)
    assert "binlake://orders/a" not in [name for name, *_ in events(done.run_id)]
    assert done.xcom("encode-a")["detail"]["reason"] == SKIPPED["reason"]


def test_replication_with_only_feeds_has_only_their_assets(folder: Path) -> None:
    dag = build(folder, target=None, mirror="enabled = false")
    moved = {task.task_id: [one.name for one in task.outlets] for task in dag.tasks if task.outlets}
    assert moved == {"publish-a": ["binlake-orders.a"], "publish-b-2": ["binlake-orders.b-2"]}
    assert "recover" not in dag.task_ids
    fused = build(folder, target=None, mirror="enabled = false", airflow='layout = "fused"\nschedule = ""')
    assert [one.name for one in fused.get_task("window").outlets] == ["binlake-orders.a", "binlake-orders.b-2"]
    assert fused.get_task("window").locks == ("landing", "merge", "feed-a", "feed-b-2")
    both = build(folder, airflow='layout = "fused"\nschedule = ""')
    # A feed that another process publishes blocks no other sink.
    assert both.get_task("window").locks == ("landing", "merge", "sql", "mirror")
    assert "binlake-orders" in [one.name for one in both.get_task("window").outlets]


def test_failed_feed_in_a_fused_window_keeps_the_others_results(run: Runner, folder: Path) -> None:
    # S2-39
    window = window_of_feeds("a", "b-2")
    failed = answer("publish", LO, LOWERED, "failed", detail={"feed": "a", "feed_state": "error", "reason": "409"})
    window["publish-a"] = [failed]
    # The last stage of the window may also have been skipped.
    window["encode-c"] = [answer("encode", LO, LOWERED, "skipped", detail={**SKIPPED, "feed": "c"})]
    results = [one for name in window for one in window[name][0]["results"]]
    told = 'schedule = ""\nlayout = "fused"\n[airflow.on-failure]\nnotifier = "support.notified.by_call"'
    done = run({"window": [{"ok": True, "results": results}]}, feeds=FEEDS, airflow=told)
    assert folder.is_dir()
    assert done.state == "success"
    assert done.note is not None
    assert done.note.startswith("window (")
    assert done.note.endswith(f"; publish-a failed: 409; encode-c skipped: {SKIPPED['reason']}")
    names = [name for name, *_ in events(done.run_id)]
    assert "binlake://orders/b-2" in names
    assert "binlake://orders/a" not in names
    assert any(name.rstrip("/") == "binlake://orders" for name in names)


def events(run_id: str) -> list[tuple[str, str, list[str]]]:
    """The assets that a run updated: name, commit_ts, topics."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        query = select(AssetModel.name, AssetEvent.extra).join(AssetModel, AssetModel.id == AssetEvent.asset_id)
        found = session.execute(query.where(AssetEvent.source_run_id == run_id)).all()
    return [(name, extra["commit_ts"], extra.get("topics", [])) for name, extra in found]


def test_maintenance_waits_for_every_job_on_its_tables(folder: Path) -> None:
    from binlake_airflow.dags.factory import build_dags

    upkeep = build_dags(write_replication(folder, "orders", feeds=FEEDS))["orders.maintain"].get_task("maintain")
    assert upkeep.locks == ("landing", "merge", "sql", "mirror", "feed-a", "feed-b-2")
