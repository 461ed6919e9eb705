"""A stage's task that follows the process of a whole window ends as the stage ended there, without a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import TaskFailedEvent, TaskSkippedEvent, TaskSuccessEvent, TriggerEvent

from binlake_airflow.operators import following
from binlake_airflow.operators.following import StageTrigger

RESULT = {"stage": "merge", "state": "done", "lo": "1", "hi": "2", "detail": {"spark_pages": "http://spark:4040"}}
TOLD = {"merge": RESULT}
Follow = Callable[..., Any]


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch) -> Follow:
    """Run a trigger of the task `merge`; `looks`: the state of the task `window`, and what it has told, each time."""
    monkeypatch.setattr(following, "_LOOK_S", 0.0)
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/")

    def run(*looks: tuple[str | None, Any], try_number: int = 1) -> Any:
        left = list(looks)
        asked: list[Any] = []

        def get_task_states(dag_id: str, task_ids: list[str], run_ids: list[str]) -> dict[str, Any]:
            assert (dag_id, task_ids, run_ids) == ("orders", ["window"], ["run/1"])
            state, told = left.pop(0)
            asked.append(told)
            return {} if state is None else {"run/1": {"window": state}}

        async def aget_one(**words: str) -> Any:
            assert words == {"key": "stages", "dag_id": "orders", "task_id": "window", "run_id": "run/1"}
            return None if asked[-1] is None else {"plan": {}, **asked[-1]}

        monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(get_task_states))
        monkeypatch.setattr(BaseXCom, "aget_one", aget_one)
        trigger = StageTrigger(process="window")
        ti: Any = SimpleNamespace(dag_id="orders", task_id="merge", run_id="run/1", try_number=try_number)
        trigger._task_instance = ti

        async def find_events() -> list[TriggerEvent]:
            return [event async for event in trigger.run()]

        [event] = asyncio.run(find_events())
        assert left == []
        return event

    return run


def test_task_waits_and_ends_with_the_result_of_its_stage(follow: Follow) -> None:
    event = follow((None, TOLD), ("queued", TOLD), ("running", None), ("running", {}), ("running", TOLD))
    assert isinstance(event, TaskSuccessEvent)
    assert event.xcoms == {
        "return_value": RESULT,
        "_link_WindowPageLink": "https://airflow.example/binlake/dags/orders/runs/run%2F1",
        "_link_SparkPagesLink": "http://spark:4040",
    }
    # The process may have ended before the task began, also badly: its stage is done.
    for state in ("success", "failed"):
        assert isinstance(follow((state, TOLD)), TaskSuccessEvent)


@pytest.mark.parametrize(
    ("state", "kind"),
    [("failed", TaskFailedEvent), ("upstream_failed", TaskFailedEvent), ("success", TaskSkippedEvent)],
)
def test_task_ends_if_the_process_ends_without_its_stage(follow: Follow, state: str, kind: type) -> None:
    # It waits for retries of the process, and while that waits for a pump.
    event = follow(("running", None), ("up_for_retry", None), ("deferred", None), (state, None))
    assert isinstance(event, kind)


@pytest.mark.parametrize("state", ["success", "failed"])
def test_cleared_task_runs_its_stage_itself(follow: Follow, state: str) -> None:
    event = follow((state, TOLD), try_number=2)
    assert type(event) is TriggerEvent
    assert event.payload == {"try_number": 2}


def test_task_of_a_cleared_run_follows_again(follow: Follow) -> None:
    event = follow(("running", None), ("running", None), ("running", TOLD), try_number=2)
    assert isinstance(event, TaskSuccessEvent)


def test_trigger_is_found_by_what_it_stores() -> None:
    path, arguments = StageTrigger(process="window").serialize()
    assert (path, arguments) == ("binlake_airflow.operators.following.StageTrigger", {"process": "window"})
