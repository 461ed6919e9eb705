"""How far a commit_ts is behind is measured by the clock that gave it: PD's, which need not be this machine's."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest
from support.fakefeeder import FakeFeeder
from support.replication_files import write_replication

from binlake import tso
from binlake.cluster.placement import PdClient
from binlake.config import load_replication
from binlake.errors import BinlakeError
from binlake.health.surroundings import build_nodes_view
from binlake.health.survey import Orchestration, read_health
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.pump_service.pd import PlacementDriver

DAYS_MS = 8 * 86_400_000


def read_pd_ms() -> int:
    """The time of a PD that is eight days behind this machine."""
    return time.time_ns() // 1_000_000 - DAYS_MS


def test_lag_is_measured_by_pds_clock(tmp_path: Path) -> None:
    feeder = FakeFeeder()
    with PlacementDriver(tmp_path / "pd", cluster_id=7, now_ms=read_pd_ms) as driver, feeder.port:
        source = f'pd-urls = "{driver.url}"\nstatus-url = "{feeder.port.url}"'
        replication = load_replication(write_replication(tmp_path, "old", source=source, target=None), secrets=False)
        log, hi = WindowLog(LakePaths.of(replication)), tso.compose(read_pd_ms() - 4000)
        for stage in ("land", "mirror"):
            log.record(WindowEvent(stage, hi - 1, hi, "done", 3, 0.5, "r"))
        status, nodes = read_health(replication, log, Orchestration())
    assert abs(nodes["skew_ms"] + DAYS_MS) < 2000
    assert 3.0 < status["landed"]["lag_seconds"] < 15.0
    assert (status["state"], status["problems"]) == ("running", [])


def exhaust(pd: PdClient, count: int) -> None:
    """Take timestamps, `count` at a time, until there are none."""
    with pytest.raises(BinlakeError):  # noqa: PT012 - which call is the last is not known
        while True:
            pd.fetch_ts(count)


@pytest.mark.long
def test_held_clock_that_has_no_timestamp_left_delays_a_page_once(tmp_path: Path) -> None:
    held = tso.compose(read_pd_ms())
    with PlacementDriver(tmp_path / "pd", cluster_id=7, led_from=held) as driver:
        with closing(PdClient([driver.url], timeout_s=0.3)) as pd:
            for count in (1 << 14, 1 << 7, 1):
                exhaust(pd, count)
        replication = load_replication(
            write_replication(tmp_path, "held", source=f'pd-urls = "{driver.url}"', target=None), secrets=False
        )
        began = time.monotonic()
        first = build_nodes_view(replication)
        between = time.monotonic()
        second = build_nodes_view(replication)
        after = time.monotonic()
    assert (first["reachable"], first["skew_ms"], second["skew_ms"]) == (True, 0, 0)
    # It waited for the clock once, then not again for a while.
    assert between - began > after - between
    assert after - between < 1.0
