"""A run's note in Airflow's pages: the window and its rows, or who blocked. What a person wrote is kept.

A task may not write it: Airflow's task API has no call for that. The scheduler, which ends the run, may (a listener).
"""

from __future__ import annotations

from typing import Any

from airflow.listeners import hookimpl

KEY = "note"
"""XCom of the tasks that have something to say; the last one counts."""


class RunNotes:
    """Writes the note of a run of Binlake's DAGs when the run ends."""

    @hookimpl
    def on_dag_run_success(self, dag_run: Any, msg: str) -> None:
        """A run ended well."""
        del msg
        write(dag_run)

    @hookimpl
    def on_dag_run_failed(self, dag_run: Any, msg: str) -> None:
        """A run failed."""
        del msg
        write(dag_run)


def write(dag_run: Any) -> None:
    """Put what the run's tasks left under KEY into its note."""
    # The scheduler alone comes here; tasks load this module, too, with the plugin.
    from airflow.models.dagrun import DagRunNote
    from airflow.models.xcom import XComModel
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    if session is None or not _is_ours(dag_run):
        return
    query = XComModel.get_many(run_id=dag_run.run_id, key=KEY, dag_ids=dag_run.dag_id)
    found = session.scalars(query.order_by(None).order_by(XComModel.timestamp.desc()).limit(1)).first()
    if found is None:
        return
    text = str(XComModel.deserialize_value(found))
    if dag_run.dag_run_note is None:
        dag_run.dag_run_note = DagRunNote(content=text)
    elif dag_run.dag_run_note.user_id is None:
        dag_run.dag_run_note.content = text


def _is_ours(dag_run: Any) -> bool:
    dag = getattr(dag_run, "dag", None)
    return dag is None or "binlake" in dag.tags
