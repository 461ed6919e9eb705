"""`source.second-writes = "once"` through merge: the rows, and one alert per window and table, from many tasks."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from lakehouse import Lakehouse, Source, rows_of
from support.engines import HostileEngine

from binlake.errors import SchemaError
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.stages import merge

CAPTURE = Path(__file__).parents[1] / "captures" / "zones_rearranged"
HI = 470640619783192588
"""After the first REORGANIZE PARTITION of a keyless table: 13 transactions were committed while it copied rows."""


def test_window_reports_tables_whose_second_writes_were_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # capture zones, table Tagebuch
    source = Source.of_capture(CAPTURE)
    refusing = Lakehouse(None, tmp_path, source)
    refusing.land_only(0, HI)
    with pytest.raises(SchemaError, match=r"source\.second-writes = once"):
        merge.run(refusing.context(), merge.Bounds(0, HI))

    monkeypatch.setattr(StageContext, "choose_engine", lambda *_: HostileEngine(Random(1)))
    config = {"source": {"second-writes": "once"}}
    reading = Lakehouse(None, tmp_path, source, config).context()
    merge.run(reading, merge.Bounds(0, HI))
    inserted = [
        dict(row["after"])["id"] for row in rows_of(reading.paths.locate_table("mutation")) if row["op"] == "insert"
    ]
    # Row 819 was written before the copy and exists twice at the source; row 880 was written after it.
    assert [inserted.count(number) for number in ("817", "819", "880", "972")] == [1, 2, 1, 1]
    events = reading.windows.read_events(stage="merge", within=(0, HI))
    detail = json.loads(next(event["detail"] for event in events if event["state"] == "done"))
    told = [(one["table"], one["reason"]) for one in detail["alerts"]]
    assert told == [("Betrieb.Tagebuch", "second-writes")]
    assert detail["alerts"][0]["alert"].startswith("13 transactions of Betrieb.Tagebuch were committed while")
