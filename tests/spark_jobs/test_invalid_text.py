"""`source.invalid-text = "latin1"` through merge, in driver and workers: rows, and one alert per window and table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lakehouse import Lakehouse, Source, rows_of
from pyspark.sql import SparkSession
from support.workload import Workload, integer, text

from binlake.errors import WireError
from binlake.spark_jobs.stages import merge

pytestmark = pytest.mark.spark


def source_with_bare_bytes() -> tuple[Source, int]:
    """Texts `@@` and `@@@@` of two tables arrive as bytes F6."""
    w = Workload()
    w.create_database("s")
    for name in ("a", "b"):
        w.create_table("s", name, [integer("id"), text("v")], ["id"])
    w.begin().insert("s", "a", id=1, v="@@").insert("s", "b", id=1, v="@@@@").commit()
    w.begin().update("s", "a", {"id": "1", "v": "@@"}, v="ö").commit()
    source = Source.of_workload(w)
    for one in source.binlogs:
        one.prewrite_value = one.prewrite_value.replace(b"@", b"\xf6")
    return source, w.clock()


@pytest.mark.parametrize("by_spark", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_window_reports_each_table_with_texts_read_as_latin1(
    spark: SparkSession, tmp_path: Path, by_spark: bool
) -> None:
    source, hi = source_with_bare_bytes()
    window = {"window": {"driver-bytes": 0}} if by_spark else {}
    refusing = Lakehouse(spark, tmp_path, source, window)
    refusing.land_only(0, hi)
    with pytest.raises(WireError, match=r"source\.invalid-text"):
        merge.run(refusing.context(), merge.Bounds(0, hi))

    reading = Lakehouse(spark, tmp_path, source, {"source": {"invalid-text": "latin1"}, **window}).context()
    assert reading.choose_engine(1).name == ("spark" if by_spark else "local")
    merge.run(reading, merge.Bounds(0, hi))
    rows: list[Any] = rows_of(reading.paths.locate_table("mutation"))
    rows.sort(key=lambda row: (row["commit_ts"], row["seq"]))
    afters = [(row["source_table"], dict(row["after"])["v"]) for row in rows]
    assert afters == [("a", "öö"), ("b", "öööö"), ("a", "ö")]
    events = reading.windows.read_events(stage="merge", within=(0, hi))
    detail = json.loads(next(event["detail"] for event in events if event["state"] == "done"))
    assert "filtered" not in detail
    assert [(one["table"], one["reason"], one["alert"]) for one in detail["alerts"]] == [
        ("s.a", "invalid-text", "2 texts of s.a are not UTF-8 and were read as latin1"),
        ("s.b", "invalid-text", "1 texts of s.b are not UTF-8 and were read as latin1"),
    ]
