"""`find_blocking_reason` tells what blocks the next window: it checks what plan checks, and changes nothing."""

from pathlib import Path

import pytest
from support.live import LiveSource
from support.windows import wait_until
from support.workload import integer

from binlake.cluster.placement import is_pd_reachable
from binlake.errors import SourceUnavailable
from binlake.lake.holdups import find_blocking_reason
from binlake.tso import to_datetime


@pytest.mark.long
def test_blocking_reason_is_that_of_plan_and_nothing_is_changed(tmp_path: Path) -> None:
    with LiveSource(tmp_path) as source:
        replication = source.replication()
        reached = source.settle()
        assert find_blocking_reason(replication, 0) == ""
        assert find_blocking_reason(replication, 0, reached) == ""
        later = reached + (3_600_000 << 18)
        assert f"stop_ts {later} is above the watermark" in find_blocking_reason(replication, 0, later)
        source.stop_pump("pump2")
        blocked = source.pd.fetch_ts()
        assert "pump2 since" in find_blocking_reason(replication, blocked)
        source.start_pump("pump2")
        source.settle(blocked + 1)
        assert find_blocking_reason(replication, blocked) == ""
        # U-01: names the transaction, and since when it is open.
        source.workload.create_database("d")
        source.workload.create_table("d", "t", [integer("id")], ["id"])
        begun = source.workload.begin().insert("d", "t", id=1)
        prewritten = begun.prewrite()
        stands = source.pd.fetch_ts()
        since = to_datetime(begun.start_ts).isoformat(timespec="seconds")
        held = f"held by the transaction of start_ts {begun.start_ts} ({since})"
        # Until the pumps have passed everything before the transaction, another reason is named.
        wait_until(lambda: held in find_blocking_reason(replication, stands))
        begun.commit(prewritten)
        source.settle(stands)
        assert find_blocking_reason(replication, stands) == ""
        assert is_pd_reachable(replication.source)
        assert not (tmp_path / "lake").exists()


@pytest.mark.long
def test_unreachable_pd_is_an_error(tmp_path: Path) -> None:  # S3-10
    with LiveSource(tmp_path, pumps=0) as source:
        replication = source.replication(source={"pd-urls": [source.driver.url], "timeout-s": 0.5})
    assert not is_pd_reachable(replication.source)
    with pytest.raises(SourceUnavailable):
        find_blocking_reason(replication, 0)
