"""Doing an action of the table: who may, what Airflow is asked, and the entry in Airflow's audit log; and the page of
its run: where it stands, who started it, what it answered or why it failed.

An action that is a run of a DAG needs the right to trigger that DAG; one that is done at once needs the right to edit
the replication's DAG, which is also needed to pause it. Airflow decides both, as in its own API.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from airflow.api_fastapi.auth.managers.models.base_user import BaseUser

from binlake.config import Replication
from binlake.health.orchestration import SYNC
from binlake_airflow.actions import PAUSE, UNPAUSE, PageAction, Value, format_typed
from binlake_airflow.actiontable import ACTIONS, GROUPS
from binlake_airflow.dags.dagparts import KINDS, build_dag_id
from binlake_airflow.pages.access import may_edit, may_read, may_trigger
from binlake_airflow.pages.request import NotPossible
from binlake_airflow.pages.views import NotAllowed, NotFound, change_feed
from binlake_airflow.telemetry.notes import FAILURE_KEY

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
            "failure": _read_xcom(session, dag_id, run_id, FAILURE_KEY),
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


EVENT = "binlake_"
"""How the events of actions in Airflow's audit log begin."""
LAST = 20
"""Entries of the audit log that the page of actions shows."""


def require_action(replication: Replication, name: str) -> PageAction:
    """The action of this name. Raises NotFound."""
    action = ACTIONS.get(name)
    if action is None or not action.fits(replication):
        raise NotFound("this replication has no such action")
    return action


def find_dag_id(replication: Replication, action: PageAction) -> str:
    """The DAG that an action runs or changes."""
    return build_dag_id(replication.name, SYNC if action.at_once else action.way or SYNC)


def may_act(user: BaseUser, replication: Replication, action: PageAction) -> bool:
    """Whether Airflow lets the user do it."""
    check = may_edit if action.at_once else may_trigger
    return check(user, find_dag_id(replication, action))


def name_permission(replication: Replication, action: PageAction) -> str:
    """The permission of Airflow that an action needs, for people."""
    what = "edit the DAG" if action.at_once else "trigger the DAG"
    return f"{what} {find_dag_id(replication, action)}"


def do_action(replication: Replication, action: PageAction, values: Mapping[str, Value], user: BaseUser) -> str:
    """Do it, and log it; returns the id of the DAG's run, empty if it is done already.

    Raises NotAllowed, NotFound, NotPossible.
    """
    if not may_act(user, replication, action):
        raise NotAllowed(f"you may not {name_permission(replication, action)}")
    run_id = ""
    if action.way in (PAUSE, UNPAUSE):
        _set_paused(replication.name, paused=action.way == PAUSE)
    elif action.at_once:
        change_feed(replication, str(values["feed"]), action.name.removeprefix("feed-"), user.get_name())
    else:
        run_id = _trigger(find_dag_id(replication, action), action.build_conf(values), user.get_name())
    _log(replication, action, values, run_id, user.get_name())
    return run_id


def build_actions_view(replication: Replication, user: BaseUser) -> dict[str, Any]:
    """All actions by group, whether the user may do each, and what was done last."""
    groups = {
        title: [_build_action_view(replication, one, user) for one in group if one.fits(replication)]
        for title, group in GROUPS.items()
    }
    return {"groups": {title: rows for title, rows in groups.items() if rows}, "last": _read_last(replication)}


def build_form_view(
    replication: Replication, action: PageAction, typed: Mapping[str, str], problems: Mapping[str, str], user: BaseUser
) -> dict[str, Any]:
    """The form of an action with what was typed, what is wrong with it, and whether its DAG is paused."""
    return {
        **_build_action_view(replication, action, user),
        "fields": [
            {**vars(field), "typed": typed.get(field.name, ""), "problem": problems.get(field.name, "")}
            for field in action.fields
        ],
        "problems": dict(problems),
        "choices": _list_choices(replication),
        "waits": not action.at_once and _is_paused(find_dag_id(replication, action)),
    }


def build_review_view(
    replication: Replication, action: PageAction, values: Mapping[str, Value], user: BaseUser
) -> dict[str, Any]:
    """What will happen if the action is confirmed: its values and the command that does the same."""
    typed = format_typed(action.fields, values)
    view = build_form_view(replication, action, typed, {}, user)
    return {**view, "command": action.format_command(values, replication.name), "review": True}


def _build_action_view(replication: Replication, action: PageAction, user: BaseUser) -> dict[str, Any]:
    return {
        "name": action.name, "title": action.title, "about": action.about, "grave": action.grave,
        "at_once": action.at_once, "dag_id": find_dag_id(replication, action),
        "permission": name_permission(replication, action), "allowed": may_act(user, replication, action),
    }  # fmt: skip


def _list_choices(replication: Replication) -> dict[str, list[str]]:
    """Names that the form suggests, by field."""
    return {"feed": [feed.name for feed in replication.feed]}


def _set_paused(dag_id: str, *, paused: bool) -> None:
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    with create_session() as session:
        dag = session.get(DagModel, dag_id)
        if dag is None or dag.is_stale:
            raise NotFound(f"Airflow does not know the DAG {dag_id}")
        dag.is_paused = paused


def _is_paused(dag_id: str) -> bool:
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    with create_session() as session:
        dag = session.get(DagModel, dag_id)
        return dag is not None and bool(dag.is_paused)


def _trigger(dag_id: str, conf: Mapping[str, Any], who: str) -> str:
    """Start a run of the DAG; returns its id. Raises NotFound, NotPossible with what Airflow says about the params."""
    from airflow.api.common.trigger_dag import trigger_dag
    from airflow.exceptions import DagNotFound
    from airflow.utils.types import DagRunTriggeredByType

    try:
        run = trigger_dag(dag_id, triggered_by=DagRunTriggeredByType.UI, triggering_user_name=who, conf=dict(conf))
    except DagNotFound:
        raise NotFound(f"Airflow does not know the DAG {dag_id}") from None
    except ValueError as error:
        # Also Airflow's error for params that do not fit.
        raise NotPossible(f"Airflow refuses the run: {error}") from error
    if run is None:
        raise NotPossible("Airflow did not start a run")
    return str(run.run_id)


def _log(replication: Replication, action: PageAction, values: Mapping[str, Value], run_id: str, who: str) -> None:
    from airflow.models.log import Log
    from airflow.utils.session import create_session

    command = action.format_command(values, replication.name)
    with create_session() as session:
        session.add(
            Log(
                event=f"{EVENT}{action.name}", task_instance=None, owner=who, owner_display_name=who,
                extra=json.dumps({"action": action.name, "command": command}),
                dag_id=find_dag_id(replication, action), run_id=run_id or None,
            )
        )  # fmt: skip


def _read_last(replication: Replication) -> list[dict[str, Any]]:
    """The last entries of actions in Airflow's audit log, the newest first."""
    from airflow.models.log import Log
    from airflow.utils.session import create_session
    from sqlalchemy import select

    ids = {find_dag_id(replication, one) for one in ACTIONS.values()}
    query = select(Log).where(Log.dag_id.in_(ids), Log.event.startswith(EVENT, autoescape=True))
    with create_session() as session:
        rows = session.scalars(query.order_by(Log.id.desc()).limit(LAST)).all()
        return [
            {
                "at": row.dttm.isoformat() if row.dttm else None, "who": row.owner or "", "dag_id": row.dag_id or "",
                "run_id": row.run_id or "", "action": row.event.removeprefix(EVENT),
                "command": json.loads(row.extra or "{}").get("command", ""),
            }
            for row in rows
        ]  # fmt: skip
