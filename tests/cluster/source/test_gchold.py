"""TiKV's GC is held below a snapshot only while it is read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fake_tikv import FakeTikv

from binlake.cluster.source.regions import hold_gc
from binlake.config.servers import SourceSection
from binlake.errors import LostRange, SourceUnavailable
from binlake.pump_service.pd import PlacementDriver

BASE = 470_614_289_491_165_188


@pytest.fixture
def tikv() -> Iterator[FakeTikv]:
    found = FakeTikv(safe_point=BASE - 1000)
    yield found
    found.stop()


def source(address: str) -> SourceSection:
    return SourceSection.model_validate({"pd-urls": [f"http://{address}"], "timeout-s": 20})


def test_gc_stays_below_a_snapshot_while_it_is_read(tikv: FakeTikv) -> None:  # S4-24
    with hold_gc(source(tikv.start_quickly()), "binlake-load-a", BASE):
        tikv.run_gc(BASE + 5000)
        assert tikv.safe_point == BASE
    assert tikv.services == {}
    tikv.run_gc(BASE + 5000)
    assert tikv.safe_point == BASE + 5000


def test_safe_point_is_renewed_while_it_is_held(tikv: FakeTikv) -> None:
    held = tikv.start_quickly()
    renewed, count = threading.Event(), 0

    class Counted(dict[bytes, int]):
        def __setitem__(self, service: bytes, ts: int) -> None:
            nonlocal count
            count += 1
            super().__setitem__(service, ts)
            if count > 2:
                renewed.set()

    tikv.services = Counted()
    with hold_gc(source(held), "binlake-load-a", BASE, renew_s=0.01):
        assert renewed.wait(60)


def test_snapshot_that_gc_has_passed_is_refused(tikv: FakeTikv) -> None:
    tikv.safe_point, where = BASE + 1, source(tikv.start_quickly())
    with pytest.raises(LostRange, match=r"GC has passed.*tidb_gc_life_time"), hold_gc(where, "binlake-load-a", BASE):
        raise AssertionError("it is not held")


def test_placement_driver_without_tikv_needs_no_hold(tmp_path: Path) -> None:
    driver = PlacementDriver(tmp_path, cluster_id=7).start()
    where = source(driver.url.removeprefix("http://"))
    try:
        with hold_gc(where, "binlake-load-a", BASE):
            pass
    finally:
        driver.stop()
    with pytest.raises(SourceUnavailable), hold_gc(where, "binlake-load-a", BASE):
        raise AssertionError("nobody answered")
