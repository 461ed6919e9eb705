"""Rows written by the decoding tasks equal those written by Spark; delta-rs commits only if it supports the table."""

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
    return sorted(map(str, rows_of(lake.context().paths.locate_table("mutation"))))


def commits_of(lake: Lakehouse) -> list[dict[str, Any]]:
    """The commits of `mutation`, newest first."""
    return DeltaTable(lake.context().paths.locate_table("mutation")).history()


def writer(lake: Lakehouse) -> str:
    """The engine of the newest commit."""
    return re.split("[:/]", commits_of(lake)[0]["engineInfo"])[0]


@pytest.mark.soak
def test_tasks_write_the_same_rows_as_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # DESIGN 2: the same rows, whoever writes them; R-41
    workload, cuts = history()
    lake = Lakehouse(spark, tmp_path, Source.of_workload(workload))
    one, two = [Bounds(lo, hi) for lo, hi in itertools.pairwise(cuts)]
    place = Path(lake.context().paths.locate_table("mutation"))
    # Each group of rows is a task; the driver itself decodes the second window without tasks.
    monkeypatch.setattr(payloads, "SHARE_BYTES", 1)
    lake.config["window"] = {"driver-bytes": 0}
    lake.land(one.lo, one.hi)
    monkeypatch.undo()
    lake.config.clear()
    lake.land_only(two.lo, two.hi)

    # A failed task leaves the table unchanged, and no file.
    commits, files = len(commits_of(lake)), set(place.rglob("*.parquet"))
    monkeypatch.setattr(payloads.PayloadRange, "read", append_damaged_payload(payloads.PayloadRange.read))
    with pytest.raises(WireError):
        merge.run(lake.context(), two)
    monkeypatch.undo()
    assert (len(commits_of(lake)), set(place.rglob("*.parquet"))) == (commits, files)

    assert merge.run(lake.context(), two).rows == 2
    assert len(files) > 1
    assert '"stage": "merge"' in commits_of(lake)[0]["userMetadata"]
    written = sorted_rows(lake)
    assert len(written) == 82
    # A rerun replaces the files of this window only.
    assert merge.run(lake.context(), one).rows == 80
    assert (writer(lake), sorted_rows(lake)) == ("delta-rs", written)

    # A table of an older Binlake has a feature that delta-rs refuses, so Spark writes the same rows.
    spark.sql(f"ALTER TABLE delta.`{place}` SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')")
    assert merge.run(lake.context(), one).rows == 80
    assert (writer(lake), sorted_rows(lake)) == ("Apache-Spark", written)


def without_spark(lake: Lakehouse) -> StageContext:
    """A context in a process without a JVM."""

    def refused() -> SparkSession:
        raise AssertionError("a Spark session was requested")

    return replace(lake.context(), make_spark=refused)


def test_small_window_needs_no_jvm_whatever_it_contains(spark: SparkSession, tmp_path: Path) -> None:
    # S4-03; DESIGN 2: transactions in chunks, columns added by routes, files with rows of other windows
    workload, cuts = history()
    route = {"schema-pattern": "d", "table-pattern": "t", "target-schema": "x", "target-table": "u"}
    route |= {"extract-table": {"table-regexp": "(.*)", "target-column": "origin"}}
    lake = Lakehouse(spark, tmp_path, Source.of_workload(workload), {"routes": [route]})
    windows = [Bounds(lo, hi) for lo, hi in itertools.pairwise([cuts[0] - (1 << 60), *cuts])]
    for bounds in windows:
        lake.land_only(bounds.lo, bounds.hi, chunks=3)
        merge.run(without_spark(lake), bounds)
    place = lake.context().paths.locate_table("mutation")
    rows = rows_of(place)
    assert len(rows) == 82
    assert {dict(row[name])["origin"] for row in rows for name in ("before", "after") if row[name]} == {"t"}
    assert len(rows_of(lake.context().paths.locate_table("ddl"))) == 2
    written = sorted_rows(lake)

    # The files of that day were compacted and hold rows of both windows, so the files are rewritten.
    DeltaTable(place).optimize.compact()
    assert merge.run(without_spark(lake), windows[1]).rows == 80
    assert sorted_rows(lake) == written
    DeltaTable(place).optimize.compact()
    lake.config["window"] = {"driver-bytes": 0}
    assert merge.run(lake.context(), windows[1]).rows == 80
    assert (writer(lake), sorted_rows(lake)) == ("Apache-Spark", written)


def test_rows_handed_over_equal_those_in_the_lake(spark: SparkSession, tmp_path: Path) -> None:
    workload, cuts = history()
    lake = Lakehouse(spark, tmp_path, Source.of_workload(workload), {"target": {"host": "127.0.0.1"}})
    lake.land_only(cuts[0], cuts[1])
    ctx, bounds = without_spark(lake), Bounds(cuts[0], cuts[1])
    merge.run(ctx, bounds)
    held = ctx.handover.take(MUTATION, bounds)
    assert held is not None
    assert sorted(map(str, held.to_pylist())) == sorted_rows(lake)
    # Separate tasks hand nothing over, and a lake without a target has no taker.
    lake.config["window"] = {"driver-bytes": 0}
    alone = lake.context()
    merge.run(alone, bounds)
    assert alone.handover.bytes == 0
    del lake.config["target"], lake.config["window"]
    alone = without_spark(lake)
    merge.run(alone, bounds)
    assert alone.handover.bytes == 0


def test_driver_decodes_a_window_unless_its_limit_is_zero(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("decoded in the driver")

    workload, cuts = history()
    lake = Lakehouse(spark, tmp_path, Source.of_workload(workload))
    lake.land_only(cuts[0], cuts[1])
    # Workers import the class themselves.
    monkeypatch.setattr(decode.ShareWriter, "write", refuse)
    with pytest.raises(AssertionError, match="in the driver"):
        merge.run(lake.context(), Bounds(cuts[0], cuts[1]))
    lake.config["window"] = {"driver-bytes": 0}
    assert merge.run(lake.context(), Bounds(cuts[0], cuts[1])).rows == 80
    assert len(sorted_rows(lake)) == 80


def append_damaged_payload(read: Any) -> Any:
    """The payloads unchanged, followed by an invalid one."""

    def broken(self: Any, share: Any) -> Any:
        yield from read(self, share)
        yield pa.RecordBatch.from_pydict({"commit_ts": [1], "start_ts": [1], "payload": [b"\xff\xff"]})

    return broken
