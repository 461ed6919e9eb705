"""The stages of a feed that fails, is paused, changed, ended or removed, and how it continues."""

from __future__ import annotations

import pytest
from fed import FEED, Fed, Make, windows
from history import shop
from support.workload import Workload, integer

from binlake.errors import ConfigError, IncompleteWindow, LostRange
from binlake.feed.registry import SchemaRefused
from binlake.feed.state import read_progress, read_state, record_pause, record_removal, record_resume
from binlake.lake import opentable
from binlake.spark_jobs.job.context import Bounds
from binlake.spark_jobs.job.runner import run_sink
from binlake.spark_jobs.job.stagerun import run_stage

STAGES = ("encode", "publish")


def ids(fed: Fed, table: str = "item") -> list[int]:
    return sorted(fed.decode(read.key)["id"] for read in fed.read(table))


def states(fed: Fed, bounds: Bounds) -> list[str]:
    return [result.state for result in run_sink(fed.ctx, STAGES, bounds, feed=FEED)]


# S2-38, S2-39
def test_refused_schema_is_state_error_until_resumed(make: Make) -> None:
    workload = Workload()
    workload.create_database("shop")
    workload.create_table("shop", "item", [integer("id")], ["id"])
    workload.begin().insert("shop", "item", id=1).commit()
    before = workload.clock()
    workload.add_column("shop", "item", integer("z", not_null=True))
    ddl = workload.logged[-1].commit_ts
    workload.begin().insert("shop", "item", id=2, z=0).commit()
    fed = make(workload)
    first = fed.land(0, before)
    assert states(fed, first) == ["done", "done"]
    second = fed.land(before, workload.clock())
    with pytest.raises(SchemaRefused):
        run_sink(fed.ctx, STAGES, second, feed=FEED)
    state = read_state(fed.ctx.windows, FEED)
    assert state.state == "error"
    assert state.error is not None
    assert state.error.where["table"] == "shop.item"
    assert state.error.where["subject"].endswith("item-value")
    assert state.error.where["commit_ts"] == str(ddl)
    assert read_progress(fed.ctx.windows, FEED).checkpoint == before
    skipped = run_stage("encode", fed.ctx, second, feed=FEED)
    assert (skipped.state, "item-value" in skipped.detail["reason"]) == ("skipped", True)
    assert ids(fed) == [1]
    fed.registry.set_compatibility("NONE")
    assert states(fed, second) == ["skipped"]
    record_resume(fed.ctx.windows, FEED)
    assert states(fed, second) == ["already", "done"]
    assert ids(fed) == [1, 2]
    assert read_progress(fed.ctx.windows, FEED).lag_s == 0


def test_transient_error_changes_no_state(make: Make) -> None:
    history = shop()
    fed = make(history.workload, rules=["shop.item"])
    bounds = fed.land(0, history.cuts[0])
    with pytest.raises(IncompleteWindow):
        run_stage("publish", fed.ctx, bounds, feed=FEED)
    assert read_state(fed.ctx.windows, FEED).state == "normal"


def test_changes_of_a_paused_feed_are_sent_after_resuming(make: Make) -> None:
    history = shop()
    fed = make(history.workload, rules=["shop.item"])
    first, *others = (fed.land(one.lo, one.hi) for one in windows(history))
    states(fed, first)
    record_pause(fed.ctx.windows, FEED, reason="consumers upgrade")
    assert {tuple(states(fed, bounds)) for bounds in others} == {("skipped",)}
    assert read_progress(fed.ctx.windows, FEED).checkpoint == first.hi
    record_resume(fed.ctx.windows, FEED)
    assert states(fed, others[-1]) == ["done", "done"]
    assert read_progress(fed.ctx.windows, FEED).checkpoint == others[-1].hi
    wanted = {int(row["id"] or 0) for row in history.workload.rows["shop", "item"]}
    assert {row["id"] for row in fed.compacted("item")} == wanted


def test_feed_starts_after_start_ts_and_ends_at_its_target(make: Make) -> None:
    workload = Workload()
    workload.create_database("shop")
    workload.create_table("shop", "item", [integer("id")], ["id"])
    moments = []
    for number in range(5):
        workload.begin().insert("shop", "item", id=number).commit()
        moments.append(workload.logged[-1].commit_ts)
    hi = workload.clock()
    fed = make(workload, **{"start-ts": str(moments[0]), "target-ts": str(moments[3])})
    early, middle = fed.land(0, moments[0]), fed.land(moments[0], moments[2])
    assert states(fed, early) == ["already", "already"]
    assert states(fed, middle) == ["done", "done"]
    assert ids(fed) == [1, 2]
    assert states(fed, fed.land(moments[2], hi)) == ["done", "done", "skipped"]
    assert ids(fed) == [1, 2, 3]
    assert read_state(fed.ctx.windows, FEED).state == "finished"
    assert states(fed, Bounds(hi - 1, hi)) == ["skipped"]


def test_start_below_the_lake_is_state_error_with_the_earliest_start(make: Make) -> None:
    history = shop()
    lo = history.cuts[0]
    fed = make(history.workload, rules=["shop.item"], **{"start-ts": str(lo - 1)})
    bounds = fed.land(lo, history.cuts[1])
    with pytest.raises(LostRange, match=f"earliest possible start-ts is {lo}"):
        run_stage("encode", fed.ctx, bounds, feed=FEED)
    assert read_state(fed.ctx.windows, FEED).state == "error"


# S2-15, R-31
def test_waiting_windows_are_encoded_again_after_a_change_of_the_section(make: Make) -> None:
    history = shop()
    fed = make(history.workload, rules=["shop.item"])
    bounds = fed.land(0, history.cuts[0])
    run_stage("encode", fed.ctx, bounds, feed=FEED)
    changed = make(history.workload, rules=["shop.item"], dispatchers=[
        {"matcher": ["*.*"], "topic": f"{fed.prefix}_again.{{schema}}.{{table}}"}])  # fmt: skip
    with pytest.raises(IncompleteWindow, match="changed after"):
        run_stage("publish", changed.ctx, bounds, feed=FEED)
    assert states(changed, bounds) == ["already", "done"]
    assert not fed.read("item")
    changed.prefix += "_again"
    assert ids(changed)
    keyless = make(history.workload)
    with pytest.raises(ConfigError, match=r"shop\.log"):
        run_sink(keyless.ctx, STAGES, keyless.land(history.cuts[0], history.cuts[1]), feed=FEED)


def test_removed_feed_leaves_nothing_to_the_next_one_with_its_name(make: Make) -> None:
    history = shop()
    fed = make(history.workload, rules=["shop.item"])
    bounds = fed.land(0, history.cuts[0])
    states(fed, bounds)
    sent = fed.read("item")
    record_removal(fed.ctx.windows, FEED)
    assert states(fed, bounds) == ["done", "done"]
    assert len(fed.read("item")) == 2 * len(sent)
    assert read_state(fed.ctx.windows, FEED).life == 1


def test_feed_paused_between_its_stages_publishes_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = Workload()
    workload.create_database("shop")
    workload.create_table("shop", "item", [integer("id")], ["id"])
    workload.begin().insert("shop", "item", id=1).commit()
    fed = make(workload)
    bounds, chain = fed.land(0, workload.clock()), fed.ctx.begin_chain()
    assert run_stage("encode", chain, bounds, feed=FEED).state == "done"
    # Another process has its own tables.
    monkeypatch.setattr(opentable, "_tables", {})
    record_pause(fed.ctx.windows, FEED)
    assert run_stage("publish", chain, bounds, feed=FEED).state == "skipped"
    assert ids(fed) == []
    record_resume(fed.ctx.windows, FEED)
    assert run_stage("publish", chain, bounds, feed=FEED).state == "done"
    assert ids(fed) == [1]
