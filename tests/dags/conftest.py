"""Fixtures of the Airflow shell's tests."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support import scripted_job
from support.airflow_home import migrated_home, private_home
from support.dag_runs import Run, Runner, good_window
from support.replication_files import write_replication
from support.scripted_spark import script, scripted_spark

private_home()


@pytest.fixture(scope="session")
def airflow_db() -> Path:
    """A migrated metadata database in the private home, which it returns."""
    return migrated_home()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of replications that the shell reads."""
    place = tmp_path / "replications"
    place.mkdir()
    monkeypatch.setenv("BINLAKE_REPLICATIONS", str(place))
    return place


@pytest.fixture
def run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """Run a DAG of a replication once with scripted jobs."""
    from binlake_airflow.dags.factory import build_dags
    from binlake_airflow.operators import base, spark, waiting

    for name, value in scripted_spark(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    monkeypatch.setenv("AIRFLOW_CONN_CONNECT", json.dumps({"conn_type": "spark_connect", "host": "h", "port": 1}))
    monkeypatch.setattr(spark, "require_spark", lambda _url: "h:1")
    # A rescheduled task would otherwise count as lost, so the trigger looks more often.
    monkeypatch.setattr(waiting, "_LOOK_S", 0.05)
    monkeypatch.setattr(base, "build_command", lambda _module: (sys.executable, scripted_job.__file__))

    def once(
        answers: dict[str, list[dict[str, Any]]],
        conf: dict[str, Any] | None = None,
        kind: str = "",
        **sections: str | None,
    ) -> Run:
        script(tmp_path, answers)
        calls = tmp_path / "calls.jsonl"
        calls.unlink(missing_ok=True)
        dag = build_dags(write_replication(folder, "orders", **sections))[f"orders{kind}"]
        dag_run = dag.test(run_conf=conf)
        made = calls.read_text().splitlines() if calls.exists() else []
        return Run(dag_run, [json.loads(line) for line in made])

    return once


@pytest.fixture(scope="session")
def good_runs() -> list[Run]:
    """Holds the one run of a good window after a test has asked for it."""
    return []


@pytest.fixture
def good_run(good_runs: list[Run], run: Runner) -> Run:
    """The run of a good window, shared by several tests."""
    if not good_runs:
        good_runs.append(run(good_window()))
    return good_runs[0]
