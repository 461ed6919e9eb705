"""The DAG files: what Airflow gets from a folder of replications (C-04, C-06, S0-55, hazards R-45, R-46)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization
from support.replication_files import write_replication

from binlake.errors import IncompleteWindow, Permanent, TargetRefused, UnknownOutcome
from binlake.pipeline import BY_NAME, stages_for
from binlake_airflow.factory import build_dag
from binlake_airflow.operators import ConnectStageOperator, SubmitStageOperator

DAGS = Path(__file__).resolve().parents[2] / "dags"


def bag() -> DagBag:
    return DagBag(dag_folder=DAGS, bundle_path=DAGS, bundle_name="test")


def wiring(dag: DAG) -> dict[str, set[str]]:
    return {task.task_id: set(task.upstream_task_ids) for task in dag.tasks}


def test_one_dag_for_each_replication_file(folder: Path) -> None:
    write_replication(folder, "orders")
    write_replication(folder, "stock")
    (folder / "notes.toml.example").write_text("not = [valid")
    found = bag()
    assert found.import_errors == {}
    assert set(found.dags) == {"orders", "stock"}
    assert {dag.relative_fileloc for dag in found.dags.values()} == {"binlake_replications.py"}


def test_an_empty_folder_gives_no_dag_and_no_error(folder: Path) -> None:
    assert list(folder.iterdir()) == []
    found = bag()
    assert (found.import_errors, found.dags) == ({}, {})


def test_a_broken_file_is_one_clear_import_error_and_hides_no_other(folder: Path) -> None:
    write_replication(folder, "orders")
    write_replication(folder, "typo", window="max-second = 5")
    write_replication(folder, "timing", airflow='schedule = "now and then"')
    (folder / "torn.toml").write_text("name = ")
    found = bag()
    assert set(found.dags) == {"orders"}
    assert list(found.import_errors) == ["binlake_broken.py"]
    text = found.import_errors["binlake_broken.py"]
    # What, where, hint: the last lines, after Airflow's own.
    for part in ("unknown key `window.max-second`", "typo.toml", "max-seconds", "timing.toml", "torn.toml"):
        assert part in text
    assert "orders.toml" not in text


def test_two_files_of_one_name_are_both_refused(folder: Path) -> None:
    path = write_replication(folder, "orders")
    (folder / "copy.toml").write_text(path.read_text())
    found = bag()
    assert found.dags == {}
    assert "another file has the same replication name" in found.import_errors["binlake_broken.py"]


def test_tasks_are_the_stages_wired_as_the_pipeline_says(folder: Path) -> None:
    dag = build_dag(write_replication(folder, "orders"))
    assert wiring(dag) == {stage.name: set(stage.after) for stage in stages_for(sql=True, mirror=True)}
    # Sinks stand side by side (invariant 12): the mirror waits for nothing of the SQL sink, nor the other way round.
    assert not dag.get_task("mirror").get_flat_relative_ids(upstream=False)
    assert "mirror" not in dag.get_task("finalize").get_flat_relative_ids(upstream=True)


@pytest.mark.parametrize(
    ("sections", "last"),
    [({"target": None}, {"mirror"}), ({"mirror": "enabled = false"}, {"finalize"}), ({}, {"mirror", "finalize"})],
)
def test_sinks_that_are_not_configured_have_no_tasks(
    folder: Path, sections: dict[str, str | None], last: set[str]
) -> None:
    dag = build_dag(write_replication(folder, "orders", **sections))
    assert {task.task_id for task in dag.tasks if not task.downstream_task_ids} == last


def test_the_fused_layout_is_one_task(folder: Path) -> None:
    dag = build_dag(write_replication(folder, "orders", airflow='layout = "fused"\nengine = "connect"'))
    (task,) = dag.tasks
    assert (task.task_id, type(task)) == ("window", ConnectStageOperator)


@pytest.mark.parametrize(("engine", "cls"), [("submit", SubmitStageOperator), ("connect", ConnectStageOperator)])
def test_the_engine_chooses_the_operator(folder: Path, engine: str, cls: type) -> None:
    dag = build_dag(write_replication(folder, "orders", airflow=f'engine = "{engine}"\nspark-conn-id = "mine"'))
    assert {type(task) for task in dag.tasks} == {cls}
    assert {task.spark_conn_id for task in dag.tasks} == {"mine"}


def test_runs_never_overlap_and_the_past_is_not_caught_up(folder: Path) -> None:
    dag = build_dag(write_replication(folder, "orders", airflow='schedule = "every 10s"\nretries = 4'))
    assert (dag.max_active_runs, dag.catchup) == (1, False)
    assert dag.timetable.delta.total_seconds() == 10
    assert {task.retries for task in dag.tasks} == {4}


def test_people_find_their_way(folder: Path) -> None:
    dag = build_dag(write_replication(folder, "orders"))
    assert "replication" in dag.tags
    assert {task.owner for task in dag.tasks} == {"binlake"}
    assert {task.task_id: task.doc_md for task in dag.tasks} == {name: BY_NAME[name].summary for name in dag.task_ids}
    for task_id in dag.task_ids:
        assert f"`{task_id}`" in dag.doc_md


@pytest.mark.parametrize(
    ("error", "action"), [(Permanent, "fail"), (TargetRefused, "fail"), (IncompleteWindow, "retry"),
                          (UnknownOutcome, "retry"), (OSError, "default")]
)  # fmt: skip
def test_only_what_waiting_helps_is_tried_again(folder: Path, error: type[Exception], action: str) -> None:
    for task in build_dag(write_replication(folder, "orders")).tasks:
        assert task.retry_policy.evaluate(error("x"), 1, 2).action.value == action


def test_a_timestamp_param_is_a_string_or_nothing(folder: Path) -> None:
    params = build_dag(write_replication(folder, "orders")).params
    assert set(params) == {"start_ts", "stop_ts"}
    for name in params:
        schema = params.get_param(name).schema
        assert (schema["type"], schema["pattern"]) == (["null", "string"], "^[0-9]{1,20}$")
        assert params[name] is None


def test_a_dag_survives_the_scheduler_s_copy_and_holds_no_secret(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BINLAKE_TEST_UNSET_PASSWORD", "s3cret-of-the-target")
    dag = build_dag(write_replication(folder, "orders", airflow='schedule = "every 10s"'))
    text = json.dumps(DagSerialization.to_dict(dag))
    assert "s3cret-of-the-target" not in text
    copy = DagSerialization.from_dict(json.loads(text))
    assert {t.task_id: set(t.upstream_task_ids) for t in copy.tasks} == wiring(dag)
    assert copy.max_active_runs == 1


_PARSE = """
import sys, time
import airflow.sdk, airflow.providers.apache.spark.hooks.spark_submit
began = time.process_time()
from binlake_airflow.factory import build_all
import binlake_airflow.plugin
built = build_all()
print(time.process_time() - began, len(built.dags))
print(*[name for name in ("pyspark", "delta", "deltalake", "grpc", "pyarrow", "pandas", "spark_jobs", "fastapi")
        if name in sys.modules])
"""


def test_parsing_is_quick_and_loads_nothing_heavy(folder: Path) -> None:
    # Processor time, because other work on the machine must not fail the test.
    for number in range(10):
        write_replication(folder, f"orders{number}")
    done = subprocess.run([sys.executable, "-c", _PARSE], capture_output=True, text=True, check=True)
    first, heavy = done.stdout.splitlines()[-2:]
    seconds, dags = first.split()
    assert (int(dags), heavy) == (10, "")
    assert float(seconds) < 1.0
