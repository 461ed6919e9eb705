"""merge writes the same rows whatever its tasks are, and replaces those of an earlier run."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from lakehouse import Lakehouse, Source, rows_of
from pyspark.sql import SparkSession
from support.engines import HostileEngine
from support.workload import Workload, integer, text

from binlake.errors import WireError
from binlake.lake.tables import MUTATION
from binlake.spark_jobs.engine.engine import Engine, LocalEngine
from binlake.spark_jobs.job import decoding
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.stages import merge

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


def use_engine(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    monkeypatch.setattr(StageContext, "choose_engine", lambda *_: engine)


def test_any_tasks_write_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # DESIGN 2: the same rows, whoever writes them; R-41
    workload, cuts = history()
    lake = Lakehouse(None, tmp_path, Source.of_workload(workload))
    one, two = [Bounds(lo, hi) for lo, hi in itertools.pairwise(cuts)]
    place = Path(lake.context().paths.locate_table("mutation"))
    lake.land(one.lo, one.hi)
    here = sorted_rows(lake)
    # Each group of rows is a task, which may be lost or run twice.
    use_engine(monkeypatch, engine := HostileEngine(Random(4)))
    assert merge.run(lake.context(), one).rows == 80
    assert sorted_rows(lake) == here
    assert engine.lost > 0
    assert set(DeltaTable(place).file_uris()) < set(map(str, place.rglob("*.parquet")))
    monkeypatch.undo()
    lake.land_only(two.lo, two.hi)

    # A failed task leaves the table unchanged, and no file.
    commits, files = len(commits_of(lake)), set(place.rglob("*.parquet"))
    monkeypatch.setattr(decoding.MergeTask, "_read", append_damaged_payload(decoding.MergeTask._read))
    with pytest.raises(WireError):
        merge.run(lake.context(), two)
    monkeypatch.undo()
    assert (len(commits_of(lake)), set(place.rglob("*.parquet"))) == (commits, files)

    assert merge.run(lake.context(), two).rows == 2
    assert '"stage": "merge"' in commits_of(lake)[0]["userMetadata"]
    written = sorted_rows(lake)
    assert len(written) == 82
    # A rerun replaces the files of this window only.
    assert merge.run(lake.context(), one).rows == 80
    assert sorted_rows(lake) == written


def without_spark(lake: Lakehouse) -> StageContext:
    """A context in a process without a JVM."""

    def refused() -> SparkSession:
        raise AssertionError("a Spark session was requested")

    return replace(lake.context(), make_spark=refused)


def test_small_window_needs_no_jvm_whatever_it_contains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # S4-03; DESIGN 2: transactions in chunks, columns added by routes, files with rows of other windows
    workload, cuts = history()
    route = {"schema-pattern": "d", "table-pattern": "t", "target-schema": "x", "target-table": "u"}
    route |= {"extract-table": {"table-regexp": "(.*)", "target-column": "origin"}}
    lake = Lakehouse(None, tmp_path, Source.of_workload(workload), {"routes": [route]})
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
    use_engine(monkeypatch, HostileEngine(Random(4)))
    ctx = lake.context()
    merged = merge.run(ctx, windows[1])
    assert merged.rows == 80
    assert sorted_rows(lake) == written
    # The next stage of this process reads the tasks' files, although the table has copies of their rows.
    handed = merged.derived.rows
    assert sum(batch.num_rows for one in handed for batch in one.read(["commit_ts"])) == 80


def test_rows_handed_over_equal_those_in_the_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workload, cuts = history()
    lake = Lakehouse(None, tmp_path, Source.of_workload(workload), {"target": {"host": "127.0.0.1"}})
    lake.land_only(cuts[0], cuts[1])
    bounds, names = Bounds(cuts[0], cuts[1]), [name for name in MUTATION.list_column_names() if name != "commit_date"]
    found = []
    for engine in (LocalEngine(), HostileEngine(Random(1))):
        use_engine(monkeypatch, engine)
        ctx = without_spark(lake)
        handed = merge.run(ctx, bounds).derived.rows
        found.append(sorted(str(row) for rows in handed for batch in rows.read(names) for row in batch.to_pylist()))
    stored = [{name: row[name] for name in names} for row in rows_of(lake.context().paths.locate_table("mutation"))]
    assert found[0] == found[1] == sorted(map(str, stored))
    assert len(stored) == 80


def test_engine_is_chosen_by_bytes(tmp_path: Path, spark: SparkSession) -> None:
    workload, cuts = history()
    lake = Lakehouse(spark, tmp_path, Source.of_workload(workload))
    lake.land_only(cuts[0], cuts[1])
    assert lake.context().choose_engine(1).name == "local"
    lake.config["window"] = {"driver-bytes": 0}
    assert lake.context().choose_engine(1).name == "spark"
    assert merge.run(lake.context(), Bounds(cuts[0], cuts[1])).rows == 80
    assert len(sorted_rows(lake)) == 80


def append_damaged_payload(read: Any) -> Any:
    """The payloads unchanged, followed by an invalid one."""

    def broken(self: Any, payloads: Any) -> Any:
        yield from read(self, payloads)
        yield pa.RecordBatch.from_pydict({"commit_ts": [1], "start_ts": [1], "payload": [b"\xff\xff"]})

    return broken
