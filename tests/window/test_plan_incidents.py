"""The plan stage reports pumps that saw a late commit, in its log, its result, and the table `window`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.live import LiveSource
from support.pump_calls import write_binlog

from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.stages import plan
from binlake.wire import build


def no_spark() -> None:
    raise AssertionError("plan needs no Spark")


@pytest.mark.long
def test_new_late_commits_are_reported_once_with_the_pumps_name(tmp_path: Path) -> None:
    #
    with LiveSource(tmp_path) as live:
        live.settle()
        ctx = StageContext(live.replication(), "run1", no_spark)  # type: ignore[arg-type]
        assert "incidents" not in plan.run(ctx).detail
        start, commit_ts = live.pd.fetch_ts(), live.pd.fetch_ts()
        live.settle()
        service = live.pumps["pump2"].service
        late = build.build_commit(build.build_prewrite(start, b"k", b"v"), commit_ts)
        stored = write_binlog(service, live.driver.cluster_id, late.SerializeToString())
        assert stored is not None
        stored.result(10)
        live.settle()
        assert service.build_info().late_commits == 1
        told = plan.run(ctx).detail["incidents"]
        assert told == "pump2: 1 late and 0 early commits since its start"
        assert "incidents" not in plan.run(ctx).detail
        (event,) = ctx.windows.read_events(stage="incident")
        assert json.loads(event["detail"])["pumps"]["pump2"]["late_commits"] == 1
        assert event["run_id"] == "run1"
