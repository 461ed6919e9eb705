"""A window on a Spark cluster: separate executor processes share its work; the driver alone gives the same result."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyspark
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from support.live import LiveSource
from support.mariadb import MariaDb
from support.sparkcluster import count_tasks
from support.workload import Workload, integer, text
from test_e2e_window import Make, expected, lake_rows, set_up, some_changes, tables_of, toml

from binlake.common.installation import SHORT_LIVED
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.runner import run_window
from binlake.spark_jobs.job.stagerun import run_stage
from binlake.spark_jobs.land.pulling import pull_window
from binlake.spark_jobs.land.pump_source import PumpPull

pytestmark = [pytest.mark.spark, pytest.mark.mariadb, pytest.mark.e2e]
ROOT = Path(__file__).resolve().parents[2]
WIDE = 800
BYTES = 12_000_000
RUN_S = 1500


def many_bytes(workload: Workload) -> None:
    """`BYTES` of incompressible data in 400 transactions."""
    create_wide(workload)
    fill_wide(workload)


def create_wide(workload: Workload) -> None:
    workload.create_table("d", "wide", [integer("id"), text("what", 15_000)], ["id"])


def fill_wide(workload: Workload, rows: int = WIDE) -> None:
    draw = random.Random(4)
    for number in range(0, rows, 2):
        txn = workload.begin()
        txn.insert("d", "wide", id=number, what=draw.randbytes(7_500).hex())
        txn.insert("d", "wide", id=number + 1, what=draw.randbytes(7_500).hex()).commit()


@pytest.mark.soak
def test_executors_share_one_window_and_the_driver_alone_gets_the_same_result(
    source: LiveSource, tmp_path: Path
) -> None:
    set_up(source.workload)
    some_changes(source.workload, 3)
    many_bytes(source.workload)
    source.settle()
    by_workers, by_driver = (
        StageContext(
            source.replication(mirror={"enabled": False}, window={"driver-bytes": size, "max-bytes": 0}),
            "test",
            no_session,
        )
        for size in (0, 64 << 20)
    )
    ran = on_two_executors(by_workers, tmp_path)
    # Each of the two executor processes pulled a part of the window, and neither is the driver. What they pulled in a
    # range, which may be nearly everything, is decoded by one task.
    assert len(ran["PullTask"]) >= 2, ran
    assert set(ran) == {"PullTask", "MergeTask"}
    assert "driver" not in {executor for tasks in ran.values() for executor in tasks}
    ((lo, hi),) = by_workers.windows.list_landed()
    landed = by_workers.windows.read_manifest(lo, hi)
    assert landed is not None
    assert landed.bytes > BYTES

    # The driver's pull gives the same rows: its digest equals the sealed one, otherwise land would refuse it.
    pumps = tuple((pump.node_id, pump.host) for pump in source.registry.list_pumps())
    pulled = pull_window(by_driver, PumpPull(pumps, source.driver.cluster_id, lo, hi, 5), 0)
    assert (pulled.hi, pulled.sum_stored().landed.digest) == (hi, landed.digest)
    pulled.discard()
    assert run_stage("land", by_driver, Bounds(lo, hi)).state == "already"
    before = lake_rows(by_workers, "mutation")
    files = DeltaTable(by_workers.paths.locate_table("mutation")).file_uris()
    assert run_stage("merge", by_driver, Bounds(lo, hi)).rows == len(before)
    assert not set(files) & set(DeltaTable(by_workers.paths.locate_table("mutation")).file_uris())
    assert lake_rows(by_workers, "mutation") == before


def no_session() -> SparkSession:
    """Forbids a session: the driver alone needs none."""
    raise AssertionError("a Spark session was requested")


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_sinks_pass_on_executors_as_in_the_driver(
    source: LiveSource, context: Make, target: dict[str, Any], mariadb: MariaDb, tmp_path: Path
) -> None:
    set_up(source.workload)
    some_changes(source.workload, 3)
    many_bytes(source.workload)
    source.settle()
    ctx = context(target=target, mirror={"enabled": True}, window={"driver-bytes": 0, "max-bytes": 0})
    ran = on_two_executors(ctx, tmp_path)
    assert {"PullTask", "MergeTask", "WriteAndRender"} <= set(ran)
    assert "driver" not in {executor for tasks in ran.values() for executor in tasks}
    assert tables_of(source.workload, mariadb) == expected(source.workload)
    mirrored = DeltaTable(ctx.paths.locate_mirror("d", "wide")).to_pyarrow_table(columns=["id"])
    assert sorted(mirrored["id"].to_pylist()) == list(range(WIDE))

    mariadb.wipe()
    ((lo, hi),) = ctx.windows.list_landed()
    place = {"path": f"{ctx.replication.lake.path} of the driver"}
    alone = context(hi, target=target, window={"driver-bytes": 64 << 20, "max-bytes": 0}, lake=place)
    run_window(alone)
    assert alone.windows.read_manifest(lo, hi) == ctx.windows.read_manifest(lo, hi)
    applied = [one.windows.read_apply_manifests(lo, hi)[-1] for one in (ctx, alone)]
    assert (applied[0].change, applied[0].statement) == (applied[1].change, applied[1].statement)
    for table in ("binlog", "mutation", "ddl", "change"):
        assert lake_rows(alone, table) == lake_rows(ctx, table), table
    assert tables_of(source.workload, mariadb) == expected(source.workload)


def on_two_executors(ctx: StageContext, folder: Path, *code: str) -> dict[str, Counter[str]]:
    """Run a window on a cluster; return how many tasks of each Python function each executor has done.

    `code`: more folders from which its Python processes import.
    """
    config, home = folder / "live.toml", spark_home(folder)
    config.write_text(toml(ctx.replication.model_dump(mode="json", by_alias=True, exclude_none=True)))
    own = {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_DIRS": str(folder / "scratch"),
        "PYTHONPATH": os.pathsep.join((*code, str(ROOT))),
    }
    done = subprocess.run(
        [sys.executable, "-m", "binlake.spark_jobs.commands.main", "window", "--replication", str(config),
         "--master", "local-cluster[2,1,1024]"],
        cwd=folder, env={**os.environ, **own}, capture_output=True, text=True, timeout=RUN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    (log,) = (home / "events").iterdir()
    with log.open() as lines:
        return count_tasks(map(json.loads, lines))


def spark_home(folder: Path) -> Path:
    """The installed Spark, linked into a home with the test's settings, to which a local cluster can write."""
    home = folder / "spark"
    (home / "conf").mkdir(parents=True)
    (home / "events").mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name not in ("conf", "work"):
            (home / entry.name).symlink_to(entry)
    settings = {
        "spark.driver.extraJavaOptions": SHORT_LIVED,
        "spark.executor.extraJavaOptions": SHORT_LIVED,
        # No task starts before both executors are registered.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (home / "events").as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }
    (home / "conf/spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    return home


KILLER = '''
"""Imported by every Python process of the cluster: kills executors, whose last tasks were done but not reported."""
import importlib.abc, os, pickle, signal, sys

def arm(module):
    run = module._Work._run

    def run_and_die(work, number):
        result = run(work, number)
        if work.__name__ == "PullTask" and not any(one.stored.parts for one in pickle.loads(result)):
            return result
        try:
            os.close(os.open(os.environ["KILLED"] + "/" + work.__name__, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return result
        # The worker's parent is the daemon that forked it, and its parent the executor.
        with open(f"/proc/{os.getppid()}/stat") as file:
            os.kill(int(file.read().rpartition(")")[2].split()[1]), signal.SIGKILL)
        return result

    module._Work._run = run_and_die

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "binlake.spark_jobs.engine.spark":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module
        def load(module):
            execute(module)
            arm(module)
        spec.loader.exec_module = load
        return spec

if "KILLED" in os.environ:
    import importlib.util
    sys.meta_path.insert(0, Finder())
'''


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_executors_killed_after_their_work_leave_nothing_behind_that_counts(
    source: LiveSource,
    context: Make,
    target: dict[str, Any],
    mariadb: MariaDb,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # 34, R-03: an executor dies in each stage
    set_up(source.workload)
    some_changes(source.workload, 3)
    create_wide(source.workload)
    source.settle()
    first = context(target=target, mirror={"enabled": True}, window={"driver-bytes": 64 << 20})
    run_window(first)
    # More bytes than one task takes.
    fill_wide(source.workload, 2 * WIDE)
    some_changes(source.workload, 5)
    source.settle()
    killed, code = tmp_path / "killed", tmp_path / "code"
    killed.mkdir()
    code.mkdir()
    (code / "sitecustomize.py").write_text(KILLER)
    monkeypatch.setenv("KILLED", str(killed))
    ctx = context(target=target, mirror={"enabled": True}, window={"driver-bytes": 0, "max-bytes": 0})
    ran = on_two_executors(ctx, tmp_path, str(code))
    # ReduceRows is left out if one range had all rows; merge and convert needed no tasks of their own.
    assert {"PullTask", "WriteAndRender"} <= set(ran) <= {"PullTask", "ReduceRows", "WriteAndRender"}
    assert {path.name for path in killed.iterdir()} == set(ran)
    assert len({executor for tasks in ran.values() for executor in tasks}) > 2, ran
    assert tables_of(source.workload, mariadb) == expected(source.workload)
    mirrored = DeltaTable(ctx.paths.locate_mirror("d", "wide")).to_pyarrow_table(columns=["id"])
    assert sorted(mirrored["id"].to_pylist()) == list(range(2 * WIDE))
    lo, hi = ctx.windows.list_landed()[-1]
    for table in ("binlog", "mutation", "change", "statement"):
        there = {str(path) for path in Path(ctx.paths.locate_table(table)).rglob("*.parquet")}
        # The killed attempts wrote files, too.
        assert len(there - set(map(unquote, DeltaTable(ctx.paths.locate_table(table)).file_uris()))) >= 1, table
    # The driver alone finds the sealed digest, and derives the same.
    before = lake_rows(ctx, "mutation")
    assert run_stage("land", first, Bounds(lo, hi)).state == "already"
    run_stage("merge", first, Bounds(lo, hi))
    assert lake_rows(first, "mutation") == before
