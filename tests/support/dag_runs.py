"""Runs of the DAGs with scripted jobs: the answers of the jobs, and the outcome of the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LO, HI, LOWERED, BEHIND = "470583292723200001", "470583292723200999", "470583292723200900", "470583292723100001"


def answer(stage: str, lo: str, hi: str, state: str = "done", **more: Any) -> dict[str, Any]:
    result = {"stage": stage, "state": state, "lo": lo, "hi": hi, "rows": 3, "seconds": 0.5, "blocked_by": "",
              "detail": {}, **more}  # fmt: skip
    return {"ok": True, "results": [result]}


def failure(kind: str, name: str, message: str = "no") -> dict[str, Any]:
    return {"ok": False, "error": {"kind": kind, "class": name, "message": message}}


def good_window() -> dict[str, list[dict[str, Any]]]:
    """A window in which land lowers hi and compact takes a remaining older window, so each stage must use the right
    bounds.
    """
    sink = {name: [answer(name, BEHIND, LOWERED)] for name in ("compact", "convert", "finalize")}
    lake = {name: [answer(name, LO, LOWERED)] for name in ("land", "merge", "mirror")}
    return {"plan": [answer("plan", LO, HI, "ready")], **lake, **sink}


def as_one_task(window: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The answers of the stages of `window` as the answer of the single task of layout `fused`."""
    results = [result for answers in window.values() for result in answers[0]["results"]]
    return {"window": [{"ok": True, "results": results}]}


FEED = 'name = "{}"\nsink-uri = "kafka://k:9092/t?protocol=avro"\nschema-registry = "http://r:8081"'
"""The configuration section of a feed."""


def window_of_feeds(*feeds: str, **more: Any) -> dict[str, list[dict[str, Any]]]:
    """A good window that also has the stages of `feeds`."""
    own = {
        f"{stage}-{feed}": [answer(stage, LO, LOWERED, detail={"feed": feed, **more})]
        for feed in feeds
        for stage in ("encode", "publish")
    }
    return {**good_window(), **own}


BLOCKED = answer("plan", LO, LO, "blocked", blocked_by="pump-2", detail={"reason": f"pump-2 since {LO}"})


class Run:
    """A finished run of a DAG, and the calls that its scripted jobs received."""

    def __init__(self, dag_run: Any, calls: list[dict[str, Any]]) -> None:
        self.state = str(dag_run.state)
        self.run_id = dag_run.run_id
        self.tasks = {ti.task_id: ti for ti in dag_run.get_task_instances()}
        self.states = {name: str(ti.state) for name, ti in self.tasks.items()}
        self.calls = calls

    def bounds(self) -> dict[str, tuple[str | None, str | None]]:
        return {call["stage"]: (call["options"].get("--lo"), call["options"].get("--hi")) for call in self.calls}

    def tries(self, stage: str) -> int:
        return sum(call["stage"] == stage for call in self.calls)

    def xcom(self, task_id: str, key: str = "return_value") -> Any:
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session

        with create_session() as session:
            row: Any = session.scalars(
                XComModel.get_many(run_id=self.run_id, task_ids=task_id, key=key, dag_ids=self.tasks[task_id].dag_id)
            ).first()
        return None if row is None else row.value

    @property
    def note(self) -> str | None:
        """The run's note.

        A test run ends before its session commits what the listener wrote, so this calls the listener again.
        """
        from airflow.models.dagrun import DagRun
        from airflow.utils.session import create_session
        from sqlalchemy import select

        from binlake_airflow.telemetry import notes

        with create_session() as session:
            found = session.scalars(select(DagRun).where(DagRun.run_id == self.run_id)).one()
            notes.write_note(found, failed=found.state == "failed")
            return None if found.note is None else str(found.note)


Runner = Callable[..., Run]
