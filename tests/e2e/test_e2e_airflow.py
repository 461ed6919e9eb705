"""The DAGs in a real Airflow (scheduler, API, DAG processor and triggerer), tested only through the public API.

One deployment serves all tests. It uses PostgreSQL, as real deployments do (the demo uses SQLite), and no Spark, so
these tests end where Spark would start.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.airflow_world import (
    DAGS,
    DAY,
    FIRST_DAY,
    PASSWORD,
    TOKEN,
    World,
    airflow_world,
    checkpoint,
    write_checkpoint,
)
from support.dag_runs import HI
from support.exact import find_rounded_numbers
from support.mariadb import MariaDb, execute, rows
from support.workload import integer

from binlake.lake.lock import hold_lake_lock
from deploy.local.airflow_client import AirflowClient
from deploy.local.postgres import Postgres

pytestmark = [pytest.mark.mariadb, pytest.mark.airflow, pytest.mark.e2e, pytest.mark.soak]


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    """Airflow's database."""
    with Postgres() as server:
        yield server


@pytest.fixture(scope="module")
def world(mariadb: MariaDb, database: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The one deployment."""
    with airflow_world(tmp_path_factory.mktemp("airflow"), mariadb, database.url) as found:
        yield found


def test_trigger_requires_login_and_permission(world: World) -> None:  # C-04 R-46
    url, body = f"{world.airflow.url}/api/v2/dags/orders/dagRuns", {"logical_date": None, "conf": {}}
    assert httpx.post(url, json=body, timeout=120).status_code == 401
    guests = json.loads((world.folder / "home" / "passwords.json").read_text())
    guest = AirflowClient(world.airflow.url, "guest", guests["guest"])
    try:
        assert guest.ask("POST", "/api/v2/dags/orders/dagRuns", body).status_code == 403
        assert guest.ask("GET", "/api/v2/dags/orders").status_code == 200
    finally:
        guest.close()
    for wrong in (470583292723200001, "yesterday", "470583292723200001 ", -1):
        assert (
            world.client.ask("POST", "/api/v2/dags/orders/dagRuns", {**body, "conf": {"stop_ts": wrong}}).status_code
            == 400
        )
    assert world.client.fetch_runs("orders") == []


def test_blocked_run_uses_no_worker_and_can_be_cancelled_cleared_and_resumed(world: World) -> None:
    # C-04 U-01 R-35 R-46: the real triggerer runs the trigger.
    client, before = world.client, checkpoint(world.server)
    start = world.source.settle() | 1
    write_checkpoint(world.server, f'{{"consistent":true,"commitTS":{start},"ts-map":{{}}}}')
    world.source.stop_pump("pump1")
    run = client.trigger("orders", {"start_ts": str(start)})
    world.until_task("orders", run, "plan", "deferred")
    assert client.fetch_run("orders", run)["conf"] == {"start_ts": str(start)}
    assert client.fetch_xcom("orders", run, "plan", "blocked_by") == "pump1"
    world.until_ended("stock", world.stock_run)  # the only other run
    pool = client.get("/api/v2/pools/default_pool")
    assert (pool["running_slots"], pool["deferred_slots"]) == (0, 1)
    # Its deadline passes meanwhile, and the notifier is called; before that, Airflow 3.3 cannot clear a run (HTTP 500).
    heard = world.until(
        "the notifier hears of the deadline", lambda: [one for one in world.failures() if _is_deadline(one, run)]
    )
    assert heard[0]["token"] == TOKEN
    client.mark("orders", run, "failed")
    assert world.until_ended("orders", run)["state"] == "failed"
    client.clear("orders", run)
    world.until_task("orders", run, "plan", "deferred")
    write_checkpoint(world.server, f'{{"consistent":false,"commitTS":{start},"ts-map":{{}}}}')
    world.source.start_pump("pump1")
    ended = world.until_ended("orders", run)
    # Its window is planned from exactly that commit_ts; then Spark is missing.
    plan = client.fetch_xcom("orders", run, "plan")
    assert (plan["state"], plan["lo"]) == ("ready", str(start))
    states = {task["task_id"]: task["state"] for task in client.fetch_tasks("orders", run)}
    assert (ended["state"], states["land"], states["recover"]) == ("failed", "failed", "skipped")
    assert ended["note"].startswith("land failed: the Airflow connection is not defined")
    assert world.target_writes() == []
    write_checkpoint(world.server, before)
    heard = world.until(
        "the notifier hears of the failure", lambda: [one for one in world.failures() if _is_failure(one, run)]
    )
    assert heard[0]["binlake"]["text"].startswith(f"orders: run {run} failed")


def test_checkpoint_moved_by_hand_fails_every_run_until_it_is_moved_back(world: World, mariadb: MariaDb) -> None:
    # 33 A1: the first run after the edit failed, the next one began at the edited position and left rows out
    work, client = world.source.workload, world.client
    work.create_database("bank")
    work.create_table("bank", "account", [integer("id"), integer("balance")], ["id"])
    work.begin().insert("bank", "account", id=1, balance=10).commit()
    world.source.settle()
    _run_ledger(world, "success")
    assert rows(mariadb, "SELECT id FROM bank.account") == [(1,)]
    [(own,)] = rows(mariadb, "SELECT checkPoint FROM ledger.checkpoint")
    work.begin().insert("bank", "account", id=2, balance=20).commit()
    reached = world.source.settle()
    execute(mariadb, f"UPDATE ledger.checkpoint SET checkPoint = JSON_SET(checkPoint, '$.commitTS', {reached})")
    for _ in range(3):
        note = _run_ledger(world, "failed")
        assert "checkpoint adopt" in note
        assert str(reached) in note
    assert rows(mariadb, "SELECT id FROM bank.account") == [(1,)]
    page = client.get("/binlake/api/dags/ledger")
    assert "moved" in json.dumps(page)
    execute(mariadb, f"UPDATE ledger.checkpoint SET checkPoint = '{own}'")
    _run_ledger(world, "success")
    assert rows(mariadb, "SELECT id, balance FROM bank.account ORDER BY id") == [(1, 10), (2, 20)]


def _run_ledger(world: World, state: str) -> str:
    """Run `ledger` until it ends in `state`; returns the run's note."""
    ended = world.until_ended("ledger", world.client.trigger("ledger"))
    assert ended["state"] == state, ended["note"]
    return str(ended["note"])


def _is_deadline(told: dict[str, Any], run: str) -> bool:
    return bool((told["binlake"]["what"], told["binlake"]["run_id"]) == ("deadline", run))


def _is_failure(told: dict[str, Any], run: str) -> bool:
    return bool(told["run_id"] == run and told["binlake"]["what"] == "failure")


def test_run_without_its_source_finishes_the_interrupted_window(world: World, mariadb: MariaDb) -> None:
    # S3-09 S3-10 S3-11: the only one of four cases in which the DAG's branch writes
    run = world.client.trigger("shop")
    ended = world.until_ended("shop", run)
    states = {task["task_id"]: task["state"] for task in world.client.fetch_tasks("shop", run)}
    assert (ended["state"], states.pop("plan"), states.pop("recover")) == ("success", "success", "success")
    assert set(states.values()) == {"skipped"}
    told = world.client.fetch_xcom("shop", run, "recover")
    assert (told["state"], told["lo"], told["hi"], told["detail"]["source"]) == ("recovered", "0", "300", "relay")
    assert ended["note"].startswith("recover: recovered at 300 = ")
    assert rows(mariadb, "SELECT * FROM app.t ORDER BY id") == [(1, "a"), (2, "b")]
    assert checkpoint(mariadb).startswith('{"consistent":true,"commitTS":300,')
    assert any("app.t" in text for text in world.target_writes())
    read, wrote = world.lineage("shop.recover")
    assert (read, set(wrote)) == ({str(world.folder)}, {"app.t"})


def test_run_that_finds_the_lake_locked_waits_in_the_triggerer(world: World) -> None:  # C-06
    with hold_lake_lock(world.paths, "sql", wait_s=0):
        run = world.client.trigger("orders.maintain")
        world.until_task("orders.maintain", run, "maintain", "deferred")
    task = world.until_task("orders.maintain", run, "maintain", "failed")
    # The lock is free now: the task continued, at its first try, and found no Spark.
    assert task["try_number"] == 1


def test_audit_is_requested_by_a_form_and_answered_by_a_page(world: World) -> None:  # C-07 R-46
    client, where = world.client, "/api/v2/dags/demo.audit/dagRuns"
    for wrong in ({"table": "--output"}, {"what": "sql"}, {"key": 7}, {"what": "transaction", "commit_ts": 1}):
        assert client.ask("POST", where, {"logical_date": None, "conf": wrong}).status_code == 400
    run = client.trigger("demo.audit", {"what": "row", "table": "shop.item", "key": ["7"]})
    ended = world.until_ended("demo.audit", run)
    assert (ended["state"], ended["note"]) == ("success", 'row shop.item ["7"]: 2 changes')
    inserted, updated = client.fetch_xcom("demo.audit", run, "audit")["changes"]
    assert (inserted["op"], inserted["before"], updated["after"]) == ("insert", None, {"id": "7", "name": "item 7"})
    commits = sorted(binlog.commit_ts for binlog in world.lake.workload.logged if binlog.commit_ts)
    assert int(updated["commit_ts"]) in commits
    assert f"| {updated['commit_ts']} | " in client.fetch_xcom("demo.audit", run, "audit", "markdown")
    assert world.lineage("demo.audit.audit") == ({f"{world.folder}/past/lake/demo/mutation"}, {})


def test_backfill_of_dates_waits_for_the_lease_and_repairs_the_differences_of_verify(
    world: World, mariadb: MariaDb
) -> None:  # C-05 C-06 R-02 S3-10 S3-11 S3-12
    client = world.client
    execute(mariadb, "UPDATE shop.item SET name = 'spoilt' WHERE id IN (3, 7)")
    told = len(world.failures())
    run = client.trigger("demo.verify")
    assert world.until_ended("demo.verify", run)["state"] == "failed"
    assert client.fetch_xcom("demo.verify", run, "verify")["changes"][0]["detail"]["different"] == 2
    mirror, mutation = (f"{world.folder}/past/lake/demo/{name}" for name in ("mirror/shop/item", "mutation"))
    # It failed, but has read everything.
    assert world.lineage("demo.verify.verify", "FAIL") == ({"shop.item", mirror, mutation}, {})
    world.target_writes()
    # Another host holds the lease, and the schedule continues.
    execute(mariadb, "REPLACE INTO tidb_binlog.binlake_lease VALUES ('demo', 1, 'elsewhere:1:1', '2100-01-01')")
    client.set_paused("demo", False)
    scheduled = world.until("a scheduled run", lambda: client.fetch_runs("demo"))[0]["dag_run_id"]
    first, second = _backfill(world, "demo.backfill", FIRST_DAY, FIRST_DAY + DAY)
    world.until_task("demo.backfill", first, "backfill", "deferred")
    assert world.until_ended("demo", scheduled)["state"] == "success"
    # Its source is gone and the target is consistent: nothing had to be recovered, nothing was written.
    states = {task["task_id"]: task["state"] for task in client.fetch_tasks("demo", scheduled)}
    assert (states["plan"], states["recover"], states["land"]) == ("success", "success", "skipped")
    assert client.fetch_xcom("demo", scheduled, "plan", "blocked_by") == "pd"
    assert client.fetch_xcom("demo", scheduled, "recover")["state"] == "nothing-to-do"
    # The backfill requested the lease meanwhile.
    assert [text for text in world.target_writes() if "binlake_lease" not in text and "IF NOT EXISTS" not in text] == []
    execute(mariadb, "UPDATE tidb_binlog.binlake_lease SET owner = ''")
    ranges = [_repaired_range(world, name) for name in (first, second)]
    _wait_for_schedule(world, first)
    days = [int((FIRST_DAY + n * DAY).timestamp() * 1000) << 18 for n in range(3)]
    # A day is [a, b): the ranges of commit_ts have no gaps.
    assert ranges == [(days[0] - 1, days[1] - 1), (days[1] - 1, days[2] - 1)]
    assert rows(mariadb, "SELECT id, name FROM shop.item WHERE id IN (3, 7)") == [(3, "item 3"), (7, "item 7")]
    assert len(world.failures()) > told
    read, wrote = world.lineage("demo.backfill.backfill")
    assert read == {mirror, mutation}
    assert [one["name"] for one in wrote["shop.item"]["schema"]["fields"]] == ["id", "name"]


def _backfill(world: World, dag_id: str, first: datetime, last: datetime) -> list[str]:
    """Run Airflow's own backfill of the days from `first` to `last`; return its runs, the oldest first."""
    body = {"from_date": first.isoformat(), "to_date": last.isoformat(), "max_active_runs": 1,
            "dag_run_conf": {"mode": "repair"}}  # fmt: skip
    refused = world.client.ask("POST", "/api/v2/backfills", {**body, "dag_id": dag_id.partition(".")[0]})
    assert (refused.status_code, "backfill" in refused.text) == (400, True)
    made = world.client.ask("POST", "/api/v2/backfills", {**body, "dag_id": dag_id})
    assert made.status_code == 200, made.text
    runs = [run for run in world.client.fetch_runs(dag_id) if run["run_type"] == "backfill"]
    return sorted((run["dag_run_id"] for run in runs), key=str)


def _wait_for_schedule(world: World, run: str) -> None:
    """Wait for a successful window that started after `run` of the backfill; none may fail, with the same scheduler."""
    client = world.client
    began = client.fetch_run("demo.backfill", run)["start_date"]

    def has_succeeded() -> bool:
        return any(one["start_date"] > began for one in client.fetch_runs("demo") if one["state"] == "success")

    world.until("a window that started after the backfill", has_succeeded)
    # Pausing a DAG also stops the progress of a running run.
    client.set_paused("demo", True)
    assert "failed" not in {one["state"] for one in client.fetch_runs("demo")}
    world.airflow.check()


def _repaired_range(world: World, run: str) -> tuple[int, int]:
    """The range of a run that repaired one row."""
    ended = world.until_ended("demo.backfill", run)
    assert (ended["state"], ended["note"][:8]) == ("success", "repair (")
    assert world.client.fetch_xcom("demo.backfill", run, "backfill")["changes"][0]["detail"]["different"] == 1
    lo, _, hi = world.client.fetch_xcom("demo.backfill", run, "backfill", "range").partition("-")
    return int(lo), int(hi)


def test_airflow_stores_no_number_that_a_browser_would_round(world: World) -> None:  # R-46 C-04
    """Checks XCom, conf and asset events of every run so far."""
    seen = 0
    for dag_id in DAGS:
        for run in world.client.fetch_runs(dag_id):
            where = f"/api/v2/dags/{dag_id}/dagRuns/{run['dag_run_id']}"
            entries = world.client.get(f"{where}/taskInstances/~/xcomEntries")["xcom_entries"]
            for entry in entries:
                value = world.client.fetch_xcom(dag_id, run["dag_run_id"], entry["task_id"], entry["key"])
                assert find_rounded_numbers(value) == [], entry
                seen += 1
            assert find_rounded_numbers(run["conf"]) == []
    assert seen > 10


def test_window_publishes_its_changed_tables_and_its_progress(world: World) -> None:  # U-02
    assert world.until_ended("stock", world.stock_run)["state"] == "success"
    read, wrote = world.lineage("stock.window")
    assert {name for name in wrote if "/" not in name} == {"shop.item", "shop.line"}
    assert wrote["shop.item"]["version"]["datasetVersion"] == HI
    assert f"{world.folder}/stock/lake/stock/mutation" in wrote
    assert read == {"binlog", "shop.item", "shop.line"}
    assert [one["name"] for one in wrote["shop.line"]["schema"]["fields"]] == ["id", "name", "own"]
    columns = wrote["shop.line"]["columnLineage"]["fields"]
    assert {name: one["inputFields"][0]["field"] for name, one in columns.items()} == {"id": "id", "name": "name"}
    for name, kind in (("lag_seconds", "g"), ("checkpoint_timestamp_seconds", "g"), ("finalize.seconds", "ms"),
                       ("land.rows", "c")):  # fmt: skip
        world.until(name, lambda name=name, kind=kind: _heard(world, name, kind))


def _heard(world: World, name: str, kind: str) -> list[str]:
    return [one for one in world.heard if one.startswith(f"airflow.binlake.stock.{name}:") and one.endswith(f"|{kind}")]


def _content(path: Path) -> bytes:
    """The file's content; empty if the running Airflow or its database has removed the file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def test_no_secret_is_anywhere_in_airflow(world: World, database: Postgres) -> None:  # U-31
    """Checks logs, lineage, XCom, rendered templates and serialised DAGs; the last three are in the metadata
    database.
    """
    # The notifier received the failures, so they are checked too.
    assert '"eventType": "FAIL"' in (world.folder / "home" / "lineage.jsonl").read_text()
    files = [path for path in (world.folder / "home").rglob("*") if path.is_file()]
    assert len([path for path in files if path.suffix == ".log"]) >= 5
    # Also removed files, and the server's own log.
    stored = [path for path in database.folder.rglob("*") if path.is_file()]
    assert [path for path in stored if world.stock_run.encode() in _content(path)]
    rows_of = _tables(database)
    assert all(rows_of[name] for name in ("serialized_dag", "task_instance", "xcom", "dag_run", "log"))
    for secret in (PASSWORD, TOKEN, database.password):
        assert [str(path) for path in (*files, *stored) if secret.encode() in _content(path)] == []
        assert [name for name, found in rows_of.items() if any(secret in row for row in found)] == []


def _tables(database: Postgres) -> dict[str, list[str]]:
    """Every row of every table as one text, because the server compresses long values in its files."""
    with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET bytea_output = 'escape'")
        cursor.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        found = {}
        for (name,) in cursor.fetchall():
            cursor.execute(f'SELECT one::text FROM public."{name}" one')
            found[name] = [row for (row,) in cursor.fetchall()]
        return found
