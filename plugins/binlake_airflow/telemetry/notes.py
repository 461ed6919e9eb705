"""A run's note in Airflow's pages: the window and its rows, what blocked it, or what failed. A user's note is kept.

A task cannot write the note, because Airflow's task API has no call for it. A listener in the scheduler, which ends the
run, writes it.
"""

from __future__ import annotations

from typing import Any

from airflow.listeners import hookimpl

from binlake_airflow.telemetry import failures

KEY = "note"
"""XCom with a task's note; the last one of a run counts."""
_LETTERS = 1000


class RunNotes:
    """Writes the note of a run of Binlake's DAGs when the run ends."""

    @hookimpl
    def on_dag_run_success(self, dag_run: Any, msg: str) -> None:
        """A run succeeded."""
        del msg
        write_note(dag_run)

    @hookimpl
    def on_dag_run_failed(self, dag_run: Any, msg: str) -> None:
        """A run failed."""
        del msg
        write_note(dag_run, failed=True)


def write_note(dag_run: Any, *, failed: bool = False) -> None:
    """Write the run's note from what its tasks left under KEY; for a `failed` run, which tasks failed and why."""
    # Imported here: only the scheduler calls this, but tasks load this module too, with the plugin.
    from airflow.models.dagrun import DagRunNote
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    if session is None or not _is_ours(dag_run):
        return
    text = _describe_failed_tasks(dag_run, session) if failed else _read_last_note(dag_run, session)
    if not text:
        return
    if dag_run.dag_run_note is None:
        dag_run.dag_run_note = DagRunNote(content=text)
    elif dag_run.dag_run_note.user_id is None:
        dag_run.dag_run_note.content = text


def _read_last_note(dag_run: Any, session: Any) -> str:
    return next((text for _, text in _read_xcoms(dag_run, session, KEY)), "")


def _describe_failed_tasks(dag_run: Any, session: Any) -> str:
    """One line for each failed task; the notes of other sinks are left out."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.state import TaskInstanceState
    from sqlalchemy import select

    of_run = (TaskInstance.dag_id == dag_run.dag_id) & (TaskInstance.run_id == dag_run.run_id)
    query = select(TaskInstance.task_id).where(of_run, TaskInstance.state == TaskInstanceState.FAILED)
    errors = dict(_read_xcoms(dag_run, session, failures.KEY))
    names = session.scalars(query.order_by(TaskInstance.end_date)).all()
    lines = [f"{name} failed: {errors.get(name, 'it was ended from outside; see its log')}" for name in names]
    return "\n".join(lines)[:_LETTERS]


def _read_xcoms(dag_run: Any, session: Any, key: str) -> list[tuple[str, str]]:
    """Task and text of what tasks left under `key`, newest first."""
    from airflow.models.xcom import XComModel

    query = XComModel.get_many(run_id=dag_run.run_id, key=key, dag_ids=dag_run.dag_id)
    found = session.scalars(query.order_by(None).order_by(XComModel.timestamp.desc()))
    return [(one.task_id, str(XComModel.deserialize_value(one))) for one in found]


def _is_ours(dag_run: Any) -> bool:
    dag = getattr(dag_run, "dag", None)
    return dag is None or "binlake" in dag.tags
