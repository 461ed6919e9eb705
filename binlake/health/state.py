"""The state of a replication: its DAGs, the last failures, what blocks it, which servers answer, what verify found.

`state` is one word for the list; `problems` describes the problems, the most severe first. An error's text and run come
from the event `failure` in the lake; failures without an event come from Airflow's database.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from binlake.cluster.node import describe_hold, name_consumer
from binlake.cluster.source.hearing import Hearing
from binlake.config import Replication
from binlake.ddl import rewrites
from binlake.health.orchestration import SYNC, DagFacts, SchedulerFacts
from binlake.health.problem import (
    CHECK_SCHEDULER,
    DIAGNOSE,
    FILE,
    FIX_TARGET,
    LIST_PUMPS,
    LIST_WINDOWS,
    PD,
    SHOW_CHECKPOINT,
    STATES,
    Problem,
    find_lag_problems,
    find_source_problems,
)
from binlake.health.surroundings import list_servers_of_feed
from binlake.health.values import WindowEvents, build_ts_view, format_utc
from binlake.lake import baseload
from binlake.lake.failures import FAILURE, Failure
from binlake.pipeline import BY_NAME, ENDED

_LOOK = 25
"""How many of the newest failures are searched; a stage that fails every few seconds fills them all, and is shown."""
_LATE_MS = 120_000
"""If a run is overdue by this much, the scheduler is not working."""
_LIFELESS_MS = 300_000
"""If no task of an active run shows a sign of life for this long, nobody works on it (Airflow's limit for a task)."""
_DEAD = {
    "target": "nothing listens at the target's address",
    "spark": "nothing listens at the address of Spark",
}
_FUSED = "window"
_VALIDATION = ("validate", "validation")
"""Runs of continuous validation, and manual changes of its errors."""


@dataclass(frozen=True)
class Surroundings:
    """The lake's surroundings: DAGs by kind, which servers listen (as `build_reach_view`), the registry (as
    `build_nodes_view`), the sources, Airflow's scheduler (None: it was not asked).
    """

    dags: Mapping[str, DagFacts]
    reach: Mapping[str, bool | None]
    nodes: Mapping[str, Any]
    hearing: Hearing
    scheduler: SchedulerFacts | None


def build_health_view(
    replication: Replication,
    log: WindowEvents,
    status: Mapping[str, Any],
    around: Surroundings,
    now_ms: int,
    feeds: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """`state` and `problems`; the window that the SQL sink began to apply and has not ended; the last verify result.

    `status` comes from `build_status_view`, `feeds` from `build_feeds_view`: a feed's problem never counts as more than
    `attention`.
    """
    applying, verified, validated = _find_window_being_applied(log), _read_last_verify(log), _read_last_validation(log)
    own_tasks = frozenset(stage.task for stage in replication.list_stages() if stage.feed)
    problems = [
        *_find_dag_problems(replication.name, around.dags, now_ms),
        *_find_scheduler_problems(around, now_ms),
        *(of_feeds := [problem for feed in feeds for problem in _find_feed_problems(feed)]),
        *_find_failures(replication.name, log, around.dags, own_tasks, {problem.run_id for problem in of_feeds}),
        *_find_blocking_problems(status),
        *_find_hold_problems(replication, around.nodes),
        *find_source_problems(around.hearing, now_ms),
        *_find_unreachable_servers(around),
        *find_lag_problems(status, replication.window.lag_alert_s),
        *_find_unreachable_of_feeds(replication, around.reach),
        *_find_open_window_problems(applying, around.dags, now_ms, replication.window.blocked_alert_s),
        *_find_difference_problems(verified, log, status),
        *_find_validation_problems(validated),
        *_find_loading_problems(log),
    ]
    problems.sort(key=lambda problem: STATES.index(problem.state))
    usual = "empty" if status["landed"] is None else "running"
    return {
        "state": problems[0].state if problems else usual,
        "problems": [problem.to_dict() for problem in problems],
        "applying": applying and {**applying, "since": format_utc(applying["at_ms"])},
        "verified": verified,
        "validated": validated,
        "reach": {**around.reach, "pd": around.nodes["reachable"]},
        "paused": sorted(kind for kind, dag in around.dags.items() if dag.paused),
    }


def _find_loading_problems(log: WindowEvents) -> list[Problem]:
    """A full load that has not ended: it delays the windows from pumps."""
    event = log.read_last_event((baseload.STAGE,))
    if event is None or event["state"] == "done":
        return []
    text = f"{baseload.BaseLoad.of(event).text}; no window from pumps begins before it is done"
    return [Problem("attention", text, event["at_ms"], event["run_id"])]


def _find_dag_problems(name: str, dags: Mapping[str, DagFacts], now_ms: int) -> list[Problem]:
    """DAGs that Airflow does not run; for side DAGs this only counts as `attention`."""
    problems = []
    for kind, dag in dags.items():
        unpause = f"airflow dags unpause {_name_dag(name, kind)}"
        if dag.paused and kind == SYNC:
            waits = f"; run {dag.active[0]} waits until it is unpaused" if dag.active else ""
            problems.append(Problem("paused", f"its DAG is paused: no window starts{waits}", remedy=unpause))
        elif dag.paused and dag.active:
            text = f"run {dag.active[0]} of its DAG {kind} waits because the DAG is paused: unpause it"
            problems.append(Problem("attention", text, None, dag.active[0], unpause))
        elif dag.alive_ms is not None and now_ms - dag.alive_ms > _LIFELESS_MS:
            text = f"run {dag.active[0]} is active but nobody works on it: are Airflow's scheduler and workers alive?"
            state = "standing" if kind == SYNC else "attention"
            problems.append(Problem(state, text, dag.alive_ms, dag.active[0], CHECK_SCHEDULER))
        elif kind == SYNC and dag.due_ms is not None and not dag.active and now_ms - dag.due_ms > _LATE_MS:
            text = "a run is due but none has started: is the scheduler alive?"
            problems.append(Problem("standing", text, dag.due_ms, remedy=CHECK_SCHEDULER))
    return problems


def _name_dag(name: str, kind: str) -> str:
    return name if kind == SYNC else f"{name}.{kind}"


def _find_scheduler_problems(around: Surroundings, now_ms: int) -> list[Problem]:
    """A scheduler without heartbeats; without a schedule or an active run nothing waits for it."""
    waits = any(not dag.paused and (dag.active or dag.due_ms is not None) for dag in around.dags.values())
    if around.scheduler is None or around.scheduler.healthy or not waits:
        return []
    heard_ms = around.scheduler.heard_ms
    age_s = None if heard_ms is None else (now_ms - heard_ms) / 1000
    age = "has never sent a heartbeat" if age_s is None else f"has sent no heartbeat for {age_s:,.0f} s"
    text = f"Airflow's scheduler {age}: no run starts or goes on"
    return [Problem("standing", text, heard_ms, remedy=CHECK_SCHEDULER)]


def _find_feed_problems(feed: Mapping[str, Any]) -> list[Problem]:
    """Why a feed has stopped, or the failure that its next window will retry."""
    name, failure, error = feed["name"], feed["failure"], feed["error"]
    resume, query = (f"binlake changefeed {action} --replication {FILE} -c {name}" for action in ("resume", "query"))
    at_ms, run_id = (failure["at_ms"], failure["run_id"]) if failure is not None else (None, "")
    if feed["state"] == "error" and error is not None:
        hint = f" Hint: {error['hint']}" if error["hint"] else ""
        text = f"the feed {name} is in state error: {error['stage']}: {error['text']}{hint}"
        return [Problem("attention", text, at_ms, run_id, resume)]
    if feed["state"] == "stopped":
        why = f": {feed['reason']}" if feed["reason"] else ""
        return [Problem("attention", f"the feed {name} is stopped until it is resumed{why}", remedy=resume)]
    return [Problem("attention", failure["text"], at_ms, run_id, query)] if failure is not None else []


def _find_failures(
    name: str, log: WindowEvents, dags: Mapping[str, DagFacts], feed_tasks: Collection[str], shown_runs: Collection[str]
) -> list[Problem]:
    """The last failure of each stage that has not succeeded since; for side DAGs, the failure of their last run.

    Failures of feeds are left out: `feed_tasks` are their tasks, `shown_runs` the runs whose failure is shown for a
    feed.
    """
    failures = [Failure.of(event) for event in log.read_last_events((FAILURE,), _LOOK, sink="")]
    last_of = {failure.stage: failure for failure in reversed(failures)}
    ended = {dag.last.run_id: kind for kind, dag in dags.items() if dag.last is not None}
    current = [failure for failure in last_of.values() if _is_unresolved(failure, log, ended, dags)]
    current_runs = {*shown_runs, *(failure.run_id for failure in current)}
    problems = [
        Problem(_classify_stage(failure.stage), str(failure), failure.at_ms, failure.run_id, LIST_WINDOWS)
        for failure in sorted(current, key=lambda failure: -failure.at_ms)
    ]
    for kind, dag in dags.items():
        if dag.last is not None and dag.last.state == "failed" and dag.last.run_id not in current_runs:
            problems.append(_build_run_failure(name, kind, dag, feed_tasks))
    return problems


def _build_run_failure(name: str, kind: str, dag: DagFacts, feed_tasks: Collection[str]) -> Problem:
    assert dag.last is not None
    of_feeds = bool(dag.last.tasks) and all(task in feed_tasks for task in dag.last.tasks)
    which = "the last run" if kind == SYNC else f"the last run of its DAG {kind}"
    tasks = f" in {', '.join(dag.last.tasks)}" if dag.last.tasks else ""
    text = f"{which} failed{tasks}: see its log"
    state = "failing" if kind == SYNC and not of_feeds else "attention"
    show = f"airflow tasks states-for-dag-run {_name_dag(name, kind)} {dag.last.run_id}"
    return Problem(state, text, dag.last.ended_ms, dag.last.run_id, show)


def _is_unresolved(failure: Failure, log: WindowEvents, ended: Mapping[str, str], dags: Mapping[str, DagFacts]) -> bool:
    if _classify_stage(failure.stage) == "failing":
        # A plan that is ready leaves no event, but the land stage after it does.
        stages, states = (
            (("plan", "land"), None) if failure.stage == "plan" else (_list_stages_that_clear(failure.stage), ENDED)
        )
        newer = log.read_last_events(stages, 1, states)
        return not newer or newer[0]["at_ms"] < failure.at_ms
    kind = ended.get(failure.run_id)
    last = dags[kind].last if kind is not None else None
    return last is not None and last.state == "failed"


def _classify_stage(stage: str) -> str:
    return "failing" if stage in BY_NAME or stage == _FUSED else "attention"


def _list_stages_that_clear(stage: str) -> tuple[str, ...]:
    """The stages whose end shows that `stage` works again: itself, and the later stages of the same sink."""
    if stage == _FUSED:
        return ("land",)
    sink, names = BY_NAME[stage].sink, list(BY_NAME)
    return (stage, *(n for n in names[names.index(stage) + 1 :] if sink is not None and BY_NAME[n].sink == sink))


def _find_blocking_problems(status: Mapping[str, Any]) -> list[Problem]:
    blocked = status["blocked"]
    if not blocked:
        return []
    text = f"blocked by {blocked['by']}: {blocked['reason']}"
    return [Problem("blocked", text, blocked["since_ms"], remedy=LIST_PUMPS)]


def _find_hold_problems(replication: Replication, nodes: Mapping[str, Any]) -> list[Problem]:
    """What an operator has asked by `pause-drainer` or `offline-drainer`."""
    own = name_consumer(replication.name)
    states = [node["state"] for node in nodes["nodes"] if node["id"] == own and node["kind"] == "drainer"]
    resume = f"binlake resume-drainer --pd-urls {PD} --node-id {own}"
    holds = [describe_hold(own, state) for state in states]
    return [Problem("paused", text, remedy=resume) for text in holds if text]


def _find_unreachable_servers(around: Surroundings) -> list[Problem]:
    dead = [text for name, text in _DEAD.items() if around.reach.get(name) is False]
    problems = [Problem("unreachable", text, remedy=DIAGNOSE) for text in dead]
    if not around.nodes["reachable"]:
        problems.append(Problem("unreachable", str(around.nodes["why"]), remedy=DIAGNOSE))
    silent = [str(node["id"]) for node in around.nodes["nodes"] if node["stale"]]
    if silent:
        problems.append(Problem("unreachable", f"without a heartbeat: {', '.join(silent)}", remedy=LIST_PUMPS))
    return problems


def _find_unreachable_of_feeds(replication: Replication, reach: Mapping[str, bool | None]) -> list[Problem]:
    """Servers of feeds at which nothing listens: they block only that feed."""
    return [
        Problem(
            "attention", f"nothing listens at {server.what} of the feed {feed.name}: {server.where}", remedy=DIAGNOSE
        )
        for feed in replication.feed
        for server in list_servers_of_feed(feed)
        if reach.get(server.key) is False
    ]


def _find_window_being_applied(log: WindowEvents) -> dict[str, Any] | None:
    """The window that finalize has begun and not ended: the target may hold it open (`consistent` = false)."""
    last = log.read_last_events(("finalize", "release"), 1, ("started", "released", *ENDED))
    if not last or last[0]["state"] != "started":
        return None
    event = last[0]
    return {
        "lo": build_ts_view(event["lo"]),
        "hi": build_ts_view(event["hi"]),
        "run_id": event["run_id"],
        "at_ms": event["at_ms"],
    }


def _find_open_window_problems(
    applying: Mapping[str, Any] | None, dags: Mapping[str, DagFacts], now_ms: int, limit_s: float
) -> list[Problem]:
    """A window that no run applies any longer, or whose apply takes too long."""
    if applying is None:
        return []
    sync = dags.get(SYNC)
    alone = sync is not None and (sync.paused or not sync.active)
    age_s = (now_ms - applying["at_ms"]) / 1000
    if not alone and age_s < limit_s:
        return []
    window = f"({applying['lo']['commit_ts']}, {applying['hi']['commit_ts']}]"
    text = (
        f"the window {window} was started at the target {age_s:,.0f} s ago and has not ended: "
        "the target may match no state of the source (consistent = false) until a run finishes it"
    )
    return [Problem("attention", text, applying["at_ms"], applying["run_id"], SHOW_CHECKPOINT)]


def _read_last_verify(log: WindowEvents) -> dict[str, Any] | None:
    """The result of the last verify of the target, and whether rows were repaired since."""
    last = log.read_last_events(("verify",), 1)
    if not last:
        return None
    event, repaired = last[0], log.read_last_events(("repair",), 1)
    detail = json.loads(event["detail"] or "{}")
    since = bool(repaired) and repaired[0]["at_ms"] > event["at_ms"]
    wrong = {name: detail.get(name, 0) for name in ("missing", "extra", "different")}
    return {
        **{name: event[name] for name in ("state", "at_ms", "rows", "run_id")},
        "at": format_utc(event["at_ms"]),
        "hi": build_ts_view(event["hi"]),
        "repaired_since": since,
        **wrong,
    }


def _find_difference_problems(
    verified: Mapping[str, Any] | None, log: WindowEvents, status: Mapping[str, Any]
) -> list[Problem]:
    """Differences that verify found and nobody has repaired since, and tables that are set aside."""
    problems = []
    if verified is not None and verified["state"] == "different" and not verified["repaired_since"]:
        text = (
            f"verify found differences at {verified['hi']['commit_ts']}: {verified['missing']} rows missing, "
            f"{verified['extra']} only at the target, {verified['different']} different"
        )
        problems.append(Problem("attention", text, verified["at_ms"], verified["run_id"], FIX_TARGET))
    aside: Sequence[Mapping[str, Any]] = status["set_aside"]
    if aside:
        names = ", ".join(str(table["table"]) for table in aside)
        text = f"set aside, so the target differs from the source in: {names}"
        problems.append(Problem("attention", text, remedy=f"binlake table list --replication {FILE}"))
    behind_ddl = log.read_last_events((rewrites.STAGE,), 1, rewrites.FOUND)
    if behind_ddl and behind_ddl[0]["state"] == "different":
        event = behind_ddl[0]
        if verified is None or verified["at_ms"] < event["at_ms"]:
            text = "a table differs after a DDL that changed its rows: see the notices"
            problems.append(Problem("attention", text, event["at_ms"], event["run_id"], FIX_TARGET))
    return problems


def _read_last_validation(log: WindowEvents) -> dict[str, Any] | None:
    """The state of continuous validation: counts of the ledger, some errors, their time, why a run was postponed."""
    known = log.read_last_events(_VALIDATION, 1, ("done", "ignored", "resolved", "cleared"))
    last = log.read_last_events(("validate",), 1)
    if not last:
        return None
    detail = json.loads(known[0]["detail"] or "{}") if known else {}
    event = known[0] if known else last[0]
    run = json.loads(last[0]["detail"] or "{}")
    return {
        **{name: detail.get(name, 0) for name in ("errors", "pending", "ignored")},
        "listed": detail.get("listed", []),
        "state": last[0]["state"],
        "reason": run.get("reason", ""),
        "tables": run.get("tables", {}),
        "rows": last[0]["rows"],
        "hi": build_ts_view(last[0]["hi"]),
        "at": format_utc(last[0]["at_ms"]),
        "at_ms": event["at_ms"],
        "run_id": event["run_id"],
    }


def _find_validation_problems(validated: Mapping[str, Any] | None) -> list[Problem]:
    """Rows that differ at the target, until they are correct or an operator has ignored or resolved them."""
    if validated is None or not validated["errors"]:
        return []
    tables = ", ".join(sorted({str(row["table"]) for row in validated["listed"]}))
    text = f"validation found {validated['errors']} rows that differ, in {tables}: see `binlake validation show`"
    show = f"binlake validation show --replication {FILE}"
    return [Problem("attention", text, validated["at_ms"], validated["run_id"], show)]
