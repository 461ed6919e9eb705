"""A hundred replications in one Airflow: what parsing the DAG file takes, counted and not timed."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.definitions._internal.dag_parsing_context import _airflow_parsing_context_manager
from support.replication_files import write_replication

from binlake.config import load, sidefiles
from binlake_airflow.dags.dagparts import KINDS
from binlake_airflow.dags.factory import build_all

DAGS = Path(__file__).resolve().parents[2] / "dags"
MANY = 100


def write_many(folder: Path, count: int) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "_defaults.toml").write_text('[airflow]\npool = "lake"\nretries = 4\n', encoding="utf-8")
    for number in range(count):
        write_replication(folder, f"r{number}", airflow=f"priority = {number + 1}")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each TOML file is read."""
    found: Counter[str] = Counter()
    read = load.read_toml

    def count(path: Path) -> dict[str, object]:
        found[path.name] += 1
        return read(path)

    for module in (load, sidefiles):
        monkeypatch.setattr(module, "read_toml", count)
    return found


def count_calls(folder: Path) -> int:
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        build_all(folder)
    finally:
        sys.setprofile(None)
    return calls


def test_each_file_is_read_once_and_the_defaults_once_for_all(folder: Path, reads: Counter[str]) -> None:
    write_many(folder, MANY)
    built = build_all()
    assert (len(built.dags), built.broken) == (MANY * len(KINDS), {})
    assert reads == Counter({f"r{number}.toml": 1 for number in range(MANY)} | {"_defaults.toml": 1})
    for number in (0, 57):
        tasks = built.dags[f"r{number}"].tasks
        assert {(task.pool, task.retries) for task in tasks} == {("lake", 4)}
        assert {task.priority_weight for task in tasks} == {number + 1}
        # The same weight for the first and the last stage of a window.
        assert {str(task.weight_rule) for task in tasks} == {"absolute"}


def test_the_work_of_a_parse_grows_with_the_number_of_files_only(folder: Path) -> None:
    for count in (1, 10, 40):
        write_many(folder / str(count), count)
    count_calls(folder / "1")
    few, many = count_calls(folder / "10"), count_calls(folder / "40")
    print(f"{few} calls for 10 replications, {many} for 40")
    assert many <= 4.2 * few


@pytest.mark.parametrize("dag_id", ["r57", "r57.verify"])
def test_a_task_reads_only_the_file_of_its_replication(folder: Path, reads: Counter[str], dag_id: str) -> None:
    write_many(folder, MANY)
    with _airflow_parsing_context_manager(dag_id=dag_id):
        bag = DagBag(dag_folder=DAGS / "binlake_replications.py", bundle_path=DAGS, bundle_name="test")
    assert bag.import_errors == {}
    assert dag_id in bag.dags
    assert {name.partition(".")[0] for name in bag.dags} == {"r57"}
    assert reads == Counter({"r57.toml": 1, "_defaults.toml": 1})


def test_a_task_finds_a_replication_whose_file_has_another_name(folder: Path) -> None:
    write_many(folder, 3)
    (folder / "r1.toml").rename(folder / "other.toml")
    assert "r1.verify" in build_all(only="r1.verify").dags
