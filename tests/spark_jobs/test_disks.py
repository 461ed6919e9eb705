"""When the disks of pumps and lake are measured, and what is recorded of them."""

from __future__ import annotations

import os
from pathlib import Path

from binlake import tso
from binlake.common.localfiles import DiskUse
from binlake.config import Replication
from binlake.lake.windowlog import WindowEvent
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.stages.land import EVERY_MS, build_disk_events, is_due
from binlake.window.plan import Member

SLOT = tso.compose(EVERY_MS * 1000)
DUE = Bounds(SLOT - 1, SLOT)


def _context(lake: str) -> StageContext:
    return StageContext(Replication.model_validate({"name": "r", "lake": {"path": lake}}), "run", lambda: None)  # type: ignore[arg-type,return-value]


def test_one_window_in_five_minutes_is_measured_however_short_or_long_windows_are() -> None:
    step = 7_000 << 18
    due = [lo for lo in range(SLOT, SLOT + (3_600_000 << 18), step) if is_due(lo, lo + step)]
    assert len(due) == 12
    assert not is_due(SLOT, SLOT + 5)


def test_the_lake_and_the_pumps_that_tell_are_recorded(tmp_path: Path) -> None:
    (tmp_path / "r" / "binlog").mkdir(parents=True)
    (tmp_path / "r" / "binlog" / "part").write_bytes(os.urandom(1 << 20))
    members = [
        Member("pump-1", "h:1", "online", 9, disk=DiskUse(5, 6, 7)),
        Member("original", "h:2", "online", 9),
    ]
    ctx = _context(str(tmp_path))
    [event] = build_disk_events(ctx, DUE, members)
    assert (event.stage, event.state, event.run_id) == ("disk", "done", "run")
    lake, pump = event.detail["disks"]
    assert pump == {"place": "pump-1", "stored": 5, "free": 6, "size": 7}
    assert lake["place"] == "lake"
    assert 1 << 20 <= lake["stored"] < 2 << 20
    assert 0 < lake["free"] < lake["size"]
    again = Bounds(SLOT, SLOT + 1)
    assert [one.window for one in build_disk_events(ctx, again, members)] == [again.window]
    ctx.windows.record(WindowEvent("land", SLOT - 1, SLOT, "done"))
    assert build_disk_events(ctx, again, members) == []


def test_a_window_lands_although_its_lake_cannot_be_measured(tmp_path: Path) -> None:
    assert build_disk_events(_context(str(tmp_path / "missing")), DUE, []) == []
    assert build_disk_events(_context("s3://bucket/lake"), DUE, []) == []
