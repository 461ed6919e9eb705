"""The page of an action's run: where it stands, who started it, what it answered or why it failed."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from airflow.api_fastapi.auth.managers.models.base_user import BaseUser

from binlake.config import Replication
from binlake_airflow.dags.dagparts import KINDS, build_dag_id
from binlake_airflow.pages.access import may_read
from binlake_airflow.pages.views import NotAllowed, NotFound
from binlake_airflow.telemetry.failures import KEY as FAILED

_LONGEST = 20_000
"""Characters of an answer on the page."""
_WAITING = ("queued", "running")


def build_acted_view(replication: Replication, kind: str, run_id: str, user: BaseUser) -> dict[str, Any]:
    """The run of the DAG of `kind`. Raises NotFound, NotAllowed."""
    if kind not in KINDS:
        raise NotFound("this replication has no such DAG")
    dag_id = build_dag_id(replication.name, kind)
    if not may_read(user, dag_id):
        raise NotAllowed("you may not read this DAG")
    run = _read_run(dag_id, run_id)
    if run is None:
        raise NotFound("Airflow has no such run of this DAG")
    return {"name": replication.name, "dag_id": dag_id, "run_id": run_id, **run}


def _read_run(dag_id: str, run_id: str) -> dict[str, Any] | None:
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        run = session.scalars(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)).first()
        if run is None:
            return None
        dag = session.get(DagModel, dag_id)
        state = str(getattr(run.state, "value", run.state))
        return {
            "state": state, "active": state in _WAITING, "who": run.triggering_user_name or "",
            "conf": json.dumps(run.conf or {}, indent=1, ensure_ascii=False)[:_LONGEST],
            "queued": _format(run.queued_at), "began": _format(run.start_date), "ended": _format(run.end_date),
            "note": run.note or "", "paused": dag is not None and bool(dag.is_paused),
            "tasks": _read_tasks(session, dag_id, run_id),
            "answer": _read_xcom(session, dag_id, run_id, "return_value"),
            "failure": _read_xcom(session, dag_id, run_id, FAILED),
        }  # fmt: skip


def _read_tasks(session: Any, dag_id: str, run_id: str) -> list[dict[str, Any]]:
    from airflow.models.taskinstance import TaskInstance as Task
    from sqlalchemy import select

    query = select(Task.task_id, Task.state, Task.try_number).where(Task.dag_id == dag_id, Task.run_id == run_id)
    rows = session.execute(query.order_by(Task.start_date)).all()
    return [{"task": task, "state": str(state or "waiting"), "tries": tries} for task, state, tries in rows]


def _read_xcom(session: Any, dag_id: str, run_id: str, key: str) -> str:
    """The values under this key as text; empty if there is none."""
    from airflow.models.xcom import XComModel

    rows = session.scalars(XComModel.get_many(run_id=run_id, key=key, dag_ids=dag_id, limit=5)).all()
    values = [XComModel.deserialize_value(row) for row in rows]
    texts = [value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False) for value in values]
    text = "\n".join(texts)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text):,} characters)"


def _format(moment: datetime | None) -> str:
    return "" if moment is None else moment.isoformat()
