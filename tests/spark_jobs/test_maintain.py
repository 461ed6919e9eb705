"""Maintenance deletes a window's working rows only after its target has passed it and a week has gone by."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from binlake import tso
from binlake.config import Replication
from binlake.lake.tables import CHANGE, WORKING_DAYS
from binlake.spark_jobs.commands import maintain
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.target import TargetPosition

DAY_MS = 86_400_000
START_MS = 1_795_000_000_000
ENDS = [tso.compose(START_MS + day * DAY_MS) for day in range(13)]
WINDOWS = [Bounds(lo, hi) for lo, hi in itertools.pairwise(ENDS)]


class Opened:
    """The window that the target holds open."""

    manifest = None

    def __init__(self, window: Bounds) -> None:
        self.window = (window.lo, window.hi)


def count_deleted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, position: TargetPosition | None, name: str = "mysql"
) -> int:
    """How many of twelve windows of a day each are deleted; the last one ended just now."""
    raw = {"name": "r", "lake": {"path": str(folder)}}
    if position is not None:
        raw["target"] = {"db-type": name, "host": "h", "user": "u"}
    ctx = StageContext(Replication.model_validate(raw), "test", lambda: None)  # type: ignore[arg-type,return-value]
    rows = pa.table({"window": [window.window for window in WINDOWS], "rows": [1] * len(WINDOWS)})
    write_deltalake(ctx.paths.locate_table(CHANGE.name), rows, partition_by=["window"], mode="overwrite")
    monkeypatch.setattr(maintain, "read_target_position", lambda *_: position)
    found = maintain.find_expired_windows(ctx, CHANGE, Bounds(ENDS[0], ENDS[-1]))
    assert found == [window.window for window in WINDOWS[: len(found)]]
    return len(found)


def test_windows_that_the_target_has_not_passed_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # S3-15, R-33, DESIGN 3.10
    old = len(WINDOWS) - WORKING_DAYS
    assert count_deleted(tmp_path, monkeypatch, TargetPosition(ENDS[-1], None, 1)) == old
    assert count_deleted(tmp_path, monkeypatch, TargetPosition(ENDS[3], None, 1)) == 3
    assert count_deleted(tmp_path, monkeypatch, TargetPosition(None, None, 1)) == 0
    held = TargetPosition(ENDS[3], Opened(WINDOWS[2]), 1)  # type: ignore[arg-type]
    assert count_deleted(tmp_path, monkeypatch, held) == 2


def test_without_a_target_no_window_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert count_deleted(tmp_path, monkeypatch, None) == 0
