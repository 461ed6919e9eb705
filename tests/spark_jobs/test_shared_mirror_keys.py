"""S4-03: a mirror shared by several source tables detects one key in two of them, also across windows."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from lakehouse import Lakehouse, Source
from pyspark.sql import SparkSession
from support.workload import Workload, integer, text

from binlake.common.redaction import redact_key
from binlake.errors import SchemaError
from binlake.mirror.replica import Replica
from binlake.spark_jobs.job.context import Bounds
from binlake.spark_jobs.stages import mirror

pytestmark = pytest.mark.spark

ROUTES = [{"schema-pattern": "s?", "table-pattern": "t_*", "target-schema": "xs", "target-table": "t"}]


def test_key_of_a_mirror_belongs_to_one_table_across_windows(spark: SparkSession, tmp_path: Path) -> None:
    w, cuts = Workload(), [0]
    for db, name in (("s1", "t_1"), ("s2", "t_2")):
        w.create_database(db)
        w.create_table(db, name, [integer("id"), text("name")], ["id"])
    w.begin().insert("s1", "t_1", id=1, name="a").insert("s1", "t_1", id=2, name="b").commit()
    w.begin().insert("s2", "t_2", id=11, name="c").commit()
    cuts.append(w.clock())
    # A key that its table gave up is free, in a later window and in the same one.
    w.begin().delete("s1", "t_1", id=1, name="a").commit()
    cuts.append(w.clock())
    w.begin().insert("s2", "t_2", id=1, name="mine").insert("s2", "t_2", id=12, name="d").commit()
    w.begin().update("s2", "t_2", {"id": "12", "name": "d"}, id=13).commit()
    cuts.append(w.clock())
    w.begin().update("s2", "t_2", {"id": "11", "name": "c"}, id=2).commit()
    cuts.append(w.clock())
    lakehouse = Lakehouse(spark, tmp_path, Source.of_workload(w), {"routes": ROUTES})
    ctx = lakehouse.context()
    windows = [Bounds(lo, hi) for lo, hi in itertools.pairwise(cuts)]
    for bounds in windows:
        lakehouse.land(bounds.lo, bounds.hi)
    for bounds in windows[:3]:
        mirror.run(ctx, bounds)
    replica = Replica(ctx.paths.locate_mirror("xs", "t"), 0)
    keys = ['["1"]', '["2"]', '["11"]', '["12"]', '["13"]']
    assert replica.find_present_keys(keys) == {'["1"]', '["2"]', '["11"]', '["13"]'}

    with pytest.raises(SchemaError, match="two tables of the source write one key") as clash:
        mirror.run(ctx, windows[3])
    where = clash.value.where
    assert (where["table"], where["key"], where["sources"]) == ("xs.t", redact_key('["2"]'), "s1.t_1,s2.t_2")
    assert Replica(ctx.paths.locate_mirror("xs", "t"), 0).read_position() == windows[2].hi
