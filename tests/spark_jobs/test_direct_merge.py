"""Rows that the decoding tasks write themselves are those that Spark writes; delta-rs commits only where it can."""

from __future__ import annotations

import itertools
import re
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
from spark_jobs import decode
from spark_jobs.context import Bounds
from spark_jobs.stages import merge

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
    # Each group of rows is a task; the second window is one share and needs none.
    monkeypatch.setattr(payloads, "SHARE_BYTES", 1)
    lake.land(one.lo, one.hi)
    monkeypatch.undo()
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


def test_one_share_is_the_driver_s_unless_it_is_to_decode_nothing(
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
