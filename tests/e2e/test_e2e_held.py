"""A replication that binlogctl paused or took offline plans no window, says why, and goes on when it is resumed."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import httpx
import pytest
from deltalake import DeltaTable
from support.live import LiveSource
from support.workload import integer

from binlake.cluster.control.commands import UpdateDrainerCommand
from binlake.cluster.control.drainercommands import OfflineDrainerCommand, PauseDrainerCommand, ResumeDrainerCommand
from binlake.cluster.source.hearing import Hearing
from binlake.errors import ConfigError
from binlake.health.orchestration import SchedulerFacts
from binlake.health.positions import build_status_view
from binlake.health.state import Surroundings, build_health_view
from binlake.health.surroundings import build_nodes_view
from binlake.lake.holdups import find_blocking_reason
from binlake.spark_jobs.bootstrap.loading import BootstrapLoader
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.runner import run_window
from binlake.spark_jobs.job.stagerun import run_stage
from binlake_airflow.pages.history import build_run_view

Make = Callable[..., StageContext]
NODE = "binlake-live"


def command(source: LiveSource, kind: type, *words: str) -> None:
    one, parser = kind(), argparse.ArgumentParser()
    one.add_arguments(parser)
    assert one.run(parser.parse_args(["-pd-urls", source.driver.url, "-node-id", NODE, *words])) == 0


def find_state(source: LiveSource) -> str:
    (entry,) = source.registry.list_drainers()
    return entry.state


def read_page(ctx: StageContext) -> tuple[str, str]:
    """The state on the replication's page, and its first problem."""
    now_ms, hearing = time.time_ns() // 1_000_000, Hearing(())
    around = Surroundings({}, {}, build_nodes_view(ctx.replication), hearing, SchedulerFacts(healthy=True))
    status = build_status_view(ctx.replication, ctx.windows, now_ms, hearing)
    view = build_health_view(ctx.replication, ctx.windows, status, around, now_ms)
    return view["state"], "".join(one["text"] for one in view["problems"][:1])


def land_rows(source: LiveSource, ctx: StageContext, number: int) -> list[str]:
    """Commit a row, run a window, and return the ids that have landed."""
    source.workload.begin().insert("d", "t", id=number).commit()
    source.settle()
    (*_, last) = run_window(ctx)
    assert last.stage == "merge", last
    found = DeltaTable(ctx.paths.locate_table("mutation")).to_pyarrow_table().to_pylist()
    return sorted(dict(row["after"])["id"] for row in found)


@pytest.fixture
def ctx(source: LiveSource, context: Make) -> StageContext:
    """A replication of which a window has landed."""
    source.workload.create_database("d")
    source.workload.create_table("d", "t", [integer("id")], ["id"])
    made = context()
    assert land_rows(source, made, 1) == ["1"]
    return made


def ask_as_binlogctl(source: LiveSource, action: str) -> None:
    """The request of the original `binlogctl -cmd pause-drainer`, which finds the address in the entry."""
    (entry,) = source.registry.list_drainers()
    answer = httpx.put(f"http://{entry.host}/state/{NODE}/{action}", timeout=60).json()
    assert (answer["code"], answer["message"]) == (200, f"apply action {action} success!")


@pytest.mark.parametrize("asked", ["binlogctl", "binlake"])
def test_paused_replication_plans_no_window_says_why_and_goes_on(
    asked: str, source: LiveSource, ctx: StageContext
) -> None:  # S0-74 R-05 R-26
    if asked == "binlogctl":
        ask_as_binlogctl(source, "pause")
    else:
        command(source, PauseDrainerCommand)
    source.workload.begin().insert("d", "t", id=2).commit()
    source.settle()
    for _ in range(2):
        (plan,) = run_window(replace(ctx, run_id="held"))
        assert (plan.state, plan.lo, plan.hi) == ("waiting", *[ctx.windows.find_landed_ts()] * 2)
        assert str(plan.detail["reason"]).startswith("paused by pause-drainer, pumps keep what has not landed")
        assert find_state(source) == "pausing"
    assert len(ctx.windows.list_landed()) == 1
    # A run that waits for a stop_ts looks for the same reason; the pages show it.
    assert find_blocking_reason(ctx.replication, plan.lo, plan.lo + 1) == plan.detail["reason"]
    assert read_page(ctx) == ("paused", plan.detail["reason"])
    (row, *_) = build_run_view(ctx.windows.read_events("held"), "held")["stages"]
    assert (row["state"], row["reason"]) == ("waiting", plan.detail["reason"])
    if asked == "binlogctl":
        # binlogctl has no command for it but this one, and pumps must not wait for an answer to their Notify.
        command(source, UpdateDrainerCommand, "-state", "online")
    else:
        command(source, ResumeDrainerCommand)
    assert land_rows(source, ctx, 3) == ["1", "2", "3"]
    assert find_state(source) == "paused"
    assert read_page(ctx) == ("running", "")


def test_window_that_was_planned_before_the_pause_is_finished(source: LiveSource, ctx: StageContext) -> None:
    source.workload.begin().insert("d", "t", id=2).commit()
    source.settle()
    plan = run_stage("plan", ctx)
    command(source, PauseDrainerCommand)
    landed = run_stage("land", ctx, Bounds(plan.lo, plan.hi))
    assert (landed.state, landed.rows) == ("done", 1)
    (entry,) = source.registry.list_drainers()
    assert (entry.state, entry.max_commit_ts) == ("pausing", landed.hi)
    assert run_stage("plan", ctx).state == "waiting"


def test_offline_replication_plans_no_window_and_a_lost_range_is_named_after_the_way_back(
    source: LiveSource, ctx: StageContext
) -> None:  # S0-74 R-05 R-26
    command(source, OfflineDrainerCommand)
    (plan,) = run_window(ctx)
    assert plan.state == "waiting"
    assert str(plan.detail["reason"]).startswith("taken offline by offline-drainer, pumps may delete")
    assert read_page(ctx) == ("paused", plan.detail["reason"])
    with pytest.raises(ConfigError, match="was taken offline"):
        BootstrapLoader(ctx, lambda _: None).load()
    # pump2 leaves without anyone having read its last binlogs.
    source.workload.begin().insert("d", "t", id=2).commit()
    source.settle()
    source.stop_pump("pump2", "offline")
    command(source, ResumeDrainerCommand)
    (plan,) = run_window(ctx)
    assert (plan.state, plan.blocked_by) == ("blocked", "pump2")
    assert "offline with unread binlogs" in str(plan.detail["reason"])
    source.start_pump("pump2")
    source.settle()
    assert land_rows(source, ctx, 3) == ["1", "2", "3"]
