"""Rows that the decoding tasks write themselves are those that Spark writes; delta-rs commits only where it can."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from lakehouse import Lakehouse, Source, rows_of
from pyspark.sql import SparkSession
from support.workload import Workload, integer, text

from binlake.errors import WireError
from binlake.lake import payloads
from binlake.lake.tables import MUTATION
from spark_jobs.job.context import Bounds, StageContext
from spark_jobs.merge import decode
from spark_jobs.merge import stage as merge

pytestmark = pytest.mark.spark


def history() -> tuple[Workload, list[int]]:
    """Two windows of inserts, updates that move keys, and deletes."""
    w = Workload()
    w.create_database("d")
    w.create_table("d", "t", [integer("id"), text("name")], ["id"])
    cuts = [w.clock()]
    for number in range(40):
        w.begin().insert("d", "t", id=number, name=f"n{number}").insert("d", "t", id=100 + number, name=None).commit()
    cuts.append(w.clock())
    w.begin().update("d", "t", {"id": "1", "name": "n1"}, id=900).delete("d", "t", id=2, name="n2").commit()
    cuts.append(w.clock())
    return w, cuts


def sorted_rows(lake: Lakehouse) -> list[str]:
    return sorted(map(str, rows_of(lake.context().paths.table("mutation"))))


def commits_of(lake: Lakehouse) -> list[dict[str, Any]]:
    """The commits to `mutation`, newest first."""
    return DeltaTable(lake.context().paths.table("mutation")).history()


def writer(lake: Lakehouse) -> str:
    """Who made the newest commit."""
    return re.split("[:/]", commits_of(lake)[0]["engineInfo"])[0]


def test_tasks_write_what_spark_writes(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # DESIGN 2: the same rows in the same place, whoever writes them; R-41
    workload, cuts = history()
    lake = Lakehouse(spark, tmp_path, Source.of_workload(workload))
    one, two = [Bounds(lo, hi) for lo, hi in itertools.pairwise(cuts)]
    place = Path(lake.context().paths.table("mutation"))
    # Each group of rows is a task; the second window is the driver's and needs none.
    monkeypatch.setattr(payloads, "SHARE_BYTES", 1)
    lake.config["window"] = {"driver-bytes": 0}
    lake.land(one.lo, one.hi)
    monkeypatch.undo()
    lake.config.clear()
    lake.land_only(two.lo, two.hi)

    # A task that fails leaves the table as it was, and no file.
    commits, files = len(commits_of(lake)), set(place.rglob("*.parquet"))
    monkeypatch.setattr(payloads.PayloadRange, "read", damaged(payloads.PayloadRange.read))
    with pytest.raises(WireError):
        merge.run(lake.context(), two)
    monkeypatch.undo()
    assert (len(commits_of(lake)), set(place.rglob("*.parquet"))) == (commits, files)

    assert merge.run(lake.context(), two).rows == 2
    assert len(files) > 1
    assert '"stage": "merge"' in commits_of(lake)[0]["userMetadata"]
    written = sorted_rows(lake)
    assert len(written) == 82
    # Run again, the window's files are replaced and no other's.
    assert merge.run(lake.context(), one).rows == 80
    assert (writer(lake), sorted_rows(lake)) == ("delta-rs", written)

    # A table of an older Binlake has a feature that delta-rs refuses: Spark writes the same.
    spark.sql(f"ALTER TABLE delta.`{place}` SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')")
    assert merge.run(lake.context(), one).rows == 80
    assert (writer(lake), sorted_rows(lake)) == ("Apache-Spark", written)


def without_spark(lake: Lakehouse) -> StageContext:
    """A run whose process has no JVM."""

    def refused() -> SparkSession:
        raise AssertionError("a session was asked for")

    return replace(lake.context(), make_spark=refused)


def test_a_small_window_needs_no_jvm_whatever_is_in_it(spark: SparkSession, tmp_path: Path) -> None:
    # S4-03; DESIGN 2: transactions in chunks, columns that routes add, files with other windows' rows
    workload, cuts = history()
    route = {"schema-pattern": "d", "table-pattern": "t", "target-schema": "x", "target-table": "u"}
    route |= {"extract-table": {"table-regexp": "(.*)", "target-column": "origin"}}
    lake = Lakehouse(spark, tmp_path, Source.of_workload(workload), {"routes": [route]})
    windows = [Bounds(lo, hi) for lo, hi in itertools.pairwise([cuts[0] - (1 << 60), *cuts])]
    for bounds in windows:
        lake.land_only(bounds.lo, bounds.hi, chunks=3)
        merge.run(without_spark(lake), bounds)
    place = lake.context().paths.table("mutation")
    rows = rows_of(place)
    assert len(rows) == 82
    assert {dict(row[name])["origin"] for row in rows for name in ("before", "after") if row[name]} == {"t"}
    assert len(rows_of(lake.context().paths.table("ddl"))) == 2
    written = sorted_rows(lake)

    # A day whose files were brought together has rows of both windows in each: they are written again.
    DeltaTable(place).optimize.compact()
    assert merge.run(without_spark(lake), windows[1]).rows == 80
    assert sorted_rows(lake) == written
    DeltaTable(place).optimize.compact()
    lake.config["window"] = {"driver-bytes": 0}
    assert merge.run(lake.context(), windows[1]).rows == 80
    assert (writer(lake), sorted_rows(lake)) == ("Apache-Spark", written)


def test_the_driver_s_rows_are_handed_over_as_they_are_in_the_lake(spark: SparkSession, tmp_path: Path) -> None:
    workload, cuts = history()
    lake = Lakehouse(spark, tmp_path, Source.of_workload(workload), {"target": {"host": "127.0.0.1"}})
    lake.land_only(cuts[0], cuts[1])
    ctx, bounds = without_spark(lake), Bounds(cuts[0], cuts[1])
    merge.run(ctx, bounds)
    held = ctx.handover.take(MUTATION, bounds)
    assert held is not None
    assert sorted(map(str, held.to_pylist())) == sorted_rows(lake)
    # Tasks of their own have nothing to hand over, nor has a lake without a target.
    lake.config["window"] = {"driver-bytes": 0}
    alone = lake.context()
    merge.run(alone, bounds)
    assert alone.handover.bytes == 0
    del lake.config["target"], lake.config["window"]
    alone = without_spark(lake)
    merge.run(alone, bounds)
    assert alone.handover.bytes == 0


def test_a_window_is_the_driver_s_unless_it_is_to_decode_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def here(*_: object) -> None:
        raise AssertionError("decoded in the driver")

    workload, cuts = history()
    lake = Lakehouse(spark, tmp_path, Source.of_workload(workload))
    lake.land_only(cuts[0], cuts[1])
    # Workers import the class for themselves.
    monkeypatch.setattr(decode.ShareWriter, "write", here)
    with pytest.raises(AssertionError, match="in the driver"):
        merge.run(lake.context(), Bounds(cuts[0], cuts[1]))
    lake.config["window"] = {"driver-bytes": 0}
    assert merge.run(lake.context(), Bounds(cuts[0], cuts[1])).rows == 80
    assert len(sorted_rows(lake)) == 80


def damaged(read: Any) -> Any:
    """The payloads as they are, and behind them one that is none."""

    def broken(self: Any, share: Any) -> Any:
        yield from read(self, share)
        yield pa.RecordBatch.from_pydict({"commit_ts": [1], "start_ts": [1], "payload": [b"\xff\xff"]})

    return broken
