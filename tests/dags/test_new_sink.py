"""A sink that only a test knows: one value and its registration are all that it takes (issue 35)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.replication_files import write_replication

from binlake import tso
from binlake.cli import run as run_cli
from binlake.cluster.source.hearing import HeardSource, Hearing
from binlake.config import Replication, load_replication
from binlake.health.positions import build_status_view
from binlake.health.problem import find_lag_problems
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.pipeline import BY_NAME, SINKS, Sink, Stage, list_locks, register
from binlake.rows.schema import SchemaState
from binlake.spark_jobs.job.context import Bounds, StageContext, StageResult
from binlake.spark_jobs.job.pieces import MergedWindow
from binlake.spark_jobs.job.runner import run_landed
from binlake.window.derived import Merged
from binlake_airflow.dags.factory import build_dags
from binlake_airflow.pages.panels import build_panels
from binlake_airflow.pages.timeline import read_timeline
from binlake_airflow.pages.words import name_place
from binlake_airflow.telemetry.metrics import emit

AT_MS = 1_795_000_000_000
LO, HI = tso.compose(AT_MS), tso.compose(AT_MS + 5000)


def count_rows(ctx: StageContext, bounds: Bounds, given: Any = None) -> StageResult:
    """The stage of the sink: it ends the window that it is given."""
    with ctx.hold_lock(BY_NAME["tally"].lock):
        ctx.windows.record(WindowEvent("tally", bounds.lo, bounds.hi, "done", 3, 0.1, ctx.run_id, "tally"))
    return StageResult("tally", "done", bounds.lo, bounds.hi, 3, detail={"given": type(given).__name__})


@pytest.fixture(autouse=True)
def _tally(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    stage = Stage("tally", "count rows", ("merge",), "tally", "land", "tally", reads=("mutation",), needs_spark=False)
    sink = Sink("tally", "tallies", "tally", (stage,), lambda replication: replication.name == "orders")
    module = ModuleType("binlake.spark_jobs.stages.tally")
    module.__dict__["run"] = count_rows
    monkeypatch.setitem(sys.modules, module.__name__, module)
    register(sink)
    yield
    del SINKS[sink.name], BY_NAME[stage.name]


@pytest.fixture
def replication(folder: Path) -> Replication:
    """Its only sink is the new one; the window (LO, HI] has landed and passed all stages."""
    path = write_replication(
        folder, "orders", lake=f'path = "{folder / "lake"}"', target=None, mirror="enabled = false"
    )
    return load_replication(path, secrets=False)


def run_window(replication: Replication, monkeypatch: pytest.MonkeyPatch) -> list[StageResult]:
    """Run the window through merge, which is replaced, and the sinks."""
    ctx = StageContext(replication, "run", lambda: pytest.fail("no Spark is needed"))
    ctx.windows.record(WindowEvent("land", LO, HI, "done", 3, 0.1, "run"))
    merged = MergedWindow(Bounds(LO, HI), Merged(LO, HI, True, ()), (), (SchemaState(), SchemaState()))
    done = StageResult("merge", "done", LO, HI, derived=merged)
    monkeypatch.setattr("binlake.spark_jobs.stages.merge.run", lambda *_: done)
    return run_landed(ctx, Bounds(LO, HI))


def test_new_sink_has_tasks_and_locks(folder: Path, replication: Replication) -> None:
    dag = build_dags(folder / "orders.toml")["orders"]
    assert dag.get_task("tally").upstream_task_ids == {"merge"}
    assert dag.task_group.children.keys() == {"lake", "tallies"}
    assert list_locks(replication.list_stages()) == ("landing", "merge", "tally")
    other = replication.model_copy(update={"name": "other"})
    assert "tally" not in [stage.name for stage in other.list_stages()]


def test_new_sink_runs_with_what_merge_derived_and_its_position_is_shown(
    replication: Replication, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, result = run_window(replication, monkeypatch)
    assert (result.stage, result.hi, result.detail["given"]) == ("tally", HI, "MergedWindow")
    log, now_ms = WindowLog(LakePaths.of(replication)), AT_MS + 9000
    status = build_status_view(
        replication, log, now_ms, Hearing((HeardSource("s", "feeder", "reading", True, lag_s=0.0),))
    )
    assert status["sinks"]["tally"]["commit_ts"] == str(HI)
    (late,) = find_lag_problems(status, 3)
    assert "the tallies (" in late.text
    timeline = read_timeline(log, now_ms)
    assert [lag["place"] for lag in timeline["lags"]] == ["lake", "tallies"]
    legends = [name for panel in build_panels(timeline) for name, _ in panel.legend]
    assert "tallies" in legends
    assert name_place("tally") == "Tallies"


def test_new_sink_has_a_column_and_gauges(
    replication: Replication, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_window(replication, monkeypatch)
    run_cli(["status", "orders"])
    (titles,) = [line for line in capsys.readouterr().out.splitlines() if "REPLICATION" in line]
    assert "TALLIES" in titles
    told: list[str] = []
    monkeypatch.setattr("airflow.sdk.observability.stats.gauge", lambda name, *_, **__: told.append(name))
    emit("orders", {"stage": "tally", "state": "done", "lo": str(LO), "hi": str(HI), "rows": 3, "seconds": 0.1})
    assert told == ["binlake.orders.tally_lag_seconds", "binlake.orders.tally_timestamp_seconds"]
