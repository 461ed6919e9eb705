"""A failure is recorded in the lake, whoever ran the stage; and recording it never hides it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from binlake.config import Replication
from binlake.errors import LeaseHeld, TargetUnavailable
from binlake.lake.failures import FAILURE, Failure, read_failures, read_last_failures, record_failure
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.spark_jobs.job import stagerun
from binlake.spark_jobs.job.context import Bounds, StageContext


@pytest.fixture
def ctx(tmp_path: Path) -> StageContext:
    replication = Replication.model_validate({"name": "orders", "lake": {"path": str(tmp_path / "lake")}})
    made = StageContext(replication, "run 1", lambda: pytest.fail("Spark must not be needed"))
    made.windows.record(WindowEvent("start", 0, 0, "done"))
    return made


def _fails(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(stagerun.importlib, "import_module", lambda _name: SimpleNamespace(run=fail))


def test_failed_stage_records_an_event_with_its_text_and_run(
    ctx: StageContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    #
    _fails(monkeypatch, TargetUnavailable("nobody answers", hint="start it", where={"target": "h:1"}))
    with pytest.raises(TargetUnavailable):
        stagerun.run_stage("finalize", ctx, Bounds(10, 20))
    (event,) = ctx.windows.read_last_events((FAILURE,), 2)
    assert (event["stage"], event["state"], event["lo"], event["hi"]) == (FAILURE, "failed", 10, 20)
    (told,) = read_failures(ctx.windows, "run 1")
    assert str(told) == "finalize failed: TargetUnavailable: nobody answers Hint: start it"
    assert (told.kind, read_failures(ctx.windows, "run 2")) == ("Transient", [])
    assert read_failures(ctx.windows, "run 1", since_ms=told.at_ms + 1) == []


def test_foreign_exception_is_recorded_by_its_first_line(ctx: StageContext, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx.windows.record(WindowEvent("land", 5, 9, "done"))
    _fails(monkeypatch, KeyError("a fault\nof the program"))
    with pytest.raises(KeyError):
        stagerun.run_stage("plan", ctx)
    (event,) = ctx.windows.read_last_events((FAILURE,), 1)
    told = Failure.of(event)
    assert (told.stage, told.kind, told.error, event["lo"], event["hi"]) == ("plan", "Fault", "KeyError", 9, 9)


def test_run_that_finds_another_at_work_has_not_failed(ctx: StageContext, monkeypatch: pytest.MonkeyPatch) -> None:
    _fails(monkeypatch, LeaseHeld("another one applies"))
    with pytest.raises(LeaseHeld):
        stagerun.run_stage("finalize", ctx, Bounds(10, 20))
    assert read_failures(ctx.windows, "run 1") == []


def test_failure_creates_no_lake_that_a_recovery_would_mistake_for_the_lost_one(tmp_path: Path) -> None:
    # S3-09
    windows = WindowLog(LakePaths(str(tmp_path / "lake")))
    record_failure(windows, "plan", KeyError("k"), run_id="r")
    assert not windows.exists()
    assert not (tmp_path / "lake").exists()


def test_failure_before_the_lake_exists_is_reported_by_its_run(tmp_path: Path) -> None:
    windows = WindowLog(LakePaths(str(tmp_path / "root" / "orders")))
    assert read_failures(windows, "r") == []
    record_failure(windows, "plan", TargetUnavailable("nobody answers", hint="start it"), run_id="other")
    record_failure(windows, "plan", KeyError("k"), run_id="r")
    (told,) = read_failures(windows, "r")
    assert (str(told), told.kind) == ("plan failed: KeyError: 'k'", "Fault")
    assert read_failures(windows, "r", since_ms=told.at_ms + 1) == []
    for number in range(60):
        record_failure(windows, "plan", KeyError(number), run_id="many")
    assert [one.text for one in read_last_failures(windows, 2)] == ["59", "58"]
    assert len(read_last_failures(windows, 100)) == 50
    assert [file.name for file in (tmp_path / "root").iterdir()] == ["orders.failures.jsonl"]
    windows.record(WindowEvent("start", 0, 0, "done"))
    assert read_last_failures(windows, 100) == []


def test_unwritable_lake_hides_no_failure(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("no folder")
    record_failure(WindowLog(LakePaths(str(tmp_path / "lake"))), "land", KeyError("k"), run_id="r")
    assert not (tmp_path / "lake").is_dir()


def test_failures_do_not_count_as_passages_of_a_window(ctx: StageContext) -> None:
    # A failure is neither a position, nor a landing, nor the end of a blocked time.
    record_failure(ctx.windows, "land", KeyError("k"), run_id="r", window=(1, 9))
    assert (ctx.windows.find_landed_ts(), ctx.windows.read_last_event(("plan", "land"))) == (None, None)
