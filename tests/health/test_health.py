"""A replication's health follows from facts: a broken replication is never shown as running."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from binlake import tso
from binlake.cluster.source.hearing import HeardSource, Hearing
from binlake.config import Replication
from binlake.errors import SourceUnavailable, TargetUnavailable, Transient
from binlake.health import surroundings
from binlake.health.orchestration import DagFacts, LastRun, SchedulerFacts
from binlake.health.positions import build_status_view
from binlake.health.state import Surroundings, build_health_view
from binlake.lake.baseload import BaseLoad, BaseTable
from binlake.lake.failures import record_failure
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake_airflow.pages.history import build_run_view
from deploy.local.ports import free_port

T0 = tso.compose(time.time_ns() // 1_000_000)
WELL = LastRun("r9", "success", 5)
SYNC = DagFacts("sync", paused=False, last=WELL, active=("r10",))
UP: dict[str, Any] = {
    "reachable": True,
    "why": "",
    "nodes": [{"id": "p1", "kind": "pump", "state": "online", "stale": False}],
}
READING = HeardSource("shard-1", "feeder", "reading", True, "db1:3306", "0-1-9", 0.0, 1.0)
TIDB = HeardSource("TiDB t1:10080", "tidb", "running", True, lag_s=0.0, heard_s=0.0)
AROUND = Surroundings(
    {"sync": SYNC}, {"target": True, "spark": True}, UP, Hearing((READING,)), SchedulerFacts(healthy=True)
)


@pytest.fixture
def log(tmp_path: Path) -> WindowLog:
    """A lake with one window that is applied to the target."""
    windows = WindowLog(LakePaths(str(tmp_path / "lake")))
    for stage, state in (("land", "done"), ("finalize", "started"), ("finalize", "done")):
        windows.record(WindowEvent(stage, T0, T0 + 9, state, 10, run_id="r9"))
    return windows


def read_health(log: WindowLog, around: Surroundings = AROUND, later_s: int = 1) -> dict[str, Any]:
    """The view `later_s` seconds after the last event."""
    raw = {"name": "orders", "lake": {"path": "/l"}, "target": {}, "window": {"lag-alert-s": 3600}}
    replication = Replication.model_validate(raw)
    last = max((event["at_ms"] for event in log.read_events()), default=0)
    status = build_status_view(replication, log, last + later_s * 1000, around.hearing)
    return build_health_view(replication, log, status, around, last + later_s * 1000)


def dag(**more: Any) -> Surroundings:
    return replace(AROUND, dags={"sync": replace(SYNC, **more)})


def first_problem(view: Mapping[str, Any]) -> tuple[str, str]:
    return view["state"], view["problems"][0]["text"]


def test_healthy_replication_is_running(log: WindowLog) -> None:
    view = read_health(log)
    assert (view["state"], view["problems"], view["applying"]) == ("running", [], None)


def test_paused_dag_is_not_running_and_its_waiting_runs_are_named(log: WindowLog) -> None:
    assert first_problem(read_health(log, dag(paused=True, active=()))) == (
        "paused",
        "its DAG is paused: no window starts",
    )
    assert first_problem(read_health(log, dag(paused=True)))[1].endswith("run r10 waits until it is unpaused")
    side = DagFacts("backfill", paused=True, active=("mine",))
    view = read_health(
        log, replace(AROUND, dags={"sync": SYNC, "backfill": side, "audit": DagFacts("audit", paused=True)})
    )
    assert first_problem(view) == (
        "attention",
        "run mine of its DAG backfill waits because the DAG is paused: unpause it",
    )
    assert view["paused"] == ["audit", "backfill"]


@pytest.mark.parametrize(
    ("state", "text"),
    [("pausing", "paused by pause-drainer, pumps keep"), ("offline", "taken offline by offline-drainer")],
)
def test_replication_held_in_the_registry_is_shown_with_the_way_back(log: WindowLog, state: str, text: str) -> None:
    # S0-74
    def at(state: str, name: str = "binlake-orders") -> Surroundings:
        node = {"id": name, "kind": "drainer", "state": state, "stale": False}
        return replace(AROUND, nodes={**UP, "nodes": [*UP["nodes"], node]})

    shown, why = first_problem(read_health(log, at(state)))
    assert (shown, why.startswith(text)) == ("paused", True)
    assert why.endswith("no window starts until `binlake resume-drainer -node-id binlake-orders`")
    for other in (at("paused"), at("closing"), at(state, "binlake-other")):
        assert read_health(log, other)["state"] == "running"


def test_failed_stage_is_reported_with_text_and_run_until_it_succeeds(log: WindowLog) -> None:
    record_failure(log, "land", Transient("the Spark Connect server does not answer", hint="start it"), run_id="r10")
    record_failure(log, "finalize", TargetUnavailable("nobody answers"), run_id="r10", window=(T0, T0 + 9))
    view = read_health(log)
    assert view["state"] == "failing"
    texts = {one["text"] for one in view["problems"]}
    assert "land failed: Transient: the Spark Connect server does not answer Hint: start it" in texts
    assert "finalize failed: TargetUnavailable: nobody answers" in texts
    assert {one["run_id"] for one in view["problems"]} == {"r10"}
    for stage in ("land", "finalize"):
        log.record(WindowEvent(stage, T0 + 9, T0 + 19, "done"))
    assert read_health(log)["state"] == "running"


def test_failed_plan_is_healthy_again_when_something_lands(log: WindowLog) -> None:
    record_failure(log, "plan", SourceUnavailable("no PD answers"), run_id="r10")
    assert first_problem(read_health(log)) == ("failing", "plan failed: SourceUnavailable: no PD answers")
    log.record(WindowEvent("land", T0 + 9, T0 + 19, "done"))
    assert read_health(log)["state"] == "running"


def test_failed_compact_is_healthy_again_when_its_sink_applies(log: WindowLog) -> None:
    # compact records no event if its window is already done.
    record_failure(log, "compact", TargetUnavailable("nobody answers"), run_id="r10")
    log.record(WindowEvent("merge", T0 + 9, T0 + 19, "done"))
    assert read_health(log)["state"] == "failing"
    log.record(WindowEvent("finalize", T0, T0 + 9, "already"))
    assert read_health(log)["state"] == "running"


def test_killed_run_without_an_event_is_failing(log: WindowLog) -> None:
    killed = dag(last=LastRun("r10", "failed", 7, ("merge",)), active=())
    view = read_health(log, killed)
    assert first_problem(view) == ("failing", "the last run failed in merge: see its log")
    assert view["problems"][0]["run_id"] == "r10"
    # If the lake has the text, the failure is shown once.
    record_failure(log, "merge", Transient("why"), run_id="r10")
    assert [one["text"] for one in read_health(log, killed)["problems"]] == ["merge failed: Transient: why"]


def test_failed_side_dag_asks_for_attention_until_it_succeeds(log: WindowLog) -> None:
    record_failure(log, "maintain", Transient("no Spark"), run_id="night")
    side = DagFacts("maintain", paused=False, last=LastRun("night", "failed", 7, ("maintain",)))
    assert first_problem(read_health(log, replace(AROUND, dags={"sync": SYNC, "maintain": side}))) == (
        "attention", "maintain failed: Transient: no Spark",
    )  # fmt: skip
    mended = replace(side, last=WELL)
    assert read_health(log, replace(AROUND, dags={"sync": SYNC, "maintain": mended}))["state"] == "running"


@pytest.mark.parametrize(
    ("around", "text"),
    [
        (replace(AROUND, reach={"target": False, "spark": None}), "nothing listens at the target's address"),
        (replace(AROUND, reach={"target": True, "spark": False}), "nothing listens at the address of Spark"),
        (replace(AROUND, nodes={**UP, "reachable": False, "why": "PD did not answer within 1 s"}), "PD did not answer"),
        (replace(AROUND, nodes={**UP, "nodes": [{"id": "p1", "stale": True}]}), "without a heartbeat: p1"),
    ],
    ids=["target", "spark", "pd", "stale pump"],
)
def test_unreachable_server_is_not_running(log: WindowLog, around: Surroundings, text: str) -> None:
    state, told = first_problem(read_health(log, around))
    assert (state, told.startswith(text)) == ("unreachable", True)


def test_started_window_is_open_until_a_run_ends_it(log: WindowLog) -> None:
    log.record(WindowEvent("finalize", T0 + 9, T0 + 19, "started", run_id="r10"))
    # A run is working on it.
    view = read_health(log)
    assert (view["state"], view["applying"]["hi"]["commit_ts"]) == ("running", str(T0 + 19))
    for around, later_s in ((dag(active=()), 1), (AROUND, 601)):
        state, text = first_problem(read_health(log, around, later_s))
        assert (state, "consistent = false" in text, str(T0 + 19) in text) == ("attention", True, True)
    log.record(WindowEvent("finalize", T0 + 9, T0 + 19, "done"))
    assert read_health(log, dag(active=()))["problems"] == []


def test_last_verify_result_is_reported_until_repaired_or_equal(log: WindowLog) -> None:
    assert read_health(log)["verified"] is None
    detail = {"missing": 2, "extra": 0, "different": 1}
    log.record(WindowEvent("verify", T0 + 9, T0 + 9, "different", 50, run_id="v", sink="sql", detail=detail))
    text = f"verify found differences at {T0 + 9}: 2 rows missing, 0 only at the target, 1 different"
    assert first_problem(read_health(log)) == ("attention", text)
    log.record(WindowEvent("repair", T0 + 9, T0 + 9, "done", 3))
    view = read_health(log)
    assert (view["state"], view["verified"]["repaired_since"]) == ("running", True)


def test_rows_found_by_validation_are_reported_until_settled(log: WindowLog) -> None:
    assert read_health(log)["validated"] is None
    listed = [{"number": 1, "table": "d.t", "key": "#12", "kind": "missing", "columns": [], "against": "lake",
               "window": "1-2", "times": 1}]  # fmt: skip
    detail = {"errors": 2, "pending": 3, "ignored": 1, "listed": listed, "tables": {"d.log": "it has no key"}}
    log.record(WindowEvent("validate", T0 + 9, T0 + 10, "done", 50, run_id="v", sink="sql", detail=detail))
    text = "validation found 2 rows that differ, in d.t: see `binlake validation show`"
    assert first_problem(read_health(log)) == ("attention", text)
    # A run that could not compare keeps them, and says so.
    log.record(WindowEvent("validate", T0 + 10, T0 + 10, "postponed", sink="sql", detail={"reason": "a lock"}))
    view = read_health(log)
    assert first_problem(view) == ("attention", text)
    shown = view["validated"]
    assert (shown["state"], shown["reason"], shown["pending"], shown["listed"]) == ("postponed", "a lock", 3, listed)
    log.record(WindowEvent("validation", T0 + 10, T0 + 10, "ignored", 2, detail={"errors": 0, "ignored": 3}))
    view = read_health(log)
    assert (view["state"], view["validated"]["ignored"]) == ("running", 3)


def test_unfinished_full_load_is_reported_with_its_rows(log: WindowLog) -> None:  # S4-24
    table = BaseTable(log.paths)
    load = BaseLoad(T0, T0 + 9, 40, 20, 3, rows_estimated=400, rows=100)
    table.record(load, "load")
    view = read_health(log)
    text = f"full load as of {T0 + 9}: 100 of about 400 rows read (25 %); no window from pumps begins before it"
    assert (view["state"], view["problems"][0]["run_id"]) == ("attention", "load")
    assert view["problems"][0]["text"].startswith(text)
    table.record(replace(load, done=True), "load")
    assert read_health(log)["state"] == "running"


def test_schedule_that_starts_no_run_is_standing(log: WindowLog) -> None:
    due = log.read_events()[-1]["at_ms"] - 600_000
    assert first_problem(read_health(log, dag(due_ms=due, active=())))[0] == "standing"
    assert read_health(log, dag(due_ms=due))["state"] == "running"


def test_problems_are_sorted_by_severity(log: WindowLog) -> None:
    record_failure(log, "finalize", TargetUnavailable("nobody answers"), run_id="r10")
    around = replace(dag(paused=True), reach={"target": False, "spark": None})
    assert [one["state"] for one in read_health(log, around)["problems"]] == ["paused", "failing", "unreachable"]


def test_run_shows_its_failures(log: WindowLog) -> None:
    record_failure(log, "finalize", TargetUnavailable("nobody answers"), run_id="r10", window=(T0, T0 + 9))
    view = build_run_view(log.read_events("r10"), "r10")
    assert [(row["stage"], row["state"], row["reason"]) for row in view["stages"]] == [
        ("finalize", "failed", "TargetUnavailable: nobody answers")
    ]


def test_addresses_are_checked_concurrently_and_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    target, spark = free_port(), free_port()
    asked: list[int] = []
    monkeypatch.setattr(surroundings, "is_listening", lambda _host, port, _s: asked.append(port) or port == target)
    raw: dict[str, Any] = {"name": "orders", "lake": {"path": "/l"}, "target": {"host": "127.0.0.1", "port": target}}
    replication = Replication.model_validate(raw)
    for _ in range(2):
        view = surroundings.build_reach_view(replication, lambda: (("127.0.0.1", spark),))
        assert view == {"target": True, "spark": False}
    assert sorted(asked) == sorted([target, spark])
    # Spark in this process, on a cluster manager, or known only to Airflow: there is no address to check.
    raw = {**raw, "target": None}
    view = surroundings.build_reach_view(Replication.model_validate(raw), tuple)
    assert view == {"target": None, "spark": None}


LOADING = replace(
    READING, is_heard=False, state="loading", lag_s=None, load={"rows": 1200, "tables_done": 1, "tables": 3}
)
NO_SOURCES: list[tuple[str, Hearing, str, str]] = [
    ("server dead", Hearing((replace(READING, is_heard=False, trouble="the server ended the connection"),)),
     "unreachable", "the source shard-1 makes no progress: the server ended the connection"),
    ("server silent", Hearing((replace(READING, is_heard=False),)),
     "unreachable", "the source shard-1 is not read: silent"),
    ("feeder starts", Hearing((replace(READING, is_heard=False, state="starting"),)),
     "unreachable", "the source shard-1 is not read: starting"),
    ("source stopped", Hearing((replace(READING, is_heard=False, state="failed", trouble="the log is purged"),)),
     "failing", "the feeder has stopped reading the source shard-1: the log is purged"),
    ("no pump accepts", Hearing((replace(READING, lag_s=9.0, trouble="no pump is online"),)),
     "unreachable", "the source shard-1 makes no progress: no pump is online"),
    ("one of two", Hearing((READING, replace(READING, name="shard-2", is_heard=False, trouble="refused"))),
     "unreachable", "the source shard-2 makes no progress: refused"),
    ("feeder dead", Hearing((), ("http://f:1",)), "unreachable", "the status port of the source does not answer"),
    ("one feeder of two", Hearing((READING,), ("http://f:1",)), "unreachable", "the status port of a feeder does not"),
    ("TiDB server of two", Hearing((TIDB,), ("http://t:1",)), "attention", "addresses in source.status-url that"),
    ("loading", Hearing((LOADING,)),
     "attention", "the full load of the source shard-1 has not ended: 1,200 rows, 1 of 3 tables"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "hearing", "state", "text"), NO_SOURCES, ids=[case for case, *_ in NO_SOURCES])
def test_source_that_is_not_read_is_never_running(
    log: WindowLog, case: str, hearing: Hearing, state: str, text: str
) -> None:
    view = read_health(log, replace(AROUND, hearing=hearing))
    assert (view["state"], view["problems"][0]["text"].startswith(text)) == (state, True), (case, view["problems"])
    # The rest of a replication whose source is dead looks fine: pumps answer, windows are applied.
    assert len(view["problems"]) == 1


def test_position_behind_the_source_is_not_running(log: WindowLog) -> None:
    late = read_health(log, later_s=3700)
    state, text = first_problem(late)
    assert state == "behind"
    assert re.fullmatch(r"more than 3,600 s behind the source: the lake \(\d+ \w+\), the target \(\d+ \w+\)", text)
    # Everything published is applied, but the source has older commits.
    stuck = replace(AROUND, hearing=Hearing((replace(READING, lag_s=4000.0),)))
    assert first_problem(read_health(log, stuck))[0] == "behind"
    # An unknown lag is no lag above the limit; the source that is not heard is the problem.
    unheard = replace(AROUND, hearing=Hearing((), ("http://f:1",)))
    assert [one["state"] for one in read_health(log, unheard, later_s=9000)["problems"]] == ["unreachable"]


def test_dead_scheduler_is_standing_although_a_run_counts_as_active(log: WindowLog) -> None:
    at_ms = log.read_events()[-1]["at_ms"]
    dead = replace(AROUND, scheduler=SchedulerFacts(healthy=False, heard_ms=at_ms - 60_000))
    text = "Airflow's scheduler has sent no heartbeat for 61 s: no run starts or goes on"
    assert first_problem(read_health(log, dead)) == ("standing", text)
    never = replace(AROUND, scheduler=SchedulerFacts(healthy=False))
    assert first_problem(read_health(log, never))[1].startswith("Airflow's scheduler has never sent a heartbeat")
    # Nothing waits for it: runs are started by hand.
    assert read_health(log, replace(never, dags={"sync": replace(SYNC, active=())}))["state"] == "running"


def test_active_run_without_a_sign_of_life_is_standing(log: WindowLog) -> None:
    at_ms = log.read_events()[-1]["at_ms"]
    assert read_health(log, dag(alive_ms=at_ms - 200_000))["state"] == "running"
    view = read_health(log, dag(alive_ms=at_ms - 301_000))
    text = "run r10 is active but nobody works on it: are Airflow's scheduler and workers alive?"
    assert (first_problem(view), view["problems"][0]["run_id"]) == (("standing", text), "r10")
    side = DagFacts("verify", paused=False, active=("v1",), alive_ms=at_ms - 301_000)
    assert first_problem(read_health(log, replace(AROUND, dags={"sync": SYNC, "verify": side})))[0] == "attention"
