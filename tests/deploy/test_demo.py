"""`make demo` and `make stop`, run as a user does."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
from support.exact import find_rounded_numbers
from support.windows import wait_until

from binlake.pipeline import LAKE, MIRROR, SQL
from deploy.local.airflow_client import AirflowClient

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 900
_RUN_S = 300.0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(LIMIT_S + 60)]


def _demo(folder: Path, *words: str) -> subprocess.Popen[str]:
    # A script's background job (`&`) and its children ignore Ctrl-C, including these tests; so reset the handler.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "deploy.local.demo", "--folder", str(folder)]
    return subprocess.Popen(
        [*command, *words],
        cwd=ROOT,
        env=_build_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _list_remaining(folder: Path) -> list[str]:
    """Processes that still run with a file of the demo in their command, or as a part of its Airflow."""
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
            if str(folder) in words or process.environ().get("AIRFLOW_HOME", "").startswith(str(folder)):
                found.append(words)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def _build_environment() -> dict[str, str]:
    """No settings of an Airflow that this process has loaded: files could be read too seldom for a kept demo's DAG."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    interval = dict.fromkeys(("REFRESH_INTERVAL", "MIN_FILE_PROCESS_INTERVAL"), "10")
    slow = {f"AIRFLOW__DAG_PROCESSOR__{name}": value for name, value in interval.items()}
    # A scheduler that looks twice a second, not ten times, takes seconds of CPU less.
    return {**own, **slow, "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
            "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "5"}  # fmt: skip


@dataclass(frozen=True)
class KeptDemo:
    """A demo that has ended and left its servers running: `printed`, and a client of its Airflow."""

    printed: str
    airflow: AirflowClient


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeptDemo]:
    """The demo with `KEEP=1`; `make stop` afterwards leaves no process."""
    folder = tmp_path_factory.mktemp("demo") / "demo"
    try:
        # Fewer and larger windows than in `make demo`, but the same compared states.
        with _demo(folder, "--keep", "--rate", "2000") as process:
            try:
                printed, _ = process.communicate(timeout=LIMIT_S)
            except BaseException:
                process.send_signal(signal.SIGINT)  # otherwise its servers would outlive a run that is too slow
                raise
        assert process.returncode == 0, printed
        page = re.search(r"left running: (http://127\.0\.0\.1:\d+)", printed)
        login = re.search(r"login (\w+) / (\w+)", printed)
        assert page
        assert login
        client = AirflowClient(page[1], login[1], login[2])
        yield KeptDemo(printed, client)
        client.close()
    finally:
        stopped = subprocess.run(
            [sys.executable, "-m", "deploy.local.stop", str(folder)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    assert stopped.returncode == 0, stopped.stderr
    assert "airflow-scheduler" in stopped.stdout
    assert _list_remaining(folder) == []


def test_every_state_of_the_demo_is_equal(demo: KeptDemo) -> None:
    # S0-01, S0-04, S0-05, S3-05; the demo itself prints every figure.
    windows = re.findall(r"window \d+ \(\d+, \d+\]", demo.printed)
    states = re.findall(r"target at \d+ \(\w+\): 20 tables, 20000 rows: equal", demo.printed)
    inside = re.findall(r"lake as of \d+ .* inside the window .*: 20 tables, 20000 rows: equal", demo.printed)
    tables = re.findall(r"^ +bank\.acct_\d\d +1,000 rows  equal$", demo.printed, re.MULTILINE)
    assert len(windows) >= 4
    assert (len(states), len(inside), len(tables)) == (4, 2, 20)
    assert "differs" not in demo.printed
    assert '"consistent": true, "commitTS": 470614453366816768' in demo.printed
    assert re.search(r"binlake audit row bank\.acct_00 0: \d+ changes", demo.printed)


def test_backlog_runs_on_spark_and_its_report_says_so(demo: KeptDemo) -> None:  # 34
    first = next(line for line in demo.printed.splitlines() if "window 1 (" in line)
    assert re.search(r"on Spark, \d+ tasks, [\d,]+ rows/s", first), first


def test_stages_are_tasks_that_follow_one_process_of_several_windows(demo: KeptDemo) -> None:  # 34
    # Each state at which a window must end is reached by the same process, not by another task.
    runs = [run["dag_run_id"] for run in demo.airflow.fetch_runs("demo")]
    # A task ends after some windows; the schedule goes on with other runs.
    wait_until(lambda: "running" not in _read_window_tasks(demo, runs).values(), _RUN_S, every=0.5)
    done = [run_id for run_id, state in _read_window_tasks(demo, runs).items() if state == "success"]
    results = {run_id: demo.airflow.fetch_xcom("demo", run_id, "window")["results"] for run_id in done}
    run_id, found = max(results.items(), key=lambda one: sum(result["stage"] == "finalize" for result in one[1]))
    assert sum(result["stage"] == "finalize" for result in found) > 1
    listed = [stage for sink in (LAKE, SQL, MIRROR) for stage in sink.stages if not stage.optional]
    stages = [stage.task for stage in listed]

    def read_states() -> dict[str, str | None]:
        tasks = demo.airflow.fetch_tasks("demo", run_id)
        return {task["task_id"]: task["state"] for task in tasks if task["task_id"] in stages}

    wait_until(lambda: set(read_states().values()) == {"success"}, _RUN_S, every=0.5)
    assert set(read_states()) == set(stages)
    # Each has the result of its stage in the run's first window.
    for stage in stages:
        first = next(result for result in found if result["stage"] == stage)
        told = json.loads(demo.airflow.fetch_xcom("demo", run_id, stage))
        assert (told["lo"], told["hi"], told["state"]) == (first["lo"], first["hi"], first["state"])


def _read_window_tasks(demo: KeptDemo, runs: list[str]) -> dict[str, str | None]:
    """The state of the task `window` of each run."""
    tasks = [task for run_id in runs for task in demo.airflow.fetch_tasks("demo", run_id)]
    return {task["dag_run_id"]: task["state"] for task in tasks if task["task_id"] == "window"}


def test_runs_are_triggered_with_a_login_and_valid_bounds_only(demo: KeptDemo) -> None:  # C-04 R-46
    url, body = "/api/v2/dags/demo/dagRuns", {"logical_date": None, "conf": {}}
    assert httpx.post(f"{demo.airflow.http.base_url}{url}", json=body, timeout=120).status_code == 401
    before = count_triggered_runs(demo)
    for wrong in (470583292723200001, "yesterday", "470583292723200001 ", -1):
        assert demo.airflow.ask("POST", url, {**body, "conf": {"stop_ts": wrong}}).status_code == 400
    assert count_triggered_runs(demo) == before


def count_triggered_runs(demo: KeptDemo) -> int:
    return sum(run["run_type"] == "manual" for run in demo.airflow.fetch_runs("demo"))


def test_kept_demo_goes_on_with_a_small_load_and_all_is_well(demo: KeptDemo) -> None:
    def is_well(name: str, lag_s: float) -> bool:
        view = demo.airflow.get(f"/binlake/api/dags/{name}")
        return view["state"] == "running" and view["sinks"]["sql"]["lag_seconds"] < lag_s

    # The capture is of another day: how far behind it is says its own clock.
    wait_until(lambda: is_well("demo", 300.0), _RUN_S, every=1.0)
    wait_until(lambda: is_well("live", 120.0), _RUN_S, every=1.0)
    at = demo.airflow.get("/binlake/api/dags/live")["rows"]["window"]["commit_ts"]
    wait_until(
        lambda: demo.airflow.get("/binlake/api/dags/live")["rows"]["window"]["commit_ts"] > at, _RUN_S, every=1.0
    )
    assert "waiting for Airflow to read the DAG `live`" in demo.printed


def test_audit_answers_in_a_run_of_its_dag(demo: KeptDemo) -> None:  # C-07 R-46
    demo.airflow.set_paused("demo.audit", False)
    run_id = demo.airflow.trigger("demo.audit", {"what": "row", "table": "bank.acct_00", "key": ["0"]})
    run = demo.airflow.wait_for_run("demo.audit", run_id, _RUN_S)
    assert (run["state"], run["note"]) == ("success", 'row bank.acct_00 ["0"]: 80 changes')
    assert len(demo.airflow.fetch_xcom("demo.audit", run_id, "audit")["changes"]) == 80


def test_browsers_round_no_number_of_a_run(demo: KeptDemo) -> None:  # R-46
    run_id = demo.airflow.fetch_runs("demo")[0]["dag_run_id"]
    entries = demo.airflow.get(f"/api/v2/dags/demo/dagRuns/{run_id}/taskInstances/~/xcomEntries")["xcom_entries"]
    values = [demo.airflow.fetch_xcom("demo", run_id, entry["task_id"], entry["key"]) for entry in entries]
    assert values
    assert find_rounded_numbers(values) == []


@pytest.mark.soak
def test_ctrl_c_during_the_start_leaves_no_process(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with _demo(folder) as demo:
        until = time.monotonic() + 300
        while not (folder / "airflow" / "airflow-scheduler.log").exists():
            assert demo.poll() is None
            assert time.monotonic() < until, os.listdir(folder)
            time.sleep(0.1)
        demo.send_signal(signal.SIGINT)
        told, _ = demo.communicate(timeout=400)
    assert demo.returncode == 130, told
    assert "all servers have stopped" in told
    assert _list_remaining(folder) == []


@pytest.mark.soak
def test_demo_with_an_object_store_and_a_spark_cluster_is_equal(tmp_path: Path) -> None:  # 36: U-06
    with _demo(tmp_path / "demo", "--lake", "s3", "--rate", "2000") as process:
        try:
            printed, _ = process.communicate(timeout=LIMIT_S)
        except BaseException:
            process.send_signal(signal.SIGINT)
            raise
    assert process.returncode == 0, printed
    assert re.search(r"lake: s3://binlake/lake in the store at http://", printed)
    cluster = re.search(r"tasks of large windows: (spark://\S+), 2 workers", printed)
    assert cluster
    assert re.search(r"window 1 \(.* on Spark, \d+ tasks", printed)
    assert re.search(r"tasks by executor: executor 0 \d+, executor 1 \d+", printed)
    assert "4 states, 80000 rows compared: equal" in printed
    assert _list_remaining(tmp_path / "demo") == []
    # Workers and executors know the cluster only by its master.
    words = (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))
    assert not [one for one in words if any(cluster[1] in word for word in one)]
