"""A window is one trace: its stages are spans, and their tasks are spans of the stage, in one process or in several."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from operator import mul
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.collector import Collector
from support.live import LiveSource
from test_e2e_window import set_up, some_changes, toml

from binlake.common.tracing import open_traces
from binlake.spark_jobs.commands.main import run_job
from binlake.spark_jobs.engine.spark import SparkEngine


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Path]:
    """A replication with mirrors and no target, whose source has some transactions."""
    with LiveSource(tmp_path, pumps=1) as source:
        set_up(source.workload)
        some_changes(source.workload, 1)
        source.settle()
        file = tmp_path / "live.toml"
        values = source.replication().model_dump(mode="json", by_alias=True, exclude_none=True)
        file.write_text(toml(values))
        yield file


def test_a_window_is_one_trace_of_stages_and_tasks(config: Path, collector: Collector) -> None:
    outcome = run_job(["window", "--replication", str(config), "--run-id", "run-1", "--without-spark"])
    assert outcome["ok"], outcome
    [window] = collector.find("window")
    assert len({span.trace for span in collector.spans}) == 1
    stages = {span.name: span for span in collector.spans if span.parent == window.id}
    assert set(stages) == {one["stage"] for one in outcome["results"]} == {"plan", "land", "merge", "mirror"}
    land = next(one for one in outcome["results"] if one["stage"] == "land")
    assert stages["land"].values == {
        "binlake.replication": "live", "binlake.run": "run-1", "binlake.state": "done", "binlake.rows": land["rows"],
        "binlake.window.lo": land["lo"], "binlake.window.hi": land["hi"],
    }  # fmt: skip
    assert (window.values["binlake.window.lo"], window.values["binlake.window.hi"]) == (land["lo"], land["hi"])
    names = {span.id: name for name, span in stages.items()}
    tasks = {(names[span.parent], span.name) for span in collector.spans if span.parent in names}
    assert ("land", "PullTask") in tasks
    assert "merge" in {stage for stage, _ in tasks}
    assert sum(span.seconds for span in stages.values()) > 0


def test_stages_in_processes_of_their_own_are_one_trace_by_their_run(config: Path, collector: Collector) -> None:
    common = ["--replication", str(config), "--run-id", "scheduled__1", "--without-spark"]
    [planned] = run_job(["plan", *common])["results"]
    assert abs(planned["detail"]["skew_ms"]) < 2_000  # PD is on this machine
    bounds = ["--lo", planned["lo"], "--hi", planned["hi"]]
    for stage in ("land", "merge"):
        assert run_job([stage, *common, *bounds])["ok"]
    spans = [span for span in collector.spans if not span.parent]
    assert [span.name for span in spans] == ["plan", "land", "merge"]
    assert len({span.trace for span in spans}) == 1


def test_a_failed_stage_says_so(config: Path, collector: Collector) -> None:
    outcome = run_job(["merge", "--replication", str(config), "--lo", "5", "--hi", "9", "--without-spark"])
    [span] = collector.spans
    assert (span.error, span.values["error.type"]) == (
        outcome["error"]["message"].split(" [")[0],
        outcome["error"]["class"],
    )


@pytest.mark.spark
def test_tasks_on_spark_are_spans_of_their_job(spark: SparkSession, collector: Collector) -> None:
    with open_traces() as root, root.begin("merge", {}) as stage:
        assert SparkEngine(spark, "r merge 3-9", stage).run(partial(mul, 2), [1, 2, 3]) == [2, 4, 6]
    [merge], [job] = collector.find("merge"), collector.find("job mul")
    tasks = collector.find("mul")
    assert (job.parent, {task.parent for task in tasks}) == (merge.id, {job.id})
    assert sorted(task.values["binlake.task"] for task in tasks) == [1, 2, 3]
    assert all(0 <= task.seconds <= job.seconds for task in tasks)
