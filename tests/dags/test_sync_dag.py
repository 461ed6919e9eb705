"""Runs of the DAG: the bounds of each task, and what is skipped, failed or retried. The jobs are scripted."""

import itertools
from pathlib import Path

import pytest
from support.dag_runs import BEHIND, HI, LO, LOWERED, Run, Runner, answer, failure, good_window

from binlake_airflow.operators import spark

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


def test_each_stage_gets_its_bounds_from_the_right_stage(good_run: Run) -> None:
    assert good_run.state == "success"
    assert good_run.bounds() == {
        "plan": (None, None),
        "land": (LO, HI),
        "merge": (LO, LOWERED),
        "mirror": (LO, LOWERED),
        "compact": (LO, LOWERED),
        "convert": (BEHIND, LOWERED),
        "finalize": (BEHIND, LOWERED),
    }
    assert {call["options"]["--run-id"] for call in good_run.calls} == {good_run.run_id}


def test_timestamps_stay_exact_strings_in_xcom(good_run: Run) -> None:
    # above 2^53 a JSON number loses its last digits in a browser.
    assert good_run.xcom("land")["hi"] == LOWERED
    assert good_run.xcom("plan", "window") == f"{LO}-{HI}"
    for name in good_window():
        found = good_run.xcom(name)
        assert isinstance(found["lo"], str)
        assert isinstance(found["hi"], str)


def test_spark_stages_are_submitted_with_settings_needed_before_the_driver(run: Runner, tmp_path: Path) -> None:
    # plan and finalize start no JVM.
    done = run(good_window(), window="driver-bytes = 0")
    submitted = {call["stage"]: call["before"] for call in done.calls if call["before"]}
    assert set(submitted) == {"land", "merge", "compact", "convert", "mirror"}
    arguments = submitted["land"]
    pairs = dict(itertools.pairwise(arguments))
    assert pairs["--master"] == "local[1]"
    assert pairs["--jars"] == str(tmp_path / "jars" / "delta.jar")
    assert pairs["--name"] == "binlake-orders-land"
    assert Path(arguments[-1]).parts[-3:] == ("spark_jobs", "commands", "main.py")


def test_stages_run_as_plain_processes_until_one_needs_spark(good_run: Run) -> None:
    assert good_run.state == "success"
    assert [call["stage"] for call in good_run.calls if call["before"]] == []
    alone = {call["stage"] for call in good_run.calls if "--spark-later" in call["options"]}
    assert alone == {"land", "merge", "compact", "convert", "mirror"}


def test_each_connect_stage_has_its_own_session(run: Runner) -> None:
    done = run(good_window(), airflow='schedule = ""\nengine = "connect"\nspark-conn-id = "connect"')
    assert done.state == "success"
    remotes = {call["stage"]: call["options"].get("--remote") for call in done.calls}
    assert {name for name, remote in remotes.items() if remote is None} == {"plan", "finalize"}
    urls = [remote for remote in remotes.values() if remote]
    assert all(url.startswith("sc://h:1/;session_id=") for url in urls)
    assert len(set(urls)) == len(urls) == 5


def test_retry_ends_the_first_trys_work_and_reuses_its_session(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    monkeypatch.setattr(spark, "interrupt", lambda url, _log: ended.append(url))
    window = good_window()
    connect = 'schedule = ""\nengine = "connect"\nspark-conn-id = "connect"\nretries = 1\nretry-delay-s = 0\nwait-s = 0'
    # A window without rows ends after landing.
    done = run({**window, "land": [{"exit": 137}, answer("land", LO, LOWERED, rows=0)]}, airflow=connect)
    first, second = (call["options"]["--remote"] for call in done.calls if call["stage"] == "land")
    assert done.state == "success"
    assert first in ended
    assert second in ended


def test_blocked_plan_is_green_names_the_pump_and_skips_the_rest(run: Runner) -> None:
    # S0-56, R-35
    blocked = answer("plan", LO, LO, "blocked", blocked_by="pump-2", detail={"reason": f"pump-2 since {LO}"})
    done = run({"plan": [blocked]})
    assert done.state == "success"
    assert done.states.pop("plan") == "success"
    assert set(done.states.values()) == {"skipped"}
    assert done.xcom("plan", "blocked_by") == "pump-2"
    assert done.xcom("plan")["state"] == "blocked"
    assert [call["stage"] for call in done.calls] == ["plan"]


def test_plan_blocked_too_long_fails_the_run(run: Runner) -> None:
    done = run({"plan": [failure("Transient", "IncompleteWindow", "blocked for 900 s by pump-2")]})
    assert done.state == "failed"
    assert done.tries("plan") == 3


def test_failed_sql_sink_does_not_stop_the_mirror(run: Runner) -> None:
    # Invariant 12; and a Permanent error is not retried.
    done = run({**good_window(), "compact": [failure("Permanent", "SchemaError")]})
    assert done.state == "failed"
    assert (done.states["compact"], done.states["mirror"]) == ("failed", "success")
    assert (done.states["convert"], done.states["finalize"]) == ("upstream_failed", "upstream_failed")
    assert done.tries("compact") == 1


def test_failed_mirror_does_not_stop_the_sql_sink(run: Runner) -> None:
    done = run({**good_window(), "mirror": [failure("Permanent", "SchemaError")]})
    assert (done.states["mirror"], done.states["finalize"]) == ("failed", "success")


def test_transient_error_or_dead_job_is_retried(run: Runner) -> None:
    window, refused = good_window(), failure("Transient", "TargetUnavailable")
    done = run({**window, "finalize": [refused, *window["finalize"]], "land": [{"exit": 137}, *window["land"]]})
    assert done.state == "success"
    assert (done.tries("finalize"), done.tries("land"), done.tries("merge")) == (2, 2, 1)


def test_only_a_sink_with_nothing_to_do_is_skipped(run: Runner) -> None:
    done = run({**good_window(), "compact": [answer("compact", LO, LO, "skipped")]})
    assert done.state == "success"
    assert (done.states["convert"], done.states["finalize"]) == ("skipped", "skipped")
    assert done.states["mirror"] == "success"


def test_rows_are_validated_after_the_apply_and_no_window_waits_for_it(run: Runner) -> None:
    later = answer("validate", BEHIND, LOWERED, "postponed", detail={"reason": "the target is inside a window"})
    done = run({**good_window(), "validate": [later]}, validation='mode = "sample"')
    assert (done.state, done.states["validate"]) == ("success", "success")
    assert done.bounds()["validate"] == (BEHIND, LOWERED)


def test_requested_bounds_reach_the_plan_and_are_never_cut_silently(run: Runner) -> None:
    # C-04, R-35
    conf = {"start_ts": LO, "stop_ts": HI}
    waiting = answer("plan", LO, LOWERED, "waiting", detail={"reason": f"stop_ts {HI} is above the watermark"})
    missed = run({"plan": [waiting]}, conf)
    assert missed.state == "failed"
    assert missed.tries("plan") == 3
    landed = run({"plan": [answer("plan", HI, HI, "waiting", detail={"reason": "landed already"})]}, conf)
    asked = landed.calls[0]["options"]
    assert (landed.state, asked["--start-ts"], asked["--stop-ts"]) == ("success", LO, HI)


def test_fused_window_is_one_task_that_returns_all_results(run: Runner) -> None:
    window = good_window()
    results = [window[name][0]["results"][0] for name in ("plan", "land", "merge", "mirror")]
    done = run({"window": [{"ok": True, "results": results}]}, airflow='schedule = ""\nlayout = "fused"')
    assert done.states == {"window": "success", "recover": "skipped"}
    assert [one["stage"] for one in done.xcom("window")["results"]] == ["plan", "land", "merge", "mirror"]
    assert done.xcom("window", "window") == f"{LO}-{HI}"


def test_missing_connection_is_one_clear_error_at_once(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    # The provider alone would use YARN.
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    done = run(good_window())
    assert (done.state, done.states["land"]) == ("failed", "failed")
    assert [call["stage"] for call in done.calls] == ["plan"]
