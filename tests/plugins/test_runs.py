"""What the pages read from Airflow's own database: paused DAGs, the last run's result, waiting runs."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import httpx
import pytest

from binlake.cli import run
from binlake.health.orchestration import DagFacts, LastRun
from binlake_airflow.pages.orchestration import read_dag_facts, read_scheduler_facts

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

BEGAN = datetime(2026, 11, 20, 10, tzinfo=UTC)


@pytest.fixture
def runs(known_dag: str) -> str:
    """The paused DAG with a successful run, a run that failed in `merge`, and a queued run."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from airflow.utils.types import DagRunType
    from sqlalchemy import delete

    with create_session() as session:
        session.execute(delete(DagRun).where(DagRun.dag_id == known_dag))
        for number, state in enumerate(("success", "failed", "queued")):
            at = BEGAN + timedelta(minutes=number)
            run = DagRun(known_dag, run_id=f"r{number}", run_type=DagRunType.MANUAL, state=state, run_after=at)
            run.start_date, run.end_date = at, at if state != "queued" else None
            session.add(run)
            session.flush()
    return known_dag


def test_last_ended_run_and_waiting_runs_are_read(runs: str) -> None:
    (facts,) = read_dag_facts(runs).values()
    ended = int((BEGAN + timedelta(minutes=1)).timestamp() * 1000)
    assert facts == DagFacts("sync", True, facts.due_ms, LastRun("r1", "failed", ended), ("r2",), facts.alive_ms)
    assert facts.alive_ms is not None
    assert read_dag_facts("nobody") == {}


def test_page_of_a_paused_dag_says_so_and_the_command_too(
    runs: str, server: httpx.Client, bearer: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    view = server.get(f"/binlake/api/dags/{runs}", headers=bearer).json()
    assert (view["state"], view["paused"]) == ("paused", ["sync"])
    texts = [one["text"] for one in view["problems"]]
    assert texts[0] == "its DAG is paused: no window starts; run r2 waits until it is unpaused"
    assert "the last run failed: see its log" in texts
    assert run(["status", runs, "--airflow", "--output", "json"]) == 5
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith('[{"name"')]
    (told,) = json.loads(line)
    assert (told["state"], told["orchestration"]) == ("paused", "airflow")
    # A PD that did not answer the page is not asked again.
    assert [one["text"] for one in told["problems"] if "PD" not in one["text"]] == [
        text for text in texts if "PD" not in text
    ]
    assert told["problems"][0]["remedy"] == f"airflow dags unpause {runs}"
    page = server.get(f"/binlake/dags/{runs}", headers=bearer).text
    assert '<strong>Paused:</strong> <span class="what">its DAG is paused' in page
    assert f'/binlake/dags/{runs}/runs/r1"' in page
    listed = server.get("/binlake/api", headers=bearer).json()["replications"]
    assert {one["name"]: one.get("state", "") for one in listed}[runs] in ("paused", "")


@pytest.mark.parametrize("column", ["last_heartbeat_at", "start_date", "end_date", "trigger_timeout"])
def test_active_run_lives_while_a_task_of_it_does(runs: str, column: str) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import insert, update

    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    with create_session() as session:
        session.execute(update(DagRun).where(DagRun.run_id == "r2").values(queued_at=None, start_date=None))
        task = {"id": uuid4(), "task_id": "plan", "dag_id": runs, "run_id": "r2", "pool": "p", "pool_slots": 1}
        session.execute(insert(TaskInstance).values(task | {column: at}))
    (facts,) = read_dag_facts(runs).values()
    assert facts.alive_ms == int(at.timestamp() * 1000)


def test_scheduler_is_healthy_while_it_sends_heartbeats() -> None:
    from airflow.jobs.job import Job
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    facts, now = [], datetime.now(UTC).replace(microsecond=0)
    for age_s in (None, 0, 600):
        with create_session() as session:
            session.execute(delete(Job).where(Job.job_type == "SchedulerJob"))
            if age_s is not None:
                job = Job(job_type="SchedulerJob", state="running", heartrate=5)
                job.job_type, job.latest_heartbeat = "SchedulerJob", now - timedelta(seconds=age_s)
                session.add(job)
        facts.append(read_scheduler_facts())
    heard = int(now.timestamp() * 1000)
    assert [(one.healthy, one.heard_ms) for one in facts] == [(False, None), (True, heard), (False, heard - 600_000)]
    with create_session() as session:
        session.execute(delete(Job).where(Job.job_type == "SchedulerJob"))
