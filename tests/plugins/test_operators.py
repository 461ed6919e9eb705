"""The operators beyond a good run: kills, connections, missing files."""

import json
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from binlake.common.installation import list_delta_jars
from binlake.config.model import WindowSection as WindowSettings
from binlake.errors import ConfigError, Transient
from binlake_airflow.jobs import StageJob
from binlake_airflow.operators import base, spark
from binlake_airflow.operators.commands import RestoreOperator
from binlake_airflow.operators.spark import find_application_file
from binlake_airflow.operators.sparkstages import ConnectStageOperator, SubmitStageOperator
from deploy.local.ports import free_port

_SLEEPS = (sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)")


def operator(cls: type, conn_id: str = "spark") -> Any:
    return cls(task_id="land", stage="land", replication="orders", replication_file="/r.toml", spark_conn_id=conn_id)


def settings(driver_bytes: int) -> Any:
    return SimpleNamespace(window=SimpleNamespace(most_local_bytes=driver_bytes))


@pytest.fixture(autouse=True)
def _no_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replication files of these tests do not exist."""
    monkeypatch.setattr(base.BinlakeOperator, "read_secrets", lambda _task: {})


def _until(condition: Any) -> None:
    deadline = time.monotonic() + 120
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def test_kill_ends_the_client_and_its_work_on_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", '{"conn_type": "spark_connect", "host": "h", "port": 1}')
    monkeypatch.setattr(base, "build_command", lambda _module: _SLEEPS)
    released: list[str] = []
    monkeypatch.setattr(spark, "interrupt", lambda url, _log: released.append(url))
    monkeypatch.setattr(spark, "require_spark", lambda _url: "h:1")
    task, ended = operator(ConnectStageOperator), []
    job = StageJob("land", "/r.toml", "run 1", lo="1", hi="2")
    runner = threading.Thread(target=lambda: ended.append(task.run_spark(job, Path("/nowhere"))))
    runner.start()
    _until(lambda: task._process is not None and task._process.last_line == "up")
    task.on_kill()
    runner.join(120)
    assert ended == ["exit status -15, last line: up"]
    assert len(released) == 1
    assert released[0].startswith("sc://h:1/;session_id=")


def test_kill_ends_the_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "spark-submit"
    program.write_text("#!/bin/sh\necho up\nexec sleep 600\n")
    program.chmod(0o755)
    (tmp_path / "delta.jar").touch()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("BINLAKE_JARS", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", '{"conn_type": "spark", "host": "local[1]"}')
    task, ended = operator(SubmitStageOperator), []
    monkeypatch.setattr(SubmitStageOperator, "read_settings", lambda _task: settings(driver_bytes=0))
    job = StageJob("land", "/r.toml", "run 1", lo="1", hi="2")
    runner = threading.Thread(target=lambda: ended.append(task.run_spark(job, Path("/nowhere"))))
    runner.start()
    _until(lambda: task._hook is not None and "up" in task._hook._last_submit_log_lines)
    task.on_kill()
    runner.join(120)
    assert "Error code is: -9" in ended[0]


@pytest.mark.parametrize(
    ("driver_bytes", "error", "submitted"),
    [
        (1, None, False),
        (1, {"class": "Transient", "kind": "transient"}, False),
        (1, {"class": "SparkNeeded"}, True),
        (0, None, True),
    ],
    ids=["plain process succeeds", "transient error", "spark needed", "driver not allowed"],
)
def test_stage_is_submitted_if_a_plain_process_is_not_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, driver_bytes: int, error: dict[str, str] | None, submitted: bool
) -> None:
    outcome = {"ok": True, "results": []} if error is None else {"ok": False, "error": error}
    where = "sys.argv[sys.argv.index('--result') + 1]"
    writes = f"import sys, pathlib; pathlib.Path({where}).write_text({json.dumps(outcome)!r})"
    monkeypatch.setattr(base, "build_command", lambda _module: (sys.executable, "-c", writes))
    program = tmp_path / "spark-submit"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/submitted\n")
    program.chmod(0o755)
    (tmp_path / "delta.jar").touch()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("BINLAKE_JARS", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", '{"conn_type": "spark", "host": "local[1]"}')
    monkeypatch.setattr(SubmitStageOperator, "read_settings", lambda _task: settings(driver_bytes))
    operator(SubmitStageOperator).run_spark(
        StageJob("land", "/r.toml", "run 1", lo="1", hi="2"), tmp_path / "result.json"
    )
    assert (tmp_path / "submitted").exists() is submitted


@pytest.mark.parametrize("kind", [SubmitStageOperator, ConnectStageOperator])
def test_engine_local_needs_no_connection_to_spark(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    called: list[list[str]] = []

    def run_child(_task: object, arguments: list[str], *_: object) -> str:
        called.append(list(arguments))
        Path(arguments[arguments.index("--result") + 1]).write_text(json.dumps({"ok": True, "results": []}))
        return "exit status 0"

    monkeypatch.setattr(base.BinlakeOperator, "run_child", run_child)
    monkeypatch.setattr(kind, "read_settings", lambda _task: SimpleNamespace(window=WindowSettings(engine="local")))
    task = operator(kind, "there-is-none")
    assert task._run(StageJob("land", "/r.toml", "run 1", lo="1", hi="2"), {}) == []
    assert ["--without-spark" in arguments for arguments in called] == [True]


ANSWERS = ({"ok": True, "results": [], "printed": "[]", "status": 0}, {"ok": False, "error": {"class": "SparkNeeded"}})


@pytest.mark.parametrize("outcome", ANSWERS, ids=["not needed", "needed"])
def test_dead_connect_server_stops_only_what_needs_spark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, outcome: dict[str, Any]
) -> None:
    dead = {"conn_type": "spark_connect", "host": "127.0.0.1", "port": free_port()}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps(dead))
    called: list[list[str]] = []

    def run_child(_task: object, arguments: list[str], *_: object) -> str:
        called.append(list(arguments))
        where = arguments[arguments.index("--result") + 1] if "--result" in arguments else arguments[0]
        Path(where).write_text(json.dumps(outcome))
        return "exit status 0"

    monkeypatch.setattr(base.BinlakeOperator, "run_child", run_child)
    task = operator(ConnectStageOperator)
    command = RestoreOperator(
        task_id="restore", replication="orders", replication_file="/r.toml", engine="connect", spark_conn_id="spark"
    )
    monkeypatch.setattr(RestoreOperator, "build_arguments", lambda *_: [])
    monkeypatch.setattr(RestoreOperator, "answer", lambda _task, printed, *_: printed)
    context = {
        "params": {},
        "dag_run": SimpleNamespace(start_date=datetime.now(UTC)),
        "ti": SimpleNamespace(try_number=2),
    }
    jobs = (
        lambda: task.run_spark(StageJob("land", "/r.toml", "run 1", lo="1", hi="2"), tmp_path / "result.json"),
        lambda: command.attempt(context, 0.0),
    )
    for job in jobs:
        if outcome["ok"]:
            job()
        else:
            with pytest.raises(Transient, match="the Spark Connect server does not answer"):
                job()
    assert [("--without-spark" in arguments, "--remote" in arguments) for arguments in called] == [(True, False)] * 2


def test_blocked_plan_reports_the_reason_before_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, float] = {}
    monkeypatch.setattr("airflow.sdk.observability.stats.gauge", lambda name, value, **_: told.update({name: value}))
    task = SubmitStageOperator(task_id="plan", stage="plan", replication="orders", replication_file="/r.toml",
                               spark_conn_id="spark")  # fmt: skip
    first = {"stage": "plan", "state": "blocked", "lo": "470583292723200001", "hi": "470583292723200001",
             "blocked_by": "pump-2", "detail": {"reason": "why"}}  # fmt: skip
    context = {"params": {}, "ti": SimpleNamespace(xcom_push=lambda **_: None)}
    with pytest.raises(TaskDeferred):
        task._wait_for_pumps(first, context, time.time() + 600)
    assert told["binlake.orders.blocked"] == 1
    assert set(told) == {f"binlake.orders.{name}" for name in ("blocked", "landed_lag_seconds",
                                                               "landed_timestamp_seconds")}  # fmt: skip


def test_kill_before_anything_started_is_silent() -> None:
    operator(ConnectStageOperator).on_kill()
    operator(SubmitStageOperator).on_kill()


@pytest.mark.parametrize("cls", [ConnectStageOperator, SubmitStageOperator])
def test_missing_connection_is_named(cls: type) -> None:
    with pytest.raises(ConfigError, match=r"spark_conn_id=nowhere.*AIRFLOW_CONN_NOWHERE"):
        operator(cls, "nowhere").run_spark(StageJob("land", "/r.toml", "r"), Path("/nowhere"))


def test_missing_jars_are_one_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BINLAKE_JARS", str(tmp_path))
    with pytest.raises(ConfigError, match="no Delta jars found"):
        list_delta_jars()


def test_job_is_found_without_importing_it() -> None:
    before = set(sys.modules)
    assert Path(find_application_file()).parts[-3:] == ("spark_jobs", "commands", "main.py")
    assert {"binlake.spark_jobs.commands.main", "pyspark"}.isdisjoint(set(sys.modules) - before)
