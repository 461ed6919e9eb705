"""What happens around a window: waiting, recovery, and what others are told. The jobs are scripted."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import notified
from support.dag_runs import BLOCKED, HI, LO, LOWERED, Run, Runner, answer, as_one_task, failure, good_window
from support.replication_files import write_replication

from binlake import tso
from binlake.cluster import placement
from binlake.config import load_replication
from binlake.lake import holdups
from binlake.lake.failures import Failure
from binlake.lake.lock import hold_lake_lock
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake_airflow.telemetry import metrics
from deploy.local.ports import free_port

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

PATIENT = 'schedule = ""\nretries = 0\nwait-s = 600'
GONE = failure("Transient", "SourceUnavailable", "no PD answers")


def recover_result(state: str = "recovered") -> dict[str, Any]:
    result = answer("recover", LO, HI, state, detail={"reason": "why"})["results"]
    return {"ok": True, "status": 0, "printed": json.dumps(result)}


def build_unreachable_source() -> str:
    """[source] with a PD that does not answer."""
    return f'pd-urls = "http://127.0.0.1:{free_port()}"\ntimeout-s = 1'


@pytest.mark.parametrize("layout", ["stages", "fused"])
def test_recover_replaces_the_window_if_pd_is_unreachable(run: Runner, layout: str) -> None:  # S3-10 S3-11
    first = "plan" if layout == "stages" else "window"
    done = run(
        {first: [GONE], "recover": [recover_result()]},
        source=build_unreachable_source(),
        airflow=f'layout = "{layout}"\n{PATIENT}',
    )
    assert done.state == "success"
    assert [call["stage"] for call in done.calls] == [first, "recover"]
    assert {name for name, state in done.states.items() if state == "success"} == {first, "recover"}
    assert done.xcom(first, "blocked_by") == "pd"
    assert done.xcom("recover")["hi"] == HI
    assert done.note == f"recover: recovered at {HI} = 2026-11-20T00:00:00.000Z: why"


def test_nothing_is_recovered_while_pd_answers(
    good_run: Run, run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:  # S3-12
    assert (good_run.state, good_run.states["recover"]) == ("success", "skipped")
    # Neither does an error for which PD is not the cause.
    monkeypatch.setattr(placement, "is_pd_reachable", lambda _source: True)
    failed = run({"plan": [GONE], "recover": [recover_result()]})
    assert (failed.state, failed.states["recover"]) == ("failed", "upstream_failed")
    assert [call["stage"] for call in good_run.calls + failed.calls].count("recover") == 0


def test_source_unreachable_for_long_fails_the_run(run: Runner, folder: Path) -> None:
    script = {"plan": [GONE], "recover": [recover_result("nothing-to-do")]}
    short = run(script, source=build_unreachable_source(), airflow=PATIENT)
    assert short.state == "success"
    log = WindowLog(LakePaths.of(load_replication(folder / "orders.toml", secrets=False)))
    log.record(WindowEvent("land", 1, 2, "done", 0, 0.1, "long ago"))
    assert run(script, source=build_unreachable_source(), airflow=PATIENT).state == "failed"


def test_blocked_plan_waits_without_a_worker_and_continues(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[tuple[int, int | None]] = []

    def look(_replication: object, lo: int, stop_ts: int | None) -> str:
        looks.append((lo, stop_ts))
        return f"pump-2 since {LO}" if len(looks) == 1 else ""

    monkeypatch.setattr(holdups, "find_blocking_reason", look)
    window = empty_window()
    done = run({**window, "plan": [BLOCKED, *window["plan"]]}, airflow=PATIENT)
    assert done.state == "success"
    assert looks == [(int(LO), None)] * 2
    assert (done.tries("plan"), done.states["land"]) == (2, "success")


def test_requested_range_is_awaited(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []
    monkeypatch.setattr(holdups, "find_blocking_reason", lambda _r, _lo, stop_ts: asked.append(stop_ts) or "")
    waiting = answer("plan", LO, LOWERED, "waiting", detail={"reason": f"stop_ts {HI} is above the watermark"})
    window = good_window()
    done = run({**window, "plan": [waiting, *window["plan"]]}, {"stop_ts": HI}, airflow=PATIENT)
    assert (done.state, asked) == ("success", [int(HI)])


def test_run_without_a_window_says_why_in_its_note(run: Runner) -> None:  # S0-74
    held = answer("plan", LO, LO, "waiting", detail={"reason": "paused by pause-drainer"})
    done = run({"plan": [held]}, airflow=PATIENT)
    assert (done.state, done.states["land"], done.tries("plan")) == ("success", "skipped", 1)
    assert done.note == f"waiting at {LO} = 2026-11-20T00:00:00.000Z: paused by pause-drainer"


def test_wait_that_times_out_ends_like_a_blocked_run(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holdups, "find_blocking_reason", lambda *_: f"pump-2 since {LO}")
    done = run({"plan": [BLOCKED]}, airflow=PATIENT.replace("600", "1"))
    assert (done.state, done.states["land"], done.xcom("plan", "blocked_by")) == ("success", "skipped", "pump-2")
    assert done.tries("plan") == 2
    assert done.note == f"blocked at {LO} = 2026-11-20T00:00:00.000Z: pump-2 since {LO}"


def test_task_that_finds_the_lake_locked_waits_before_it_starts(
    run: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = LakePaths.of(load_replication(write_replication(folder, "orders"), secrets=False))
    held = hold_lake_lock(paths, "sql")
    held.__enter__()
    freed: list[str] = []

    def look(*_: object) -> str:
        # The trigger's check releases the lock, so that the task can continue.
        held.__exit__(None, None, None)
        freed.append("sql")
        return ""

    monkeypatch.setattr("binlake_airflow.operators.waiting.FreeTrigger.find_obstacle", look)
    done = run(good_window(), airflow=PATIENT)
    assert (done.state, freed) == ("success", ["sql"])
    assert [call["stage"] for call in done.calls].count("compact") == 1


def test_task_that_finds_the_lease_held_waits_and_fails_after_the_timeout(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("binlake_airflow.operators.waiting.FreeTrigger.find_obstacle", lambda _self: "")
    held, window = failure("Transient", "LeaseHeld", "host:1:2 applies this replication"), good_window()
    done = run({**window, "finalize": [held, *window["finalize"]]}, airflow=PATIENT)
    # Deferring is neither a failure nor a retry.
    assert (done.state, done.tries("finalize")) == ("success", 2)
    monkeypatch.setattr("binlake_airflow.operators.waiting.FreeTrigger.find_obstacle", lambda _self: "host:1:2")
    never = run({**window, "finalize": [held]}, airflow=PATIENT.replace("600", "1"))
    assert (never.state, never.states["finalize"]) == ("failed", "failed")


def empty_window() -> dict[str, list[dict[str, Any]]]:
    """A window that ends after landing, which costs half as much."""
    return {**good_window(), "land": [answer("land", LO, LOWERED, rows=0)]}


def events(done: Run) -> dict[str, dict[str, Any]]:
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        found = session.scalars(select(AssetEvent).where(AssetEvent.source_run_id == done.run_id)).all()
        return {event.asset.uri: dict(event.extra) for event in found}


@pytest.mark.parametrize(("target", "stage"), [("", "compact"), (None, "mirror")])
def test_window_updates_the_assets_of_its_changed_tables(run: Runner, target: str | None, stage: str) -> None:
    window = good_window()
    lo, hi = (BLOCKED["results"][0]["lo"], LOWERED) if stage == "mirror" else ("470583292723100001", LOWERED)
    changed = {"changed": [["shop", "orders"], ["shop", "Über/1"]]}
    window[stage] = [answer(stage, lo, hi, detail=changed)]
    # compact decides the bounds of finalize, and so also the table names.
    sections = {} if target is not None else {"target": None}
    done = run(window, **sections)
    found = events(done)
    assert set(found) == {"binlake://orders/", "binlake://orders/shop/orders", "binlake://orders/shop/%C3%9Cber%2F1"}
    for extra in found.values():
        assert (extra["commit_ts"], extra["window"], extra["run_id"]) == (hi, f"{lo}-{hi}", done.run_id)


def test_unfinished_window_updates_no_asset(run: Runner) -> None:
    assert events(run({"plan": [BLOCKED]})) == {}
    already = run({**good_window(), "finalize": [answer("finalize", LO, HI, "already")]})
    assert events(already) == {}


def test_note_shows_the_window_in_both_forms(good_run: Run) -> None:
    assert good_run.note in (
        f"window ({lo} = {when}, {LOWERED} = 2026-11-20T00:00:00.000Z]: {stage} 3 rows"
        for lo, when in ((LO, "2026-11-20T00:00:00.000Z"), ("470583292723100001", "2026-11-19T23:59:59.999Z"))
        for stage in ("finalize", "mirror")
    )


def test_note_of_a_failed_run_shows_the_failure_only(
    run: Runner, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = failure("Transient", "TargetUnavailable", "nothing listens at the target")
    own = (
        'retries = 0\nwait-s = 0\n[airflow.on-failure]\nnotifier = "support.notified.by_call"\nkwargs = {channel = "c"}'
    )
    monkeypatch.setenv("BINLAKE_TEST_TOLD", str(tmp_path / "told"))
    windows = WindowLog(LakePaths.of(load_replication(write_replication(folder, "orders"), secrets=False)))
    windows.record(WindowEvent("start", 0, 0, "done"))
    done = run({**good_window(), "finalize": [dead]}, airflow=own)
    assert (done.states["mirror"], done.states["finalize"]) == ("success", "failed")
    assert done.note == "finalize failed: nothing listens at the target"
    # An event was recorded, although the scripted job recorded none.
    (event,) = windows.read_last_events(("failure",), 5)
    assert (event["run_id"], Failure.of(event).stage, Failure.of(event).kind) == (done.run_id, "finalize", "Transient")
    # The notifier receives the text.
    told = notified.read_messages()[0]["binlake"]
    assert (told["what"], told["errors"][0]["error"]) == ("failure", "TargetUnavailable")
    assert "finalize failed: nothing listens at the target\nWhat to do: " in told["text"]


# The fused layout runs one task instead of eight.
_LAG = """wait-s = 0
layout = "fused"
[airflow.on-lag]
seconds = 60
notifier = "{}"
kwargs = {{channel = "night"{}}}"""


def good_window_by_a_slow_pd(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A window that is 70 s old by this machine's clock, and 59 s by PD's, which plan has measured."""
    now_s = tso.extract_physical(int(LO)) / 1000 + 70
    monkeypatch.setattr(metrics, "time", SimpleNamespace(time=lambda: now_s))
    return {**good_window(), "plan": [answer("plan", LO, HI, "ready", detail={"skew_ms": -11_000})]}


def test_lag_is_reported_once_to_the_configured_notifier(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # U-02 U-25
    monkeypatch.setenv("BINLAKE_TEST_TOLD", str(tmp_path / "told"))
    monkeypatch.setenv("BINLAKE_TEST_TOKEN", "s3cret")
    own = _LAG.format("support.notified.by_call", ', token = "env:BINLAKE_TEST_TOKEN"')
    window = good_window_by_a_slow_pd(monkeypatch)
    run(as_one_task(window), airflow=own)
    assert notified.read_messages() == []
    window["plan"][0]["results"][0]["detail"] = {"skew_ms": -9_000}
    done = run(window, airflow=own.replace("fused", "stages"))
    told = notified.read_messages()
    assert [(one["channel"], one["token"], one["run_id"]) for one in told] == [("night", "s3cret", done.run_id)] * 2
    assert [one["binlake"]["what"] for one in told] == ["landing", "sql"]
    run(as_one_task(good_window()), airflow=own)
    assert len(notified.read_messages()) == 2
    # A notifier class, notified again after the repeat time; a missing class does not fail the window.
    own = _LAG.replace("seconds = 60", "seconds = 60\nrepeat-s = 1").format("support.notified.ByNotifier", "")
    run(as_one_task({"plan": [BLOCKED]}), airflow=own)
    assert len(notified.read_messages()) == 3
    assert run(as_one_task(good_window()), airflow=own.replace("ByNotifier", "Nobody")).state == "success"


def test_silence_is_reported_although_commit_time_advances(
    run: Runner, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # U-25
    monkeypatch.setenv("BINLAKE_TEST_TOLD", str(tmp_path / "told"))
    own = _LAG.replace("on-lag", "on-silence").format("support.notified.by_call", "")
    last = int(LOWERED) - (59_999 << 18)
    empty = empty_window()
    first = run(as_one_task(empty), airflow=own)
    # Nothing has been observed yet.
    assert (first.state, notified.read_messages()) == ("success", [])
    log = WindowLog(LakePaths.of(load_replication(folder / "orders.toml", secrets=False)))
    log.record(WindowEvent("land", 1, 2, "done", 0))
    log.record(WindowEvent("land", 2, last, "done", 5))
    run(as_one_task(empty), airflow=own)
    assert notified.read_messages() == []
    log.record(WindowEvent("land", last, int(LO), "done", 0))
    long = {**empty, "land": [answer("land", LO, str(int(LOWERED) + (1 << 18)), rows=0)]}
    done = run(as_one_task(long), airflow=own)
    (told,) = notified.read_messages()
    assert (told["channel"], told["run_id"]) == ("night", done.run_id)
    said = {name: told["binlake"][name] for name in ("replication", "what", "since", "silent_seconds")}
    assert said == {"replication": "orders", "what": "silence", "since": str(last), "silent_seconds": 60.0}
    assert "orders: no transaction for 60 s of commit time, since " in told["binlake"]["text"]
    # Neither before the repeat time, nor when something landed.
    run(as_one_task(long), airflow=own)
    run(
        as_one_task({**long, "land": [answer("land", LO, HI)]}),
        airflow=own.replace("seconds = 60", "seconds = 60\nrepeat-s = 1"),
    )
    assert len(notified.read_messages()) == 1


def test_empty_window_ends_after_landing_unless_its_end_was_requested(run: Runner) -> None:
    quiet = empty_window()
    done = run(quiet)
    assert done.state == "success"
    assert [call["stage"] for call in done.calls] == ["plan", "land"]
    assert {done.states[name] for name in ("merge", "compact", "convert", "finalize", "mirror")} == {"skipped"}
    assert done.note == f"window ({LO} = 2026-11-20T00:00:00.000Z, {LOWERED} = 2026-11-20T00:00:00.000Z]: land 0 rows"
    asked = run(quiet, {"stop_ts": LOWERED})
    assert (asked.state, asked.states["finalize"]) == ("success", "success")
