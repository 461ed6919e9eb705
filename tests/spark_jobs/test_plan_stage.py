"""plan counts only the time that it was blocked without a break, and never passes over a start that was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from binlake.config import Replication
from binlake.errors import CheckpointConflict
from binlake.lake.windowlog import WindowEvent
from spark_jobs.context import StageContext
from spark_jobs.stages import plan


def event(state: str, at_ms: int, lo: int = 7) -> dict[str, Any]:
    return {"lo": lo, "state": state, "at_ms": at_ms}


@pytest.mark.parametrize(
    ("events", "since"),
    [
        ([], None),
        ([event("blocked", 1), event("blocked", 2)], 1),
        # Another lo: landed since.
        ([event("blocked", 1, lo=6), event("blocked", 2)], 2),
        # Waiting or ready in between: the pump was there again.
        ([event("blocked", 1), event("waiting", 2), event("blocked", 3), event("blocked", 4)], 3),
        ([event("blocked", 1), event("ready", 2), event("blocked", 3)], 3),
        ([event("blocked", 1), event("ready", 2)], None),
    ],
)
def test_only_an_unbroken_time_counts_as_blocked(events: list[dict[str, Any]], since: int | None) -> None:
    assert plan.blocked_since(events, 7) == since


def test_a_start_other_than_the_lakes_is_refused(tmp_path: Path) -> None:
    replication = Replication.model_validate({"name": "demo", "lake": {"path": str(tmp_path)}})
    ctx = StageContext(replication, "test", lambda: pytest.fail("plan needs no Spark"))
    ctx.windows.record(WindowEvent("start", 40, 40, "done"))
    with pytest.raises(CheckpointConflict, match=r"start_ts 50 is asked for, and this lake starts after 40"):
        plan._start(ctx, None, 50)  # type: ignore[arg-type]
    for start_ts in (None, 40, plan.NOW):
        assert plan._start(ctx, None, start_ts) == 40  # type: ignore[arg-type]
