"""What Airflow's database knows about a replication's DAGs: which are paused, how the last runs ended, which runs wait.

The API server reads it for the pages: a few rows by indexed columns. A missing DAG is not an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from binlake_airflow.dags.dagparts import KINDS, SYNC

_ENDED, _ACTIVE = ("success", "failed"), ("running", "queued")
_WAITING = 5


@dataclass(frozen=True)
class LastRun:
    """The last ended run of a DAG: its state (success, failed) and, if it failed, the failed tasks."""

    run_id: str
    state: str
    ended_ms: int
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True)
class DagFacts:
    """One DAG: `due_ms`: when the scheduler should start its next run (None: only manual runs); `active`: its runs."""

    kind: str
    paused: bool
    due_ms: int | None = None
    last: LastRun | None = None
    active: tuple[str, ...] = field(default=())


def read_dag_facts(name: str) -> dict[str, DagFacts]:
    """The DAGs of the replication `name` that Airflow knows, by kind."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    ids = {name if kind == SYNC else f"{name}.{kind}": kind for kind in KINDS}
    with create_session() as session:
        query = select(DagModel.dag_id, DagModel.is_paused, DagModel.next_dagrun_create_after)
        dags = session.execute(query.where(DagModel.dag_id.in_(ids), ~DagModel.is_stale)).all()
        last, active = _read_last_runs(session, list(ids)), _read_active_runs(session, list(ids))
        return {
            ids[dag_id]: DagFacts(ids[dag_id], paused, _to_ms(due), last.get(dag_id), tuple(active.get(dag_id, ())))
            for dag_id, paused, due in dags
        }


def _read_last_runs(session: Any, ids: Sequence[str]) -> dict[str, LastRun]:
    from airflow.models.dagrun import DagRun
    from sqlalchemy import func, select

    ended = DagRun.dag_id.in_(ids) & DagRun.state.in_(_ENDED)
    newest = select(func.max(DagRun.id)).where(ended).group_by(DagRun.dag_id)
    rows = session.execute(
        select(DagRun.dag_id, DagRun.run_id, DagRun.state, DagRun.end_date).where(DagRun.id.in_(newest))
    ).all()
    return {
        dag_id: LastRun(run_id, str(state), _to_ms(end) or 0, _read_failed_tasks(session, dag_id, run_id, str(state)))
        for dag_id, run_id, state, end in rows
    }


def _read_failed_tasks(session: Any, dag_id: str, run_id: str, state: str) -> tuple[str, ...]:
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import select

    if state != "failed":
        return ()
    query = select(TaskInstance.task_id).where(
        TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id, TaskInstance.state == "failed"
    )
    return tuple(session.scalars(query.order_by(TaskInstance.task_id)).all())


def _read_active_runs(session: Any, ids: Sequence[str]) -> dict[str, list[str]]:
    from airflow.models.dagrun import DagRun
    from sqlalchemy import select

    query = select(DagRun.dag_id, DagRun.run_id).where(DagRun.dag_id.in_(ids), DagRun.state.in_(_ACTIVE))
    runs: dict[str, list[str]] = {}
    for dag_id, run_id in session.execute(query.order_by(DagRun.id).limit(_WAITING * len(ids))).all():
        runs.setdefault(dag_id, []).append(run_id)
    return runs


def _to_ms(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1000)
