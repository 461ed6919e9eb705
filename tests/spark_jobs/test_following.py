"""Several windows in one process: each is run and reported by itself, and the process ends in time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from binlake.errors import BinlakeError, LeaseHeld, Permanent, SourceUnavailable, Transient
from binlake.spark_jobs.commands import main
from binlake.spark_jobs.commands.main import WindowPace, run_windows
from binlake.spark_jobs.job.results import SparkNeeded, StageResult


def window(n: int, rows: int = 5) -> list[StageResult]:
    stages = ("plan", "ready", 0), ("land", "done", rows), ("finalize", "done", rows)
    return [StageResult(stage, state, n, n + 1, count) for stage, state, count in stages]


def stopped(state: str) -> list[StageResult]:
    return [StageResult("plan", state, 9, 9, detail={"reason": "why"})]


class World:
    """Windows one after the other, each of which takes `seconds`, on a clock of its own."""

    def __init__(self, windows: Sequence[list[StageResult] | BinlakeError], seconds: float = 2.0) -> None:
        self.windows, self.seconds = list(windows), seconds
        self.now = 100.0
        self.began: list[float] = []
        self.told: list[int] = []
        self.closed_after: int | None = None

    def run_one(self) -> list[StageResult]:
        self.began.append(round(self.now - 100.0, 1))
        self.now += self.seconds
        found = self.windows.pop(0)
        if isinstance(found, BinlakeError):
            raise found
        return found

    def wait(self, seconds: float) -> bool:
        assert seconds >= 0
        if self.closed_after == len(self.told):
            return True
        self.now += seconds
        return False

    def run(self, run_for_s: float = 60.0, every_s: float = 1.0) -> Sequence[StageResult]:
        return run_windows(
            self.run_one, lambda results: self.told.append(results[0].lo), WindowPace(run_for_s, every_s),
            wait=self.wait, clock=self.tick,
        )  # fmt: skip

    def tick(self) -> float:
        # The time goes on between two looks at a clock.
        self.now += 0.001
        return self.now


def test_windows_follow_each_other_until_one_has_nothing_new() -> None:
    world = World([window(0), window(1), window(2, rows=0), window(3)])
    assert world.run() == ()
    assert world.told == [0, 1, 2]
    assert world.began == [0.0, 2.0, 4.0]


def test_first_window_with_nothing_new_is_the_only_one() -> None:
    world = World([window(0, rows=0), window(1)])
    assert world.run() == ()
    assert world.told == [0]


@pytest.mark.parametrize(("run_for_s", "windows"), [(1.0, 1), (1.9, 1), (2.1, 2), (6.1, 4)])
def test_no_window_begins_after_the_time(run_for_s: float, windows: int) -> None:
    world = World([window(n) for n in range(9)])
    assert world.run(run_for_s) == ()
    assert world.told == list(range(windows))


def test_short_windows_begin_no_more_often_than_allowed() -> None:
    world = World([window(n) for n in range(9)], seconds=0.25)
    world.run(run_for_s=5.0, every_s=1.5)
    assert world.began == [0.0, 1.5, 3.0, 4.5]


def test_no_window_follows_when_the_caller_has_closed_the_input() -> None:
    world = World([window(n) for n in range(9)])
    world.closed_after = 2
    assert world.run() == ()
    assert world.told == [0, 1]


@pytest.mark.parametrize("error", [Transient("target gone"), Permanent("bad row")])
def test_error_of_a_later_window_is_raised_after_the_windows_before_it(error: BinlakeError) -> None:
    world = World([window(0), error, window(2)])
    with pytest.raises(type(error)):
        world.run()
    assert world.told == [0]


@pytest.mark.parametrize("error", [LeaseHeld("h"), SourceUnavailable("pd"), SparkNeeded()])
def test_what_the_next_run_handles_better_ends_the_windows_unless_it_is_the_first(error: BinlakeError) -> None:
    world = World([window(0), error])
    assert world.run() == ()
    assert world.told == [0]
    with pytest.raises(type(error)):
        World([error]).run()


@pytest.mark.parametrize("state", ["blocked", "waiting"])
def test_plan_that_stops_is_returned_if_it_is_the_first_and_ends_the_windows_otherwise(state: str) -> None:
    # the first one makes the task wait without a worker; a pause between windows is such a plan too.
    first = World([stopped(state)])
    assert [result.state for result in first.run()] == [state]
    assert first.told == []
    later = World([window(0), stopped(state)])
    assert later.run() == ()
    assert later.told == [0]


def test_feed_that_failed_is_not_tried_again_at_once() -> None:
    failed = StageResult("publish", "failed", 0, 1, detail={"feed": "f"})
    world = World([[*window(0), failed], window(1)])
    world.run()
    assert world.told == [0]


def run_main(monkeypatch: pytest.MonkeyPatch, place: Path, windows: Sequence[Any]) -> list[dict[str, Any]]:
    world = World(windows)
    monkeypatch.setattr(main, "execute", lambda *_: world.run_one())
    monkeypatch.setattr(main, "wait_for_caller", lambda _: False)
    main.run_job(["window", "--replication", "f", "--result", str(place), "--run-for", "60"])
    return [json.loads(line) for line in place.read_text().splitlines()]


def test_outcome_of_each_window_is_written_when_it_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = run_main(monkeypatch, tmp_path / "a", [window(0), window(1, rows=0)])
    assert [(one["ok"], one.get("more", False), len(one["results"])) for one in done] == [
        (True, True, 3), (True, True, 3), (True, False, 0),
    ]  # fmt: skip
    failed = run_main(monkeypatch, tmp_path / "b", [window(0), Permanent("bad row")])
    assert [one["ok"] for one in failed] == [True, False]
    blocked = run_main(monkeypatch, tmp_path / "c", [stopped("blocked")])
    assert [(one["results"][0]["state"], "more" in one) for one in blocked] == [("blocked", False)]


def test_wait_ends_at_once_when_the_caller_dies() -> None:
    code = f"from {main.__name__} import wait_for_caller; print(wait_for_caller(0), wait_for_caller(60))"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        # `communicate` closes the input; before, the first wait must have ended by its time.
        assert child.stdin is not None
        out, _ = child.communicate(timeout=50)
    finally:
        child.kill()
    assert out.split()[1] == "True"
