"""plan counts only uninterrupted blocked time, and never ignores a requested start."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.mariadb import MariaDb, execute

from binlake import tso
from binlake.config import Replication
from binlake.errors import CheckpointConflict, ConfigError
from binlake.lake.windowlog import WindowEvent
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.stages import plan


def event(state: str, at_ms: int, lo: int = 7) -> dict[str, Any]:
    return {"lo": lo, "state": state, "at_ms": at_ms}


@pytest.mark.parametrize(
    ("events", "since"),
    [
        ([], None),
        ([event("blocked", 1), event("blocked", 2)], 1),
        # Another lo: windows were landed in between.
        ([event("blocked", 1, lo=6), event("blocked", 2)], 2),
        # Waiting or ready in between: the pump was back.
        ([event("blocked", 1), event("waiting", 2), event("blocked", 3), event("blocked", 4)], 3),
        ([event("blocked", 1), event("ready", 2), event("blocked", 3)], 3),
        ([event("blocked", 1), event("ready", 2)], None),
    ],
    ids=["no events", "blocked twice", "another lo", "waiting in between", "ready in between", "ready at last"],
)
def test_only_uninterrupted_time_counts_as_blocked(events: list[dict[str, Any]], since: int | None) -> None:
    assert plan.find_blocked_since(events, 7) == since


def test_start_other_than_the_lakes_is_refused(tmp_path: Path) -> None:
    replication = Replication.model_validate({"name": "demo", "lake": {"path": str(tmp_path)}})
    ctx = StageContext(replication, "test", lambda: pytest.fail("plan needs no Spark"))
    ctx.windows.record(WindowEvent("start", 40, 40, "done"))
    with pytest.raises(CheckpointConflict, match=r"start_ts 50 is requested, but this lake starts after 40"):
        plan._start(ctx, None, 50)  # type: ignore[arg-type]
    for start_ts in (None, 40, plan.NOW):
        assert plan._start(ctx, None, start_ts) == 40  # type: ignore[arg-type]


@pytest.mark.parametrize("skew_ms", [-7_200_000, 0, 7_200_000])
def test_skew_is_of_the_last_timestamp(skew_ms: int) -> None:
    """By how much PD is ahead of this machine."""
    pd: Any = SimpleNamespace(fetch_ts=lambda _count: tso.compose(int(time.time() * 1000) + skew_ms, 5))
    clock = plan.MeasuredClock(pd)
    assert clock.skew_ms is None
    ts = clock.fetch_ts()
    assert clock.skew_ms == pytest.approx(skew_ms, abs=500)
    assert tso.extract_logical(ts) == 5


def first_start(folder: Path, tso: int, start_ts: int | None = None, **more: Any) -> int:
    """Where a new replication starts, in a cluster 77 whose TSO is at `tso`; checked twice for the same answer."""
    replication = Replication.model_validate({"name": "demo", "lake": {"path": str(folder)}, **more})
    ctx = StageContext(replication, "test", lambda: pytest.fail("plan needs no Spark"))
    cluster: Any = SimpleNamespace(cluster_id=77, pd=SimpleNamespace(fetch_ts=lambda: tso))
    found = plan._start(ctx, cluster, start_ts)
    cluster.pd.fetch_ts = lambda: pytest.fail("the recorded start must be used")
    assert plan._start(ctx, cluster, None) == found
    return found


@pytest.mark.parametrize(
    ("option", "asked", "lo"), [("5", None, 5), ("-1", None, 900), ("0", None, 0), ("5", 7, 7), ("5", plan.NOW, 900)]
)
def test_new_replication_starts_after_initial_commit_ts(
    tmp_path: Path, option: str, asked: int | None, lo: int
) -> None:  # S0-62
    assert first_start(tmp_path, 900, asked, **{"initial-commit-ts": option}) == lo


def test_initial_commit_ts_other_than_the_lakes_is_refused_by_name(tmp_path: Path) -> None:
    first_start(tmp_path, 900, **{"initial-commit-ts": "5"})

    def asked(option: str) -> StageContext:
        raw = {"name": "demo", "lake": {"path": str(tmp_path)}, "initial-commit-ts": option}
        return StageContext(Replication.model_validate(raw), "test", lambda: pytest.fail("plan needs no Spark"))

    for same in ("5", "-1"):
        plan.require_same_start(asked(same))
    with pytest.raises(
        ConfigError, match=r"initial-commit-ts is 6.*started after 5.*with initial-commit-ts 5.*set it back to"
    ):
        plan.run(asked("6"))
    # A lake of an older version did not record it.
    ctx = asked("6")
    ctx = replace(ctx, replication=ctx.replication.model_copy(update={"name": "older"}))
    ctx.windows.record(WindowEvent("start", 8, 8, "done"))
    with capture_logs() as logs:
        plan.require_same_start(ctx)
    assert [line["event"] for line in logs] == ["initial_commit_ts_not_in_force"]


@pytest.mark.mariadb
def test_target_checkpoint_overrides_initial_commit_ts_and_is_reported(
    tmp_path: Path, empty_mariadb: MariaDb
) -> None:  # S0-62 S0-63: a real drainer left this row
    execute(
        empty_mariadb,
        "CREATE DATABASE tidb_binlog",
        "CREATE TABLE tidb_binlog.checkpoint (clusterID BIGINT UNSIGNED PRIMARY KEY, checkPoint MEDIUMTEXT)",
        """INSERT INTO tidb_binlog.checkpoint VALUES (77, '{"consistent":true,"commitTS":8,"ts-map":{}}')""",
    )
    target = {"db-type": "mariadb", "host": empty_mariadb.host, "port": empty_mariadb.port}
    with capture_logs() as logs:
        assert first_start(tmp_path, 900, **{"initial-commit-ts": "5", "target": target}) == 8
    assert {"event": "initial_commit_ts_ignored", "checkpoint": "8", "log_level": "info"} in logs
    with pytest.raises(CheckpointConflict, match="start_ts 5 is requested, but the target's checkpoint is 8"):
        first_start(tmp_path / "other", 900, 5, target=target)
