"""`source.second-writes = "once"` through merge: rows, and an alert of the window for the table; Spark writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lakehouse import Lakehouse, Source, rows_of
from pyspark.sql import SparkSession

from binlake.errors import SchemaError
from spark_jobs.merge import direct
from spark_jobs.merge import stage as merge

pytestmark = pytest.mark.spark

CAPTURE = Path(__file__).parents[1] / "captures" / "zones_rearranged"
HI = 470640619783192588
"""Behind the first REORGANIZE PARTITION of a table without a key: 13 transactions were committed while it copied."""


def test_a_window_tells_the_table_of_which_second_writes_were_taken_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # capture zones, table Tagebuch
    source = Source.of_capture(CAPTURE)
    refusing = Lakehouse(spark, tmp_path, source)
    refusing.land_only(0, HI)
    with pytest.raises(SchemaError, match=r"source\.second-writes = once"):
        merge.run(refusing.context(), merge.Bounds(0, HI))

    monkeypatch.setattr(direct, "find_replaceable_files", lambda *_: None)
    config = {"source": {"second-writes": "once"}, "window": {"driver-bytes": 0}}
    reading = Lakehouse(spark, tmp_path, source, config).context()
    merge.run(reading, merge.Bounds(0, HI))
    inserted = [dict(row["after"])["id"] for row in rows_of(reading.paths.table("mutation")) if row["op"] == "insert"]
    # 819 came before rows were copied and is there twice at the source, 880 behind it.
    assert [inserted.count(number) for number in ("817", "819", "880", "972")] == [1, 2, 1, 1]
    events = reading.windows.events(stage="merge", within=(0, HI))
    detail = json.loads(next(event["detail"] for event in events if event["state"] == "done"))
    told = [(one["table"], one["reason"]) for one in detail["alerts"]]
    assert told == [("Betrieb.Tagebuch", "second-writes")]
    assert detail["alerts"][0]["alert"].startswith("13 transactions of Betrieb.Tagebuch were committed while")
