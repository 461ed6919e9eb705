"""S4-03: one key of a shared target belongs to one source table at a time, across segments and windows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lakehouse import Lakehouse, Source
from pyspark.sql import SparkSession
from support.mariadb import MariaDb, execute, rows
from support.workload import Workload, integer, text

from binlake.common.redaction import redact_key
from binlake.errors import SchemaError
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.stagerun import run_stage
from binlake.spark_jobs.shared import sharedkeys
from binlake.spark_jobs.stages import compact, convert, finalize
from binlake.target.apply.batches import find_present_keys

pytestmark = [pytest.mark.spark, pytest.mark.mariadb]

ROUTES = [
    {"schema-pattern": "s?", "target-schema": "xs"},
    {"schema-pattern": "s?", "table-pattern": "t_*", "target-schema": "xs", "target-table": "t"},
]
Step = Callable[[Workload], None]


def first(w: Workload) -> None:
    """Rows 1 and 2 of s1.t_1, row 11 of s2.t_2."""
    for db, name in (("s1", "t_1"), ("s2", "t_2")):
        w.create_database(db)
        w.create_table(db, name, [integer("id"), text("name")], ["id"])
    w.begin().insert("s1", "t_1", id=1, name="a").insert("s1", "t_1", id=2, name="b").commit()
    w.begin().insert("s2", "t_2", id=11, name="c").commit()


def move_onto_the_other(w: Workload) -> None:
    w.begin().update("s2", "t_2", {"id": "11", "name": "c"}, id=2).commit()


def write_one_key_around_a_ddl(w: Workload) -> None:
    w.begin().insert("s1", "t_1", id=21, name="e").commit()
    w.create_table("s1", "between", [integer("id")], ["id"])
    w.begin().insert("s2", "t_2", id=21, name="f").commit()


def hand_over(w: Workload) -> None:
    w.begin().delete("s1", "t_1", id=1, name="a").commit()


def take_over(w: Workload) -> None:
    w.begin().insert("s2", "t_2", id=1, name="mine").commit()


def insert_31(w: Workload) -> None:
    w.begin().insert("s1", "t_1", id=31, name="g").commit()


class Shards:
    """The steps as one window each; the databases are dropped first. `more`: keys of the replication."""

    def __init__(
        self,
        spark: SparkSession,
        root: Path,
        server: MariaDb,
        *steps: Step,
        more: dict[str, Any] | None = None,
        **target: Any,
    ) -> None:
        for name in ("xs", "s1", "s2", "tidb_binlog"):
            execute(server, f"DROP DATABASE IF EXISTS {name}")
        w, cuts = Workload(), [0]
        for step in steps:
            step(w)
            cuts.append(w.clock())
        address = {"host": "127.0.0.1", "port": server.port, "user": server.user, "password": server.password}
        config = {"routes": ROUTES, "target": {"db-type": "mariadb", **address, **target}, **(more or {})}
        self.lakehouse = Lakehouse(spark, root, Source.of_workload(w), config)
        self.ctx: StageContext = self.lakehouse.context()
        self.windows = [Bounds(lo, hi) for lo, hi in itertools.pairwise(cuts)]

    def compact(self, number: int) -> dict[str, Any]:
        """Land window `number` and compact it; return the errors."""
        bounds = self.windows[number]
        self.lakehouse.land(bounds.lo, bounds.hi)
        return dict(run_stage("compact", self.ctx, bounds).detail)

    def apply(self, number: int) -> None:
        bounds = self.windows[number]
        self.compact(number)
        convert.run(self.ctx, bounds)
        finalize.run(self.ctx, bounds)


def test_key_belongs_to_one_table_across_windows(spark: SparkSession, mariadb: MariaDb, tmp_path: Path) -> None:
    shards = Shards(spark, tmp_path, mariadb, first, hand_over, take_over, insert_31, move_onto_the_other)
    # A key that its table gave up is free.
    for number in range(3):
        shards.apply(number)
    assert rows(mariadb, "SELECT * FROM xs.t ORDER BY id") == [(1, "mine"), (2, "b"), (11, "c")]
    # A window that the target has passed is derived again without asking the target, which has its rows.
    assert compact.run(shards.ctx, shards.windows[2]).state == "done"

    execute(mariadb, "INSERT INTO xs.t VALUES (31, 'old')")
    with pytest.raises(SchemaError, match="that row is older than the lake") as unknown:
        shards.compact(3)
    assert (unknown.value.where["key"], unknown.value.where["source"]) == (redact_key('["31"]'), "s1.t_1")
    assert "remove" not in unknown.value.hint
    # The hint's remedy works, and so does removing the row.
    target = shards.ctx.replication.require_sql_target().model_copy(update={"impossible_changes": "last"})
    replication = shards.ctx.replication.model_copy(update={"target": target})
    lenient = StageContext(replication, "test", shards.ctx.make_spark)
    assert compact.run(lenient, shards.windows[3]).detail["keys_of_unknown_tables"] == 1
    execute(mariadb, "DELETE FROM xs.t WHERE id = 31")
    shards.apply(3)

    with pytest.raises(SchemaError, match="two tables of the source write one key") as clash:
        shards.compact(4)
    where = clash.value.where
    assert (where["table"], where["key"], where["sources"]) == ("xs.t", redact_key('["2"]'), "s1.t_1,s2.t_2")
    assert "extract-table" in clash.value.hint
    assert rows(mariadb, "SELECT name FROM xs.t WHERE id = 2") == [("b",)]


def test_row_that_another_run_writes_meanwhile_is_the_windows_own(
    spark: SparkSession, mariadb: MariaDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two runs at once, or a killed one whose last COMMIT arrives late: the target moves after its position was read.
    shards = Shards(spark, tmp_path, mariadb, first, insert_31)
    shards.apply(0)
    shards.compact(1)
    convert.run(shards.ctx, shards.windows[1])
    looked = []

    def apply_and_look(*arguments: Any) -> list[int]:
        if not looked:
            assert finalize.run(shards.ctx, shards.windows[1]).rows == 1
        looked.append(find_present_keys(*arguments))
        return looked[-1]

    monkeypatch.setattr(sharedkeys, "find_present_keys", apply_and_look)
    assert compact.run(shards.ctx, shards.windows[1]).state == "done"
    assert looked == [[0]]
    assert rows(mariadb, "SELECT name FROM xs.t WHERE id = 31") == [("g",)]


def test_key_belongs_to_one_table_across_segments(spark: SparkSession, mariadb: MariaDb, tmp_path: Path) -> None:
    def first_and_more(w: Workload) -> None:
        first(w)
        write_one_key_around_a_ddl(w)

    shards = Shards(spark, tmp_path, mariadb, first_and_more)
    with pytest.raises(SchemaError, match="two tables of the source write one key") as stopped:
        shards.compact(0)
    assert (stopped.value.where["key"], stopped.value.where["sources"]) == (redact_key('["21"]'), "s1.t_1,s2.t_2")
