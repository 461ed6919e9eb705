"""What a run leaves for people in Airflow: its note, and the failures of its tasks. A user's note is kept.

The note tells the window and its rows, what blocked it, or what failed. A task cannot write it, because Airflow's task
API has no call for it: a listener in the scheduler, which ends the run, writes it.

A failure is an XCom for the note, and an event in the lake for the page and for notifiers. A job records its own
failure where it happens. This module records failures that no job could report: the job was killed, it never started,
or its answer makes the run fail.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from airflow.listeners import hookimpl

from binlake.config import Replication
from binlake.errors import BinlakeError
from binlake.pipeline import name_feed_sink

log = structlog.get_logger(__name__)

FAILURE_KEY = "failed"
"""XCom of a failed try; Airflow clears it when the task is retried."""
LOOK_S = 30.0
"""Seconds to wait for the failures in the lake; after that the notification is sent without them."""


def format_error(error: BaseException) -> str:
    """One line about an error, without its `where`."""
    if isinstance(error, BinlakeError):
        return f"{error.message} Hint: {error.hint}" if error.hint else error.message
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


def record_failure(
    error: Exception,
    *,
    settings: Callable[[], Replication],
    task_id: str,
    context: Mapping[str, Any],
    since_s: float,
    records: bool,
    feed: str = "",
) -> None:
    """Record `error`, which ended a try that began at `since_s` (Unix seconds). It never raises.

    `feed`: the feed, for a feed's stage.
    """
    try:
        context["ti"].xcom_push(key=FAILURE_KEY, value=format_error(error)[:1000])
        if records:
            _record_event(settings(), task_id, feed, error, str(context["run_id"]), since_s)
    except Exception:
        log.warning("failure_not_recorded", task=task_id, exc_info=True)


def read_failures_of_run(settings: Replication, run_id: str) -> list[dict[str, str]]:
    """The failures of a run that the lake records, in order: stage, sink (of a feed), kind, error, text, hint.

    Empty if the lake does not answer.
    """
    recorded: list[dict[str, str]] = []

    def look() -> None:
        # Imported late: delta-rs is not needed for DAG parsing.
        from binlake.lake.failures import read_failures
        from binlake.lake.paths import LakePaths
        from binlake.lake.windowlog import WindowLog

        names = ("stage", "sink", "kind", "error", "text", "hint")
        events = reversed(read_failures(WindowLog(LakePaths.of(settings)), run_id))
        # If a stage was retried, its last failure.
        last = {one.task: one for one in events}
        recorded.extend({name: getattr(one, name) for name in names} for one in last.values())

    looking = threading.Thread(target=_read_or_log, args=(look,), name="binlake-failures", daemon=True)
    looking.start()
    looking.join(LOOK_S)
    return list(recorded)


def _read_or_log(look: Callable[[], None]) -> None:
    try:
        look()
    except Exception:
        log.warning("failures_not_readable", exc_info=True)


def _record_event(
    settings: Replication, task_id: str, feed: str, error: Exception, run_id: str, since_s: float
) -> None:
    from binlake.lake.failures import read_failures, record_failure
    from binlake.lake.paths import LakePaths
    from binlake.lake.windowlog import WindowLog

    windows, sink = WindowLog(LakePaths.of(settings)), name_feed_sink(feed) if feed else ""
    # A feed's failure is not counted for other sinks, nor theirs for the feed.
    if not any(one.sink == sink for one in read_failures(windows, run_id, int(since_s * 1000))):
        stage = task_id.removesuffix(f"-{feed}") if feed else task_id
        record_failure(windows, stage, error, run_id=run_id, sink=sink)


NOTE_KEY = "note"
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
    """Write the run's note from what its tasks left under NOTE_KEY; for a `failed` run, which tasks failed and why."""
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
    return next((text for _, text in _read_xcoms(dag_run, session, NOTE_KEY)), "")


def _describe_failed_tasks(dag_run: Any, session: Any) -> str:
    """One line for each failed task; the notes of other sinks are left out."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.state import TaskInstanceState
    from sqlalchemy import select

    of_run = (TaskInstance.dag_id == dag_run.dag_id) & (TaskInstance.run_id == dag_run.run_id)
    query = select(TaskInstance.task_id).where(of_run, TaskInstance.state == TaskInstanceState.FAILED)
    errors = dict(_read_xcoms(dag_run, session, FAILURE_KEY))
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
