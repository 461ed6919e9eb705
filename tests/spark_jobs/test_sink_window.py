"""A SQL sink that is behind gets windows that end at landed windows and whose segments fit into a transaction."""

from __future__ import annotations

from pathlib import Path

import pytest

from binlake.config import Replication
from binlake.lake.windowlog import WindowEvent
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.shared import nextwindow


@pytest.fixture
def ctx(tmp_path: Path) -> StageContext:
    """Landed and merged: (0, 10] with 40 row changes, (10, 20] with 5, (20, 30] with 60."""
    config = {"name": "demo", "lake": {"path": str(tmp_path)}, "window": {"stop-at": ["25"]}}
    made = StageContext(Replication.model_validate(config), "test", lambda: pytest.fail("no Spark is needed"))
    for lo, hi, rows in ((0, 10, 40), (10, 20, 5), (20, 30, 60)):
        for stage in ("land", "merge"):
            made.windows.record(WindowEvent(stage, lo, hi, "done", rows))
    return made


@pytest.mark.parametrize(
    ("lo", "hi", "most", "end"),
    [
        (0, 30, 1_000_000, 25),
        (25, 30, 1_000_000, 30),
        # A row change counts as up to two rows: 80 + 10 fit into 90, but not into 89.
        (0, 30, 90, 20),
        (0, 30, 89, 10),
        # One landed window is never cut because of its size alone.
        (0, 30, 1, 10),
        (10, 30, 1, 20),
        (0, 10, 1, 10),
        (5, 10, 1, 10),
        (20, 30, 1, 25),
    ],
)
def test_sink_that_is_behind_takes_as_many_windows_as_fit(
    ctx: StageContext, lo: int, hi: int, most: int, end: int
) -> None:
    assert nextwindow._find_end(ctx, lo, hi, most) == end
