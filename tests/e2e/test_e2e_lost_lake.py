"""A lost lake: a new one begins at the target's checkpoint, also for windows that had landed but not been applied."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.live import LiveSource
from support.mariadb import MariaDb, rows
from support.workload import integer

from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.runner import run_window
from binlake.spark_jobs.job.stagerun import run_stage

pytestmark = [pytest.mark.mariadb]


def _refuse_spark() -> Any:
    raise AssertionError("a window of one row needs no Spark")


def test_a_new_lake_continues_at_the_targets_checkpoint(tmp_path: Path, empty_mariadb: MariaDb) -> None:
    server = empty_mariadb
    target = {"db-type": "mariadb", "host": server.host, "port": server.port, "user": server.user,
              "password": server.password}  # fmt: skip
    with LiveSource(tmp_path) as live:
        ctx = StageContext(live.replication(target=target), "run", _refuse_spark)
        live.workload.create_database("d")
        live.workload.create_table("d", "t", [integer("id"), integer("v")], ["id"])
        live.workload.begin().insert("d", "t", id=1, v=1).commit()
        live.settle()
        applied = run_window(ctx)[0].hi
        live.workload.begin().insert("d", "t", id=2, v=1).commit()
        live.settle()
        planned = run_stage("plan", ctx)
        assert run_stage("land", ctx, Bounds(planned.lo, planned.hi)).rows == 1
        shutil.rmtree(ctx.paths.root)
        live.workload.begin().insert("d", "t", id=3, v=1).commit()
        live.settle()
        again = run_window(StageContext(ctx.replication, "again", _refuse_spark))
    assert again[0].lo == applied
    assert rows(server, "SELECT id FROM d.t ORDER BY id") == [(1,), (2,), (3,)]
