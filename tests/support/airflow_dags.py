"""DAGs of replications in the tests' Airflow as its scheduler would know them, and signs of life of that scheduler."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path


def register_dag(file: Path, *, paused: bool, kind: str = "") -> str:
    """Register a DAG of the replication in `file`, paused or not (`kind` empty: that of its windows); return its id."""
    from airflow.dag_processing.collection import update_dag_parsing_results_in_db
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.serialization.serialized_objects import DagSerialization, LazyDeserializedDAG
    from airflow.utils.session import create_session

    from binlake_airflow.dags.factory import build_dags

    dags = build_dags(file)
    dag = next(one for dag_id, one in dags.items() if dag_id.partition(".")[2] == kind)
    dag.relative_fileloc = "binlake_replications.py"
    data = DagSerialization.to_dict(dag)
    with create_session() as session:
        if session.get(DagBundleModel, "test") is None:
            session.add(DagBundleModel(name="test"))
            session.flush()
        update_dag_parsing_results_in_db(
            bundle_name="test",
            bundle_version=None,
            dags=[LazyDeserializedDAG(data=data)],
            import_errors={},
            parse_duration=0.1,
            warnings=set(),
            session=session,
        )
        session.get_one(DagModel, dag.dag_id).is_paused = paused
    return dag.dag_id


def beat_scheduler(age_s: float = 0.0) -> None:
    """The only scheduler in Airflow's database sent its last heartbeat `age_s` seconds ago."""
    from airflow.jobs.job import Job
    from airflow.utils.session import create_session

    forget_scheduler()
    with create_session() as session:
        job = Job(job_type="SchedulerJob", state="running", heartrate=5)
        job.job_type, job.latest_heartbeat = "SchedulerJob", datetime.now(UTC) - timedelta(seconds=age_s)
        session.add(job)


def forget_scheduler() -> None:
    """No scheduler has ever sent a heartbeat."""
    from airflow.jobs.job import Job
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    with create_session() as session:
        session.execute(delete(Job).where(Job.job_type == "SchedulerJob"))


def run_for_long(dag_id: str, age_s: float = 0.0) -> None:
    """The only run of the DAG is active, and its last sign of life is `age_s` seconds old."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from airflow.utils.types import DagRunType
    from sqlalchemy import delete

    at = datetime.now(UTC) - timedelta(seconds=age_s)
    with create_session() as session:
        session.execute(delete(DagRun).where(DagRun.dag_id == dag_id))
        run = DagRun(dag_id, run_id="active", run_type=DagRunType.MANUAL, state=DagRunState.RUNNING, run_after=at)
        run.queued_at, run.start_date = at, at
        session.add(run)
