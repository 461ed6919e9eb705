"""A scheduled run of layout `fused` reports each window while the next one runs, and ends if somebody waits for it."""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from binlake.config.airflow import AirflowSection
from binlake.errors import Permanent, Transient
from binlake.health.orchestration import SYNC
from binlake_airflow.dags.dagparts import KINDS
from binlake_airflow.jobs import FUSED, EndedStages
from binlake_airflow.operators import base
from binlake_airflow.operators.sparkstages import ConnectStageOperator, SubmitStageOperator
from binlake_airflow.operators.stages import WRITING, StageOperator, Waiters
from binlake_airflow.telemetry.notes import NOTE_KEY

BASE = 470583292723200000
# Writes the outcomes in its script, one after the other; after `close` it waits until its input is closed.
CHILD = """
import json, sys
place = sys.argv[sys.argv.index("--result") + 1]
print("arguments", *sys.argv[1:], flush=True)
for item in json.loads(SCRIPT):
    if item == "close":
        print("last", sys.stdin.read(), flush=True)
    elif isinstance(item, int):
        sys.exit(item)
    else:
        with open(place, "a") as file:
            file.write(json.dumps(item) + chr(10))
        print("window_ended", flush=True)
"""
END = {"ok": True, "results": []}


def results(n: int, state: str = "done") -> list[dict[str, Any]]:
    lo, hi = str(BASE + n), str(BASE + n + 1)
    common = {"lo": lo, "hi": hi, "seconds": 0.1, "blocked_by": ""}
    return [
        {"stage": "plan", "state": "ready", "rows": 0, "detail": {}, **common},
        {"stage": "land", "state": state, "rows": 3, "detail": {}, **common},
        {"stage": "compact", "state": state, "rows": 3, "detail": {"changed": [["shop", f"t{n}"]]}, **common},
        {"stage": "finalize", "state": state, "rows": 3, "detail": {}, **common},
    ]


def ended(n: int) -> dict[str, Any]:
    return {"ok": True, "results": results(n), "more": True}


class Events(list[tuple[str, str]]):
    """The asset events of one alias."""

    def add(self, asset: Any, extra: Any) -> None:
        self.append((asset.uri, extra["commit_ts"]))


class Ti:
    """A task instance: what was pushed, and what Airflow says of the DAGs' runs."""

    dag_id, try_number = "orders", 1

    def __init__(self, paused: bool = False, runs: dict[tuple[str, str], int] | None = None) -> None:
        self.pushed: dict[str, Any] = {}
        self.paused, self.runs = paused, runs or {}
        self.asked = 0

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value

    def get_dag(self, dag_id: str) -> Any:
        self.asked += 1
        assert dag_id == self.dag_id
        return SimpleNamespace(is_paused=self.paused)

    def get_dr_count(self, dag_id: str, states: list[str]) -> int:
        return sum(self.runs.get((dag_id, state), 0) for state in states)


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", '{"conn_type": "spark_connect", "host": "h", "port": 1}')
    settings = SimpleNamespace(
        name="orders", airflow=AirflowSection(layout="fused"), window=SimpleNamespace(most_local_bytes=None)
    )
    monkeypatch.setattr(ConnectStageOperator, "read_settings", lambda _: settings)
    monkeypatch.setattr(StageOperator, "read_secrets", lambda _: {})
    monkeypatch.setattr(ConnectStageOperator, "get_flat_relatives", lambda *_, **__: [])
    return ConnectStageOperator(
        task_id=FUSED, stage=FUSED, replication="orders", replication_file="/r.toml", spark_conn_id="spark",
        moves_assets="finalize",
    )  # fmt: skip


def run(
    monkeypatch: pytest.MonkeyPatch, task: Any, script: list[Any], ti: Ti, kind: str = "scheduled", **params: str
) -> tuple[Any, Events]:
    code = f"SCRIPT = {json.dumps(json.dumps(script))}\n{CHILD}"
    monkeypatch.setattr(base, "build_command", lambda _module: (sys.executable, "-c", code))
    events = Events()
    context = {
        "ti": ti, "run_id": "r", "params": params, "outlet_events": defaultdict(lambda: events),
        "dag_run": SimpleNamespace(start_date=datetime.now(UTC), run_type=kind),
    }  # fmt: skip
    return lambda: task.attempt(context, time.time() + 600), events


def test_each_window_of_a_run_is_reported_with_its_own_bounds(monkeypatch: pytest.MonkeyPatch, task: Any) -> None:
    ti = Ti()
    attempt, events = run(monkeypatch, task, [ended(0), ended(1), END], ti)
    found = attempt()["results"]
    assert [(one["stage"], int(one["lo"]) - BASE) for one in found if one["stage"] == "finalize"] == [
        ("finalize", 0), ("finalize", 1),
    ]  # fmt: skip
    assert [ts for uri, ts in events if uri == "binlake://orders/"] == [str(BASE + 1), str(BASE + 2)]
    assert [uri for uri, _ in events if "/shop/" in uri] == ["binlake://orders/shop/t0", "binlake://orders/shop/t1"]
    assert ti.pushed["window"] == f"{BASE}-{BASE + 2}"
    assert "land 6 rows" in ti.pushed[NOTE_KEY]


@pytest.mark.parametrize(
    ("kind", "params", "goes_on"),
    [("scheduled", {}, True), ("manual", {}, False), ("asset_triggered", {}, False)],
)
def test_only_a_scheduled_run_has_several_windows(
    monkeypatch: pytest.MonkeyPatch, task: Any, kind: str, params: dict[str, str], goes_on: bool
) -> None:
    run(monkeypatch, task, [], Ti())
    dag_run = SimpleNamespace(start_date=datetime.now(UTC), run_type=kind)
    job = task.build_job({"ti": Ti(), "run_id": "r", "params": params, "dag_run": dag_run})
    assert (job.run_for_s, job.run_every_s) == ((60.0, 1.0) if goes_on else (0.0, 0.0))
    assert ("--run-for" in job.build_arguments(Path("r"))) is goes_on


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [({"layout": "fused"}, 60.0), ({"layout": "stages"}, 0.0), ({"layout": "fused", "run-for-s": 5}, 5.0),
     ({"layout": "fused", "deadline-s": 30}, 15.0), ({"layout": "fused", "deadline-s": 900}, 60.0)],
)  # fmt: skip
def test_run_is_shorter_than_its_deadline(settings: dict[str, Any], seconds: float) -> None:
    assert AirflowSection.model_validate(settings).most_run_s == seconds


@pytest.mark.parametrize(
    ("last", "error"),
    [({"ok": False, "error": {"kind": "Permanent", "class": "Permanent", "message": "bad row"}}, Permanent),
     (9, Transient)],
    ids=["error", "killed"],
)  # fmt: skip
def test_windows_before_a_failure_are_kept(
    monkeypatch: pytest.MonkeyPatch, task: Any, last: Any, error: type[Exception]
) -> None:
    ti = Ti()
    attempt, _ = run(monkeypatch, task, [ended(0), last], ti)
    with pytest.raises(error):
        attempt()
    assert [one["stage"] for one in ti.pushed["return_value"]["results"]] == ["plan", "land", "compact", "finalize"]
    assert ti.pushed["window"] == f"{BASE}-{BASE + 1}"


@pytest.mark.parametrize(
    "ti",
    [Ti(paused=True), Ti(runs={("orders", "queued"): 1}), Ti(runs={("orders.backfill", "running"): 1})],
    ids=["paused", "run by hand", "backfill"],
)
def test_run_ends_if_somebody_waits_for_it(monkeypatch: pytest.MonkeyPatch, task: Any, ti: Ti) -> None:
    # Without the end of its input, the child would wait for ever.
    attempt, _ = run(monkeypatch, task, [ended(0), "close", END], ti)
    assert len(attempt()["results"]) == 4


def test_run_goes_on_beside_an_audit_and_its_own_run() -> None:
    assert set(WRITING) == {*KINDS} - {SYNC, "audit"}
    now = [0.0]
    ti = Ti(runs={("orders", "running"): 1, ("orders.audit", "running"): 1, ("orders.backfill", "queued"): 1})
    asking = Waiters({"ti": ti}, clock=lambda: now[0])
    assert [asking.find_reason_to_end() for _ in range(3)] == ["", "", ""]
    assert ti.asked == 1
    now[0], ti.paused = 3.0, True
    assert asking.find_reason_to_end() == "the DAG is paused"


def test_run_ends_if_airflow_does_not_answer() -> None:
    broken = SimpleNamespace(dag_id="orders")
    assert Waiters({"ti": broken}).find_reason_to_end()


def test_blocked_first_plan_waits_without_a_worker(monkeypatch: pytest.MonkeyPatch, task: Any) -> None:
    blocked = [{**results(0)[0], "state": "blocked", "blocked_by": "pump-2", "detail": {"reason": "why"}}]
    attempt, _ = run(monkeypatch, task, [{"ok": True, "results": blocked}], Ti())
    with pytest.raises(TaskDeferred):
        attempt()


def told(n: int, place: int, **more: Any) -> dict[str, Any]:
    """The outcome of one stage of window `n`."""
    return {"ok": True, "results": [{**results(n)[place], **more}], "more": "stage"}


def test_first_result_of_each_stage_is_told_to_its_task_at_once(monkeypatch: pytest.MonkeyPatch, task: Any) -> None:
    task.follows = FUSED
    ti = Ti()
    waiting = told(0, 0, state="waiting")
    feed = told(0, 1, stage="encode", detail={"feed": "f"})
    script = [waiting, told(0, 0), told(0, 1), feed, ended(0), told(1, 0), told(1, 1), ended(1), END]
    attempt, _ = run(monkeypatch, task, script, ti)
    assert len(attempt()["results"]) == 2 * len(results(0))
    found = {task_id: (one["state"], int(one["hi"]) - BASE) for task_id, one in ti.pushed["stages"].items()}
    assert found == {"plan": ("ready", 1), "land": ("done", 1), "encode-f": ("done", 1)}


def test_only_the_process_of_a_whole_window_tells_its_stages(monkeypatch: pytest.MonkeyPatch, task: Any) -> None:
    run(monkeypatch, task, [], Ti())
    context = {
        "ti": Ti(), "run_id": "r", "params": {},
        "dag_run": SimpleNamespace(start_date=datetime.now(UTC), run_type="manual"),
    }  # fmt: skip
    assert "--tell-stages" not in task.build_job(context).build_arguments(Path("r"))
    task.follows = FUSED
    assert "--tell-stages" in task.build_job(context).build_arguments(Path("r"))
    task.stage = "land"
    assert "--tell-stages" not in task.build_job(context).build_arguments(Path("r"))


@pytest.mark.parametrize("encode", [dict, json.dumps], ids=["worker", "trigger"])
def test_bounds_are_those_of_the_stage_before_whoever_stored_them(
    monkeypatch: pytest.MonkeyPatch, task: Any, encode: Any
) -> None:  # 34
    run(monkeypatch, task, [], Ti())
    task.stage, task.bounds_from, ti = "merge", "land", Ti()
    vars(ti)["xcom_pull"] = lambda task_ids: encode({"lo": "7", "hi": "9"}) if task_ids == "land" else None
    context = {
        "ti": ti, "run_id": "r", "params": {},
        "dag_run": SimpleNamespace(start_date=datetime.now(UTC), run_type="manual"),
    }  # fmt: skip
    job = task.build_job(context)
    assert (job.lo, job.hi) == ("7", "9")


def test_half_a_line_is_not_read_as_a_window(tmp_path: Path) -> None:
    place = tmp_path / "r.json"
    windows, line = EndedStages(place), json.dumps(ended(0)) + "\n"
    assert windows.read_new() == []
    place.write_text(line + line[:40])
    assert len(windows.read_new()) == 1
    place.write_text(line + line)
    assert [len(one) for one in windows.read_new()] == [4]
    assert windows.read_new() == []


def test_child_ends_if_its_window_cannot_be_reported(monkeypatch: pytest.MonkeyPatch, task: Any) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("XCom is gone")

    monkeypatch.setattr("binlake_airflow.operators.stages.report_stages", refuse)
    attempt, _ = run(monkeypatch, task, [ended(0), "close", END], Ti())
    with pytest.raises(RuntimeError, match="XCom is gone"):
        attempt()


def test_submitted_driver_has_one_window(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "delta.jar").touch()
    monkeypatch.setattr(StageOperator, "read_secrets", lambda _: {})
    monkeypatch.setenv("BINLAKE_JARS", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", '{"conn_type": "spark", "host": "local[1]"}')
    task = SubmitStageOperator(
        task_id=FUSED, stage=FUSED, replication="orders", replication_file="/r.toml", spark_conn_id="spark"
    )
    airflow = AirflowSection(layout="fused")
    monkeypatch.setattr(SubmitStageOperator, "read_settings", lambda _: SimpleNamespace(airflow=airflow))
    dag_run = SimpleNamespace(start_date=datetime.now(UTC), run_type="scheduled")
    job = task.build_job({"ti": Ti(), "run_id": "r", "params": {}, "dag_run": dag_run})
    assert "--run-for" not in task.build_hook(job, tmp_path / "r.json")._application_args
