"""The DAG on the embedded components: its tasks run the real stages by spark-submit. The demo uses the fused layout."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from support.airflow_home import migrated_home, private_home
from support.live import LiveSource
from support.mariadb import MariaDb
from test_e2e_window import Make, expected, set_up, some_changes, tables_of, toml

private_home()

pytestmark = [pytest.mark.spark, pytest.mark.mariadb, pytest.mark.airflow, pytest.mark.e2e]


@pytest.fixture(scope="module")
def airflow_db() -> None:
    """A migrated metadata database."""
    migrated_home()


@pytest.fixture
def dag(
    context: Make, target: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    airflow_db: None,
) -> Any:  # fmt: skip
    """The DAG of a replication with one task per stage."""
    from binlake_airflow.dags.factory import build_dag

    del airflow_db
    layout = {"layout": "stages", "engine": "submit", "schedule": "", "retries": 0, "wait-s": 0}
    replication = context(target=target, mirror={"enabled": True}, airflow=layout).replication
    folder = tmp_path / "replications"
    folder.mkdir()
    (folder / "live.toml").write_text(toml(replication.model_dump(mode="json", by_alias=True, exclude_none=True)))
    monkeypatch.setenv("BINLAKE_REPLICATIONS", str(folder))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return build_dag(folder / "live.toml")


@pytest.mark.soak
def test_every_stage_is_a_task_and_a_stopped_pump_is_named(
    dag: Any, source: LiveSource, context: Make, mariadb: MariaDb
) -> None:  # S0-55 S0-56 C-02 R-46
    set_up(source.workload)
    some_changes(source.workload, 2)
    source.settle()
    run = dag.test()
    assert str(run.state) == "success"
    assert tables_of(source.workload, mariadb) == expected(source.workload)
    done = {ti.task_id: ti for ti in run.get_task_instances()}
    assert str(done.pop("recover").state) == "skipped"
    results = {name: ti.xcom_pull(task_ids=name) for name, ti in done.items()}
    assert set(results) == {"plan", "land", "merge", "compact", "convert", "finalize", "mirror"}
    bounds = {(result["lo"], result["hi"]) for name, result in results.items() if name != "plan"}
    assert bounds == {("0", str(context().windows.find_landed_ts()))}
    source.stop_pump("pump2")
    blocked = dag.test()
    assert str(blocked.state) == "success"
    states = {ti.task_id: str(ti.state) for ti in blocked.get_task_instances()}
    assert {name for name, state in states.items() if state == "skipped"} == {*results, "recover"} - {"plan"}
    (plan,) = (ti for ti in blocked.get_task_instances() if ti.task_id == "plan")
    assert plan.xcom_pull(task_ids="plan")["blocked_by"] == "pump2"
