"""What one INSERT costs in functions and opens, from plan to finalize and mirror, in a process that has run windows
before. `make bench-trace` prints the counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scale_world import DB, open_world
from support.live import LiveSource
from support.mariadb import MariaDb, execute, rows
from support.workload import integer
from window_trace import trace_window

from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.job.runner import run_window

pytestmark = [pytest.mark.mariadb, pytest.mark.long]
MOST_FUNCTIONS = {False: 1290, True: 1375}
MOST_FILES = {False: 162, True: 171}
MOST_OPENS = {False: 21, True: 33}
"""By whether there are mirrors: some above what was counted, so that a change which adds some is seen. On a busy
machine a dozen functions more run, which wait or renew leases."""


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
    assert last.files <= MOST_FILES[mirror], last.describe()
    assert last.opens.total() <= MOST_OPENS[mirror], last.describe()


def test_a_window_costs_as_much_with_many_live_tables(tmp_path: Path, empty_mariadb: MariaDb) -> None:
    """A row, then a DDL, of one table among few and among many: as many calls of functions."""
    few, many = (_count_calls(tmp_path / str(tables), empty_mariadb, tables) for tables in (4, 600))
    print(f"calls for a row and for a DDL: {few} with 4 live tables, {many} with 600")
    assert all(own <= 1.1 * other for own, other in zip(many, few, strict=True)), (few, many)


def _count_calls(folder: Path, server: MariaDb, tables: int) -> tuple[int, int]:
    target = {"db-type": "mariadb", "host": server.host, "port": server.port, "user": server.user,
              "password": server.password, "checkpoint-schema": f"ck_{tables}"}  # fmt: skip
    with open_world(folder, server) as world:
        world.create_tables(tables)
        world.create_at_target("t0", "t1")
        replication = world.live.replication(target=target, **{"initial-commit-ts": str(world.started)})
        counts = []
        for number in range(4):
            world.insert("t0")
            if number == 3:
                world.live.workload.add_column(DB, "t1", integer(f"c{tables}"))
            world.live.settle()
            with trace_window() as trace:
                run_window(StageContext(replication, "trace", _refuse_spark))
            counts.append(trace.calls.total())
        execute(server, f"DROP DATABASE {DB}")
    return counts[2], counts[3]
