"""What Airflow knows about a replication, for the computation of its health: for a page, and `status --airflow`.

Which of its DAGs are paused, how the last runs ended, which runs wait, and whether anyone works on them: the
scheduler's heartbeat, and the last sign of life of the active runs; and where Spark is. It reads a few rows by indexed
columns. A missing DAG is not an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import structlog

from binlake.common.reachability import CONNECT_PORT, parse_address
from binlake.config import Replication
from binlake.health.orchestration import DagFacts, LastRun, SchedulerFacts
from binlake.health.surroundings import Address
from binlake.health.survey import Orchestration
from binlake_airflow.dags.dagparts import KINDS, build_dag_id

_ENDED, _ACTIVE = ("success", "failed"), ("running", "queued")
_WAITING = 5


def read_scheduler_facts() -> SchedulerFacts:
    """As Airflow's page `/api/v2/monitor/health` shows it."""
    from airflow.api.common.airflow_health import HEALTHY, get_airflow_health

    scheduler = get_airflow_health()["scheduler"]
    heard = scheduler["latest_scheduler_heartbeat"]
    return SchedulerFacts(scheduler["status"] == HEALTHY, _to_ms(datetime.fromisoformat(heard)) if heard else None)


def read_dag_facts(name: str) -> dict[str, DagFacts]:
    """The DAGs of the replication `name` that Airflow knows, by kind."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    ids = {build_dag_id(name, kind): kind for kind in KINDS}
    with create_session() as session:
        query = select(DagModel.dag_id, DagModel.is_paused, DagModel.next_dagrun_create_after)
        dags = session.execute(query.where(DagModel.dag_id.in_(ids), ~DagModel.is_stale)).all()
        last, active = _read_last_runs(session, list(ids)), _read_active_runs(session, list(ids))
        alive = {dag_id: _read_sign_of_life(session, dag_id, runs) for dag_id, runs in active.items()}
        return {
            ids[dag_id]: DagFacts(
                ids[dag_id], paused, _to_ms(due), last.get(dag_id), tuple(active.get(dag_id, ())), alive.get(dag_id)
            )
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


def _read_sign_of_life(session: Any, dag_id: str, run_ids: Sequence[str]) -> int | None:
    """When a task of these runs last began, ended or sent a heartbeat; a deferred task lives until its trigger ends."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance as Task
    from sqlalchemy import select

    runs = select(DagRun.queued_at, DagRun.start_date, DagRun.run_after)
    moments = session.execute(runs.where(DagRun.dag_id == dag_id, DagRun.run_id.in_(run_ids))).all()
    tasks = select(Task.start_date, Task.end_date, Task.last_heartbeat_at, Task.trigger_timeout)
    moments += session.execute(tasks.where(Task.dag_id == dag_id, Task.run_id.in_(run_ids))).all()
    return max((_to_ms(moment) or 0 for row in moments for moment in row if moment is not None), default=None)


def _to_ms(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1000)


log = structlog.get_logger(__name__)

_SPARK_PORT = 7077


def find_spark_address(replication: Replication) -> Sequence[Address]:
    """The Connect server or standalone master of the replication's connection, if this process knows it."""
    from airflow.sdk import BaseHook

    conn_id = replication.airflow.spark_conn_id
    try:
        connection = BaseHook.get_connection(conn_id)
        host, port = connection.host or "", connection.port
        if replication.airflow.engine == "connect":
            return (parse_address(f"{host}:{port or CONNECT_PORT}", CONNECT_PORT),)
        return (parse_address(host, port or _SPARK_PORT),) if host.startswith("spark://") else ()
    except Exception as error:  # noqa: BLE001 - the connection may be known only to tasks
        log.info("spark_address_unknown", spark_conn_id=conn_id, error=str(error))
        return ()


def read_orchestration(replication: Replication) -> Orchestration:
    """Its DAGs, the scheduler and Spark's address; reads Airflow's database."""
    return Orchestration(
        read_dag_facts(replication.name), read_scheduler_facts(), lambda: find_spark_address(replication)
    )
