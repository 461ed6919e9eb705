"""A real Airflow over five replications, for tests that use its public API; its tasks find no Spark."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from support.airflow_home import SLOW_PACE
from support.dag_runs import HI, LO, answer
from support.live import LiveSource
from support.mariadb import MariaDb, execute, rows
from support.positions import accept_rows
from support.scripted_spark import script, scripted_spark
from support.tinylake import TinyLake, fill, set_checkpoint, target_config
from support.windows import Crash, Window, apply, at, target_of
from support.workload import Workload, counter, integer, text

from binlake.config import load_replication
from binlake.lake.paths import LakePaths
from binlake.target.relay import RelayLog
from binlake.window.lineage import LINEAGE
from deploy.local.airflow import Airflow
from deploy.local.airflow_client import AirflowClient
from deploy.local.ports import HOST, free_port

_LEDGER = """engine = "local"
[filter]
replicate-do-db = ["bank"]
[mirror]
enabled = false"""
"""Further settings of `ledger`, after those of its windows."""
PASSWORD, TOKEN = "s3cret-of-the-target", "s3cret-of-the-notifier"
DAGS = ("orders", "orders.maintain", "shop", "demo", "demo.audit", "demo.backfill", "demo.verify", "stock", "ledger")
_PATIENCE_S = 300.0
DAY = timedelta(days=1)
FIRST_DAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - 4 * DAY
"""The first of the two days on which `demo` has changes; Airflow creates runs for past days."""


@dataclass(frozen=True)
class World:
    """A running Airflow over five replications whose tasks find no Spark.

    `orders` has a live source and an empty lake. `demo` has no source any more, but a lake and a target that equals it.
    `shop` has neither source nor lake: an apply was interrupted, and its relay files exist. A script supplies the
    results of the windows of `stock`. `ledger` reads the source of `orders` into a database of its own, and its windows
    need no Spark. `heard` holds the metrics that Airflow sent by StatsD.
    """

    airflow: Airflow
    client: AirflowClient
    source: LiveSource
    lake: TinyLake
    server: MariaDb
    folder: Path
    heard: list[str]
    stock_run: str

    def until(self, what: str, found: Callable[[], Any]) -> Any:
        """Return the first true answer of `found`; fail after _PATIENCE_S."""
        end = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end:
            # While the API server still loads its parts, requests may time out.
            with contextlib.suppress(httpx.TimeoutException):
                if answer := found():
                    return answer
            time.sleep(0.3)
        raise AssertionError(f"not within {_PATIENCE_S:.0f} s: {what}")

    def until_task(self, dag_id: str, run_id: str, task_id: str, state: str) -> dict[str, Any]:
        """Wait until the task is in `state`, and return it."""

        def reached() -> dict[str, Any] | None:
            task = self.client.fetch_task(dag_id, run_id, task_id)
            return task if task["state"] == state else None

        return dict(self.until(f"{dag_id} {task_id} {state}", reached))

    def until_ended(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """Wait until the run has ended, and return it."""
        return self.client.wait_for_run(dag_id, run_id, _PATIENCE_S)

    def target_writes(self) -> list[str]:
        """The statements that Airflow's tasks sent to the target since the last call, except those that only read."""
        said = rows(self.server, "SELECT argument FROM mysql.general_log WHERE user_host LIKE 'binlake[%%'"
                                 " AND command_type = 'Query'")  # fmt: skip
        execute(self.server, "TRUNCATE mysql.general_log")
        assert said
        words = ((text.split()[0].upper(), text) for (argument,) in said if (text := _text(argument)))
        return [text for word, text in words if word not in ("SELECT", "SET", "SHOW", "START", "COMMIT", "ROLLBACK")]

    def failures(self) -> list[dict[str, Any]]:
        """The messages that the failure notifier received."""
        path = self.folder / "told"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def lineage(self, job: str, kind: str = "COMPLETE") -> tuple[set[str], dict[str, dict[str, Any]]]:
        """The newest event `kind` of the task `job` (dag.task): names of its inputs, facets of its outputs by name."""

        def list_events() -> list[dict[str, Any]]:
            path = self.folder / "home" / "lineage.jsonl"
            text = path.read_text() if path.exists() else ""
            # The last line may be incomplete.
            events = [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]
            return [one for one in events if (one["job"]["name"], one["eventType"]) == (job, kind)]

        # A run may end before the event of its last task is written.
        event = self.until(f"lineage of {job}", list_events)[-1]
        return {one["name"] for one in event["inputs"]}, {one["name"]: one["facets"] for one in event["outputs"]}

    @property
    def paths(self) -> LakePaths:
        """The lake of `orders`."""
        return LakePaths.of(load_replication(self.folder / "replications" / "orders.toml", secrets=False))


@contextlib.contextmanager
def airflow_world(folder: Path, mariadb: MariaDb, database: str) -> Iterator[World]:
    """Start everything, and remove it at the end. `database`: Airflow's empty one, as an SQLAlchemy URL."""
    mariadb.wipe()
    execute(mariadb, f"CREATE OR REPLACE USER binlake IDENTIFIED BY '{PASSWORD}'", "GRANT ALL ON *.* TO binlake")
    execute(mariadb, "SET GLOBAL log_output = 'TABLE'", "TRUNCATE mysql.general_log", "SET GLOBAL general_log = 1")
    spark = scripted_spark(folder / "spark")
    lineage = {"type": "file", "log_file_path": str(folder / "home" / "lineage.jsonl"), "append": True}
    env = {
        "BINLAKE_REPLICATIONS": str(folder / "replications"),
        "BINLAKE_TEST_TARGET_PASSWORD": PASSWORD,
        "BINLAKE_TEST_TOKEN": TOKEN,
        "BINLAKE_TEST_TOLD": str(folder / "told"),
        # The notifier is defined in the tests' own package.
        "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database,
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,guest:viewer",
        "AIRFLOW__CORE__PARALLELISM": "2",
        **SLOW_PACE,
        "AIRFLOW_CONN_SCRIPTED": json.dumps({"conn_type": "spark", "host": "local[1]"}),
        **spark,
        # Must come before this environment's own spark-submit.
        "PATH": os.pathsep.join([spark["PATH"], str(Path(sys.executable).parent)]),
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(lineage),
        "AIRFLOW__OPENLINEAGE__EXECUTION_TIMEOUT": "60",
    }
    try:
        with LiveSource(folder / "source", pumps=1) as source, _statsd() as (settings, heard):
            env.update(settings)
            lake = _build_past_lake(folder / "past", mariadb)
            own = f"""pd-urls = "{source.driver.url}"
status-url = "{source.status_url}"
timeout-s = 2"""
            _write(folder, "orders", own, folder / "lake", mariadb, "")
            gone = f'pd-urls = "http://127.0.0.1:{free_port()}"\ntimeout-s = 1'
            _write(folder, "demo", f'{gone}\ncluster-id = "7"', folder / "past" / "lake", mariadb, "every 20s")
            _write(folder, "shop", gone, folder / "nowhere", mariadb, "", relay=f'[relay]\nlog-dir = "{folder}"')
            _write(folder, "stock", gone, folder / "stock" / "lake", mariadb, "", 'layout = "fused"', "scripted")
            _write(folder, "ledger", own, folder / "ledger" / "lake", mariadb, "", 'layout = "fused"', "nowhere",
                   _LEDGER, "ledger")  # fmt: skip
            _interrupt_apply(folder, mariadb)
            with Airflow(folder / "home", env) as airflow:
                client = AirflowClient(airflow.url, airflow.user, airflow.password)
                for dag_id in DAGS:
                    client.wait_for_dag(dag_id, _PATIENCE_S)
                    client.set_paused(dag_id, dag_id == "demo")
                # This run continues while the first tests wait for other things.
                script(folder / "spark", _script_window())
                yield World(airflow, client, source, lake, mariadb, folder, heard, client.trigger("stock"))
                client.close()
    finally:
        execute(mariadb, "SET GLOBAL general_log = 0", "TRUNCATE mysql.general_log")
        execute(mariadb, "DROP USER IF EXISTS binlake")


def _text(argument: str | bytes) -> str:
    return argument.decode() if isinstance(argument, bytes) else argument


def _interrupt_apply(folder: Path, server: MariaDb) -> None:
    """Leave the window of `shop` half applied on the target (consistent = false), with no process to resume it."""
    execute(server, "CREATE DATABASE app", "CREATE TABLE app.t (id BIGINT PRIMARY KEY, v VARCHAR(20))")
    own = load_replication(folder / "replications" / "shop.toml", secrets=False)
    target = target_of(server, mode="parallel", worker_count=1)

    def crash() -> None:
        raise Crash

    with contextlib.suppress(Crash):
        window = Window(0, 300).put((1, "a")).put((2, "b")).into(target, ("app", "t"))
        apply(target, window, at("batch", 2, crash), RelayLog.of(own))
    assert checkpoint(server).startswith('{"consistent":false,"commitTS":0,')
    assert rows(server, "SELECT id FROM app.t") == [(1,)]


def checkpoint(server: MariaDb) -> str:
    """The checkpoint of the cluster of `orders` and `shop`."""
    [(found,)] = rows(server, "SELECT checkPoint FROM tidb_binlog.checkpoint WHERE clusterID <> 7")
    return str(found)


def write_checkpoint(server: MariaDb, told: str) -> None:
    """Overwrite that checkpoint by hand."""
    execute(server, f"UPDATE tidb_binlog.checkpoint SET checkPoint = '{told}' WHERE clusterID <> 7")
    accept_rows(server)


def _build_past_lake(root: Path, target: MariaDb) -> TinyLake:
    """Ten rows of one table with two changes each: the first five rows change on the first day, the others on the
    second.
    """
    ticks = [counter(int((FIRST_DAY + n * DAY).timestamp() * 1000) + 1) for n in range(3)]
    workload = Workload(clock=lambda: ticks[0]())
    lake = TinyLake(root, workload, {"target": target_config(target)})
    workload.create_database("shop")
    workload.create_table("shop", "item", [integer("id"), text("name")], ["id"])
    for n in range(10):
        if n == 5:
            del ticks[0]
        workload.begin().insert("shop", "item", id=n, name="new").commit()
        workload.begin().update("shop", "item", workload.rows["shop", "item"][n], name=f"item {n}").commit()
    del ticks[0]
    hi = lake.land()
    fill(target, workload)
    set_checkpoint(target, hi)
    return lake


def _script_window() -> dict[str, list[dict[str, Any]]]:
    """A script for a window that changed two tables."""
    stages = ("plan", "land", "merge", "compact", "convert", "finalize")
    told = [one for name in stages for one in answer(name, LO, HI, "ready" if name == "plan" else "done")["results"]]
    told[stages.index("compact")]["detail"] = {"changed": [["shop", "item"], ["shop", "line"]]}
    names = [["id", "bigint"], ["name", "varchar(64)"]]
    wrote = [
        {"db": "shop", "table": table, "columns": [*names, ["own", ""]], "copied": ["id", "name"],
         "sources": [{"db": "shop", "table": table, "columns": names}]} for table in ("item", "line")
    ]  # fmt: skip
    told[stages.index("finalize")]["detail"] = {LINEAGE: {"wrote": wrote}}
    return {"window": [{"ok": True, "results": told}]}


@contextlib.contextmanager
def _statsd() -> Iterator[tuple[dict[str, str], list[str]]]:
    """A minimal StatsD server: the settings that make Airflow use it, and the metrics it receives."""
    heard: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((HOST, 0))

        def listen() -> None:
            while told := server.recv(65536):
                heard.extend(told.decode().splitlines())

        listener = threading.Thread(target=listen)
        listener.start()
        try:
            port = str(server.getsockname()[1])
            names = {"STATSD_ON": "True", "STATSD_HOST": HOST, "STATSD_PORT": port}
            yield {f"AIRFLOW__METRICS__{name}": value for name, value in names.items()}, heard
        finally:
            server.sendto(b"", server.getsockname())
            listener.join(10)


def _write(
    folder: Path, name: str, source: str, lake: Path, target: MariaDb, schedule: str, layout: str = "",
    conn_id: str = "nowhere", relay: str = "", checkpoint_schema: str = "tidb_binlog",
) -> None:  # fmt: skip
    place = folder / "replications"
    place.mkdir(exist_ok=True)
    (place / f"{name}.toml").write_text(
        f"""name = "{name}"
initial-commit-ts = "{0 if name == "ledger" else -1}"
[source]
{source}
[lake]
path = "{lake}"
[target]
db-type = "mariadb"
host = "{target.host}"
port = {target.port}
user = "binlake"
password = "env:BINLAKE_TEST_TARGET_PASSWORD"
checkpoint-schema = "{checkpoint_schema}"
[window]
# The past of `demo` is days old.
blocked-alert-s = 31000000
# What the script answers is spark-submit: no plain process before it.
driver-bytes = 0
{relay}
[airflow]
schedule = "{schedule}"
spark-conn-id = "{conn_id}"
{layout}
retries = 0
wait-s = 600
deadline-s = 5
[airflow.maintain]
schedule = ""
[airflow.on-failure]
notifier = "support.notified.by_call"
kwargs = {{channel = "night", token = "env:BINLAKE_TEST_TOKEN"}}
""",
        encoding="utf-8",
    )
