"""Where a feed begins is sealed with its first window: a run that dies before encode loses nothing of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.live import LiveSource
from support.workload import integer, text

from binlake.feed.state import find_begin, read_progress, read_state, record_removal
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.runner import run_window
from binlake.spark_jobs.job.stagerun import run_stage

FEED = "files"


def _run_to_the_end(ctx: StageContext, source: LiveSource) -> None:
    until = source.settle()
    while (ctx.windows.find_landed_ts() or 0) < until:
        run_window(ctx)


def _read_names(folder: Path) -> list[str]:
    texts = [file.read_text() for file in sorted(folder.rglob("*.csv"))]
    return sorted(line.split(",")[-1].strip('"') for one in texts for line in one.splitlines())


@pytest.mark.parametrize("last", ["land", pytest.param("merge", marks=pytest.mark.soak)])
def test_feed_sends_the_first_window_even_if_its_run_died_before_encode(
    source: LiveSource, context: Callable[..., StageContext], tmp_path: Path, last: str
) -> None:
    folder = tmp_path / "files"
    ctx = context(feed=[{"name": FEED, "sink-uri": f"file://{folder}?protocol=csv", "rules": ["d.t"]}])
    source.workload.create_database("d")
    source.workload.create_table("d", "t", [integer("id"), text("name")], ["id"])
    source.workload.begin().insert("d", "t", id=1, name="first").commit()
    source.settle()
    plan = run_stage("plan", ctx)
    landed = run_stage("land", ctx, Bounds(plan.lo, plan.hi))
    if last == "merge":
        run_stage("merge", ctx, Bounds(landed.lo, landed.hi))
    # Not a sign of health: the feed is a window behind, and says so.
    progress = read_progress(ctx.windows, FEED)
    assert (progress.checkpoint, progress.landed) == (plan.lo, landed.hi)
    assert progress.lag_s
    source.workload.begin().insert("d", "t", id=2, name="second").commit()
    _run_to_the_end(ctx, source)
    assert _read_names(folder) == ["first", "second"]
    # A later feed of that name begins with the first window that is sealed for it.
    record_removal(ctx.windows, FEED)
    end = ctx.windows.find_landed_ts()
    assert find_begin(ctx.windows, FEED, read_state(ctx.windows, FEED)) is None
    source.workload.begin().insert("d", "t", id=3, name="third").commit()
    source.settle()
    plan = run_stage("plan", ctx)
    run_stage("land", ctx, Bounds(plan.lo, plan.hi))
    assert find_begin(ctx.windows, FEED, read_state(ctx.windows, FEED)) == end
