"""The DAG files: what Airflow gets from a folder of replications (C-04, C-06, S0-55, hazards R-45, R-46)."""

import importlib
import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import BaseSerialization, DagSerialization
from airflow.timetables.base import TimeRestriction
from airflow.triggers.base import BaseTrigger
from support.replication_files import write_replication

from binlake import tso
from binlake.errors import IncompleteWindow, Permanent, TargetRefused, UnknownOutcome
from binlake.pipeline import BY_NAME, LAKE, MIRROR, SQL
from binlake_airflow.dags.dagparts import KINDS, MOMENT_PATTERN
from binlake_airflow.dags.factory import build_all, build_dag, build_dags
from binlake_airflow.operators.sparkstages import ConnectStageOperator, SubmitStageOperator
from binlake_airflow.operators.stages import RECOVER, StageOperator
from binlake_airflow.timetable import compute_range_of_times

DAGS = Path(__file__).resolve().parents[2] / "dags"


def bag() -> DagBag:
    return DagBag(dag_folder=DAGS, bundle_path=DAGS, bundle_name="test")


def wiring(dag: DAG) -> dict[str, set[str]]:
    return {task.task_id: set(task.upstream_task_ids) for task in dag.tasks}


def ids(*names: str) -> set[str]:
    return {name if kind == "sync" else f"{name}.{kind}" for name in names for kind in KINDS}


def test_each_replication_file_gives_its_sync_and_side_dags(folder: Path) -> None:
    write_replication(folder, "orders")
    write_replication(folder, "stock")
    (folder / "notes.toml.example").write_text("not = [valid")
    found = bag()
    assert found.import_errors == {}
    assert set(found.dags) == ids("orders", "stock")
    assert {dag.relative_fileloc for dag in found.dags.values()} == {"binlake_replications.py"}


def test_empty_folder_gives_no_dag_and_no_error(folder: Path) -> None:
    assert list(folder.iterdir()) == []
    found = bag()
    assert (found.import_errors, found.dags) == ({}, {})


def test_broken_file_is_one_clear_import_error_and_hides_no_other(folder: Path) -> None:
    write_replication(folder, "orders")
    write_replication(folder, "typo", window="max-second = 5")
    write_replication(folder, "timing", airflow='schedule = "now and then"')
    (folder / "torn.toml").write_text("name = ")
    found = bag()
    assert set(found.dags) == ids("orders")
    assert list(found.import_errors) == ["binlake_broken.py"]
    text = found.import_errors["binlake_broken.py"]
    # Airflow's own lines come first; the last lines say what, where, and the hint.
    for part in ("unknown key `window.max-second`", "typo.toml", "max-seconds", "timing.toml", "torn.toml"):
        assert part in text
    assert "orders.toml" not in text


def test_two_files_with_one_name_are_both_refused(folder: Path) -> None:
    path = write_replication(folder, "orders")
    (folder / "copy.toml").write_text(path.read_text())
    found = bag()
    assert found.dags == {}
    assert "another file has the same replication name" in found.import_errors["binlake_broken.py"]


def list_stages_before() -> dict[str, set[str]]:
    """The stages of a replication with target and mirrors, and which ones each waits for."""
    places = (LAKE, SQL, MIRROR)
    return {stage.name: set(stage.after) for place in places for stage in place.stages if not stage.optional}


def test_tasks_are_the_stages_in_the_pipelines_order(folder: Path) -> None:
    dag = build_dag(write_replication(folder, "orders"))
    stages = list_stages_before()
    assert wiring(dag) == {**stages, RECOVER: {"plan"}}
    assert set(dag.task_group.children) == {"lake", "target", "mirrors", RECOVER}
    # Sinks are independent (invariant 12): neither the mirror nor the SQL sink waits for the other.
    assert not dag.get_task("mirror").get_flat_relative_ids(upstream=False)
    assert "mirror" not in dag.get_task("finalize").get_flat_relative_ids(upstream=True)


@pytest.mark.parametrize(
    ("sections", "last"),
    [
        ({"target": None}, {"mirror"}),
        ({"mirror": "enabled = false"}, {"finalize", RECOVER}),
        ({"validation": 'mode = "sample"'}, {"mirror", "validate", RECOVER}),
        ({}, {"mirror", "finalize", RECOVER}),
    ],
    ids=["no target", "no mirror", "validation", "defaults"],
)
def test_sinks_that_are_not_configured_have_no_tasks(
    folder: Path, sections: dict[str, str | None], last: set[str]
) -> None:
    dag = build_dag(write_replication(folder, "orders", **sections))
    assert {task.task_id for task in dag.tasks if not task.downstream_task_ids} == last


def test_fused_layout_is_one_task(folder: Path) -> None:
    dag = build_dag(write_replication(folder, "orders", airflow='layout = "fused"\nengine = "connect"'))
    assert wiring(dag) == {"window": set(), RECOVER: {"window"}}
    assert type(dag.get_task("window")) is ConnectStageOperator


def test_stages_follow_one_process_without_workers(folder: Path) -> None:  # 34
    dag = build_dag(write_replication(folder, "orders", airflow="one-process = true"))
    stages = list_stages_before()
    assert wiring(dag) == {**stages, "window": set(), RECOVER: {"window"}}
    copy = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))
    for name in stages:
        task: Any = copy.get_task(name)
        assert task.start_from_trigger
        assert BaseSerialization.deserialize(task.start_trigger_args.trigger_kwargs) == {"process": "window"}
        assert task.start_trigger_args.next_method == StageOperator.run_alone.__name__
        module, _, kind = task.start_trigger_args.trigger_cls.rpartition(".")
        assert issubclass(getattr(importlib.import_module(module), kind), BaseTrigger)
    whole: Any = copy.get_task("window")
    assert not whole.start_from_trigger
    fused = build_dag(write_replication(folder, "stock", airflow='layout = "fused"\none-process = true'))
    assert wiring(fused) == {"window": set(), RECOVER: {"window"}}


@pytest.mark.parametrize(("engine", "cls"), [("submit", SubmitStageOperator), ("connect", ConnectStageOperator)])
def test_engine_chooses_the_operator(folder: Path, engine: str, cls: type) -> None:
    dag = build_dag(write_replication(folder, "orders", airflow=f'engine = "{engine}"\nspark-conn-id = "mine"'))
    assert {type(task) for task in dag.tasks if isinstance(task, StageOperator)} == {cls}
    assert {task.spark_conn_id for task in dag.tasks} == {"mine"}


def test_runs_never_overlap_and_there_is_no_catchup(folder: Path) -> None:
    dag = build_dag(write_replication(folder, "orders", airflow='schedule = "every 10s"\nretries = 4'))
    assert (dag.max_active_runs, dag.catchup) == (1, False)
    assert dag.timetable.delta.total_seconds() == 10
    assert {task.retries for task in dag.tasks} == {4}


def test_dags_have_descriptions_links_and_labels(folder: Path) -> None:
    own = 'owner = "payments"\ntags = "gold, night"\npool = "lake"'
    dags = build_dags(write_replication(folder, "orders", airflow=own))
    for kind, dag in zip(KINDS, sorted(dags.values(), key=lambda dag: KINDS.index(_kind(dag))), strict=True):
        assert set(dag.tags) == {"binlake", kind, "orders", "submit", "gold", "night"}
        assert dag.description
        assert "orders.toml" in str(dag.doc_md)
        assert {(task.owner, task.pool) for task in dag.tasks} == {("payments", "lake")}
        assert all(task.doc_md for task in dag.tasks)
        for name in dag.params:
            assert dag.params.get_param(name).schema["title"] == name
            assert dag.params.get_param(name).description or dag.params.get_param(name).schema.get("enum")
    sync = dags["orders"]
    assert {task.task_id: task.doc_md for task in sync.tasks if task.task_id != RECOVER} == {
        name: BY_NAME[name].summary for name in sync.task_ids if name != RECOVER
    }
    for task_id in sync.task_ids:
        assert f"`{task_id}`" in str(sync.doc_md)


def _kind(dag: DAG) -> str:
    return dag.dag_id.partition(".")[2] or "sync"


def test_replication_without_a_target_has_no_recover_task(folder: Path) -> None:
    dags = build_dags(write_replication(folder, "orders", target=None))
    assert set(dags) == ids("orders") - {"orders.recover", "orders.verify"}


@pytest.mark.parametrize("name", ["../up", "Orders", "a b", "a.backfill", "{{ 1 }}", "x;rm", "", "ä", "a" * 64])
def test_name_with_hostile_characters_is_refused(folder: Path, name: str) -> None:
    path = write_replication(folder, "orders")
    path.write_text(path.read_text().replace('name = "orders"', f'name = "{name}"'))
    built = build_all()
    assert built.dags == {}
    assert "`name`" in str(built.broken[path])


@pytest.mark.parametrize(
    ("error", "action"), [(Permanent, "fail"), (TargetRefused, "fail"), (IncompleteWindow, "retry"),
                          (UnknownOutcome, "retry"), (OSError, "default")]
)  # fmt: skip
def test_only_retryable_tasks_have_retries(folder: Path, error: type[Exception], action: str) -> None:
    for task in build_dag(write_replication(folder, "orders")).tasks:
        assert task.retry_policy.evaluate(error("x"), 1, 2).action.value == action


def test_timestamp_param_is_a_string_or_empty(folder: Path) -> None:
    params = build_dag(write_replication(folder, "orders")).params
    assert set(params) == {"start_ts", "stop_ts"}
    for name in params:
        schema = params.get_param(name).schema
        assert (schema["type"], schema["pattern"]) == (["null", "string"], MOMENT_PATTERN)
        assert params[name] is None


@pytest.mark.parametrize(
    ("text", "good"),
    [("470583292723200001", True), ("2026-11-21", True), ("2026-11-21T10:00:00Z", True),
     ("2026-11-21 10:00:00.123+02:00", True), ("-1", False), ("1e17", False), ("now", False), (" 1", False),
     ("0x10", False), ("470583292723200001\n", False), ("--hi", False)],
)  # fmt: skip
def test_time_param_is_a_commit_ts_or_a_time(text: str, good: bool) -> None:
    # Checked as a browser's form and the API do: a pattern of JSON schema need not match the whole text.
    found = re.search(MOMENT_PATTERN, text)
    assert bool(found and found.group() == text) is good
    assert not good or tso.parse(text) > 0


def test_dates_are_backfilled_in_a_separate_dag(folder: Path) -> None:
    # C-05: the sync follows its checkpoint, not dates; `backfill` has intervals and is never scheduled.
    dags = build_dags(write_replication(folder, "orders", airflow='schedule = "every 10s"'))
    assert "backfill" not in {str(kind.value) for kind in dags["orders"].allowed_run_types}
    copy = DagSerialization.from_dict(DagSerialization.to_dict(dags["orders.backfill"]))
    first = datetime(2026, 11, 20, tzinfo=UTC)
    found = list(copy.iter_dagrun_infos_between(first, first + timedelta(days=2)))
    ranges = [compute_range_of_times(info.data_interval.start, info.data_interval.end) for info in found]
    assert len(ranges) == 3
    assert [hi for _, hi in ranges[:-1]] == [lo for lo, _ in ranges[1:]]
    assert ranges[0][0] == tso.from_datetime(first) - 1
    never = copy.timetable.next_dagrun_info(
        last_automated_data_interval=None, restriction=TimeRestriction(None, None, catchup=False)
    )
    assert never is None


def test_side_dags_are_created_unpaused(folder: Path) -> None:
    # A run triggered while its DAG is paused would wait forever; only the windows start when an operator unpauses them.
    dags = build_dags(write_replication(folder, "orders", airflow='schedule = "every 10s"'))
    asked = {name: dag.is_paused_upon_creation for name, dag in dags.items()}
    assert asked.pop("orders") is None
    assert set(asked.values()) == {False}
    assert "paused" in str(dags["orders.backfill"].doc_md)


@pytest.mark.parametrize(
    ("own", "key"),
    [('[airflow.verify]\nschedule = "soon"', "airflow.verify.schedule"),
     ('[airflow.maintain]\nschedule = "every"', "airflow.maintain.schedule"),
     ('[airflow.backfill]\ninterval = "now"', "airflow.backfill.interval"),
     ('[airflow.on-failure]\nnotifier = "no path"', "airflow.on-failure.notifier")],
)  # fmt: skip
def test_configuration_error_in_any_file_names_its_key(folder: Path, own: str, key: str) -> None:
    path = write_replication(folder, "orders", airflow=f"retries = 1\n{own}")
    built = build_all()
    assert built.dags == {}
    assert key in str(built.broken[path])


def test_dag_survives_serialisation_and_contains_no_secret(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BINLAKE_TEST_UNSET_PASSWORD", "s3cret-of-the-target")
    own = """schedule = "every 10s"\ndeadline-s = 600\n[airflow.on-failure]\nnotifier = "json.dumps"
kwargs = {token = "env:BINLAKE_TEST_UNSET_PASSWORD"}"""
    for dag in build_dags(write_replication(folder, "orders", airflow=own)).values():
        text = json.dumps(DagSerialization.to_dict(dag))
        assert "s3cret-of-the-target" not in text
        copy = DagSerialization.from_dict(json.loads(text))
        assert {t.task_id: set(t.upstream_task_ids) for t in copy.tasks} == wiring(dag)
        assert (copy.max_active_runs, copy.has_on_failure_callback) == (1, True)
        assert bool(copy.deadline) is (dag.dag_id == "orders")


_PARSE = """
import sys, time
import airflow.sdk, airflow.providers.apache.spark.hooks.spark_submit
began = time.process_time()
from binlake_airflow.dags.factory import build_all
import binlake_airflow.plugin
built = build_all()
print(time.process_time() - began, len(built.dags))
print(*[name for name in ("pyspark", "delta", "deltalake", "grpc", "pyarrow", "pandas", "numpy", "spark_jobs",
                           "fastapi") if name in sys.modules])
"""


def test_parsing_is_quick_and_loads_nothing_heavy(folder: Path) -> None:
    # Measures processor time, because other work on the machine must not fail the test.
    for number in range(10):
        write_replication(folder, f"orders{number}")
    done = subprocess.run([sys.executable, "-c", _PARSE], capture_output=True, text=True, check=True)
    first, heavy = done.stdout.splitlines()[-2:]
    seconds, dags = first.split()
    assert (int(dags), heavy) == (90, "")
    assert float(seconds) < 1.0
