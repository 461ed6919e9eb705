"""Rows that wait for another table's DDL, through the stages (R-15, S4-53)."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from support.engines import HostileEngine
from support.mariadb import MariaDb, rows
from support.workload import Workload, integer
from test_shared_keys import Shards, first

from binlake.changes.net.events import COLUMNS, SOURCE
from binlake.errors import ConfigError, SchemaError
from binlake.rows.schema import Action
from binlake.spark_jobs.engine.engine import LocalEngine
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.shared.sinks import read_window_changes
from binlake.spark_jobs.stages import compact, merge, mirror

pytestmark = [pytest.mark.spark, pytest.mark.mariadb]


def let_one_go_ahead(w: Workload) -> None:
    w.begin().insert("s1", "t_1", id=3, name="before").commit()
    w.add_column("s1", "t_1", integer("n", default="5"))
    w.begin().insert("s1", "t_1", id=4, name="held", n=1).commit()
    w.begin().insert("s2", "t_2", id=12, name="goes on").commit()


def hold_more_rows(w: Workload) -> None:
    w.begin().update("s1", "t_1", {"id": "4", "name": "held", "n": "1"}, n=2).commit()
    w.begin().delete("s1", "t_1", id=1, name="a", n=5).commit()


def let_the_other_follow(w: Workload) -> None:
    w.begin().insert("s1", "t_1", id=5, name="held too", n=3).commit()
    w.add_column("s2", "t_2", integer("n", default="5"))
    w.begin().insert("s2", "t_2", id=13, name="behind", n=4).commit()


def write_a_held_key(w: Workload) -> None:
    w.begin().insert("s1", "t_1", id=12, name="clash", n=1).commit()


AHEAD = [(1, "a"), (2, "b"), (3, "before"), (11, "c"), (12, "goes on")]


@pytest.mark.soak
def test_held_rows_are_applied_with_the_ddl(spark: SparkSession, mariadb: MariaDb, tmp_path: Path) -> None:
    shards = Shards(spark, tmp_path, mariadb, first, let_one_go_ahead, hold_more_rows, let_the_other_follow,
                    more={"shard-mode": "pessimistic"})  # fmt: skip
    for number in range(3):
        shards.apply(number)
        mirror.run(shards.ctx, shards.windows[number])
        if number:
            assert rows(mariadb, "SELECT * FROM xs.t ORDER BY id") == AHEAD
    last = shards.windows[3]
    shards.lakehouse.land(last.lo, last.hi)
    # In another mode nothing would release them.
    unset = shards.ctx.replication.model_copy(update={"shard_mode": ""})
    with pytest.raises(ConfigError, match="rows are held since shard-mode was pessimistic"):
        merge.run(StageContext(unset, "test", shards.ctx.make_spark), last)
    # The same rows from one part and from many.
    found = []
    for engine in (LocalEngine(), HostileEngine(Random(1))):
        changes = read_window_changes(shards.ctx, engine, last, 2)
        assert changes is not None
        names = [*COLUMNS, *SOURCE]
        table = pa.Table.from_batches(batch for rows in changes.rows for batch in rows.read(names))
        found.append(sorted(map(str, table.to_pylist())))
    assert len(found[0]) == 5
    assert found[0] == found[1]
    shards.apply(3)
    mirror.run(shards.ctx, last)
    whole = [(2, "b", 5), (3, "before", 5), (4, "held", 2), (5, "held too", 3), (11, "c", 5), (12, "goes on", 5),
             (13, "behind", 4)]  # fmt: skip
    assert rows(mariadb, "SELECT * FROM xs.t ORDER BY id") == whole
    # A rerun of a finished window seals the same.
    assert compact.run(shards.ctx, shards.windows[1]).state == "done"


def go_two_steps_ahead(w: Workload) -> None:
    w.begin().insert("s1", "t_1", id=3, name="before").commit()
    w.add_column("s1", "t_1", integer("n", default="5"))
    w.begin().insert("s1", "t_1", id=4, name="one step", n=1).commit()
    w.add_column("s1", "t_1", integer("m", default="6"))
    w.begin().insert("s1", "t_1", id=5, name="two steps", n=2, m=3).commit()


def drop_the_other_database(w: Workload) -> None:
    w.begin().insert("s2", "t_2", id=12, name="stays").commit()
    del w._tables["s2", "t_2"]
    w._ddl(Action.DROP_SCHEMA, "s2", "", "DROP DATABASE `s2`")
    w.begin().insert("s1", "t_1", id=6, name="behind", n=7, m=8).commit()


def test_held_rows_are_applied_when_the_awaited_database_is_dropped(
    spark: SparkSession, mariadb: MariaDb, tmp_path: Path
) -> None:
    shards = Shards(spark, tmp_path, mariadb, first, go_two_steps_ahead, drop_the_other_database,
                    more={"shard-mode": "pessimistic"})  # fmt: skip
    whole = [(1, "a", 5, 6), (2, "b", 5, 6), (3, "before", 5, 6), (4, "one step", 1, 6), (5, "two steps", 2, 3),
             (6, "behind", 7, 8), (11, "c", 5, 6), (12, "stays", 5, 6)]  # fmt: skip
    for number in range(3):
        shards.apply(number)
        mirror.run(shards.ctx, shards.windows[number])
    assert rows(mariadb, "SELECT * FROM xs.t ORDER BY id") == whole
    mirrored = DeltaTable(shards.ctx.paths.locate_mirror("xs", "t")).to_pyarrow_table(columns=["id", "name", "n", "m"])
    assert sorted(tuple(row.values()) for row in mirrored.to_pylist()) == whole


def test_key_of_another_table_is_found_among_held_rows(
    spark: SparkSession, mariadb: MariaDb, tmp_path: Path
) -> None:  # S4-03
    shards = Shards(spark, tmp_path, mariadb, first, let_one_go_ahead, write_a_held_key, let_the_other_follow,
                    more={"shard-mode": "pessimistic"})  # fmt: skip
    for number in range(3):
        shards.apply(number)
    with pytest.raises(SchemaError, match="two tables of the source write one key") as clash:
        shards.compact(3)
    assert clash.value.where["sources"] == "s2.t_2,s1.t_1"
