"""What one INSERT costs in functions and opens, from plan to finalize and mirror, in a process that has run windows
before. `make bench-trace` prints the counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.live import LiveSource
from support.mariadb import MariaDb, rows
from support.workload import integer
from window_trace import trace_window

from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.job.runner import run_window

pytestmark = [pytest.mark.mariadb, pytest.mark.long]
MOST_FUNCTIONS = {False: 1220, True: 1280}
MOST_OPENS = {False: 21, True: 33}
"""By whether there are mirrors: some above what was counted, so that a change which adds some is seen."""


def _refuse_spark() -> Any:
    raise AssertionError("a window of one row needs no Spark")


@pytest.mark.parametrize("mirror", [False, True])
def test_one_insert_opens_each_table_a_few_times(mirror: bool, tmp_path: Path, empty_mariadb: MariaDb) -> None:
    server = empty_mariadb
    target = {"db-type": "mariadb", "host": server.host, "port": server.port, "user": server.user,
              "password": server.password}  # fmt: skip
    with LiveSource(tmp_path) as live:
        replication = live.replication(target=target, mirror={"enabled": mirror})
        live.workload.create_database("d")
        live.workload.create_table("d", "t", [integer("id"), integer("v")], ["id"])
        traces = []
        for number in range(3):
            live.workload.begin().insert("d", "t", id=number, v=1).commit()
            live.settle()
            with trace_window() as trace:
                run_window(StageContext(replication, "trace", _refuse_spark))
            traces.append(trace)
    last = traces[-1]
    assert rows(server, "SELECT id, v FROM d.t ORDER BY id") == [(0, 1), (1, 1), (2, 1)]
    print(f"one INSERT, {'with' if mirror else 'without'} mirrors: {last.describe()}")
    assert len(last.calls) <= MOST_FUNCTIONS[mirror], last.describe()
    assert last.opens.total() <= MOST_OPENS[mirror], last.describe()
