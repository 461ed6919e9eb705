"""What a window is expected to have decides how many ranges of it tasks pull, whoever tells it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import pytest

from binlake.cluster.pumpclient import RangeSize
from binlake.spark_jobs.job.context import Bounds
from binlake.spark_jobs.land.pulling import MOST_RANGES, divide, expect
from binlake.spark_jobs.land.pump_source import PumpPull
from binlake.window.manifest import WindowManifest

LAST = WindowManifest("r", 1, 0, 100, "", (), 5, 0, 0, 1_000, 1, "-")


class Pumps:
    """Stands for PumpPull: what each pump tells."""

    def __init__(self, lo: int, hi: int, *told: RangeSize | None) -> None:
        self.lo, self.hi, self._told = lo, hi, told
        self.asked: list[int] = []

    @property
    def pumps(self) -> list[Any]:
        return [("p", "host:1")] * len(self._told)

    def measure_pump(self, place: int, part_bytes: int) -> RangeSize | None:
        self.asked.append(part_bytes)
        return self._told[place]


def _expect(pumps: Pumps, last: WindowManifest | None = LAST) -> tuple[int | None, list[int]]:
    found = expect(cast("PumpPull", pumps), last, 400)
    assert all(before.hi == after.lo for before, after in pairwise(found.ranges))
    assert (found.ranges[0].lo, found.ranges[-1].hi) == (pumps.lo, pumps.hi)
    return found.bytes, [one.hi for one in found.ranges]


def test_pumps_tell_how_much_there_is_and_the_fullest_where_to_divide() -> None:
    pumps = Pumps(100, 900, RangeSize(1_000, (700, 800)), RangeSize(100, (500,)))
    assert _expect(pumps) == (1_100, [700, 800, 900])
    assert pumps.asked == [200, 200]
    # Two cores work at least.
    assert _expect(Pumps(100, 900, RangeSize(10, ()))) == (10, [500, 900])
    # What lies outside, or twice, makes no range.
    assert _expect(Pumps(100, 900, RangeSize(10, (100, 200, 200, 900)))) == (10, [200, 900])


def test_a_window_has_few_ranges_however_many_cuts_there_are() -> None:
    _, ends = _expect(Pumps(0, 10_000, RangeSize(1, tuple(range(1, 256)))))
    assert len(ends) == MOST_RANGES
    assert ends[:2] == [1, 5]
    assert max(after - before for before, after in pairwise(ends[:-1])) <= 5


@pytest.mark.parametrize("told", [(None,), (RangeSize(7, (150,)), None)])
def test_of_pumps_that_cannot_tell_the_last_windows_density_is_assumed(told: tuple[RangeSize | None, ...]) -> None:
    def count(last: WindowManifest | None, hi: int) -> tuple[int | None, int]:
        size, ends = _expect(Pumps(100, hi, *told), last)
        return size, len(ends)

    # Ten bytes a tick, 400 a task.
    found = [count(LAST, hi) for hi in (102, 180, 221, 300, 420, 421, 9_999)]
    assert found == [(20, 2), (800, 2), (1_210, 4), (2_000, 5), (3_200, 8), (3_210, 8), (98_990, 8)]
    assert count(None, 200) == (None, 8)
    assert count(replace(LAST, hi=0), 102) == (2_000, 2)
    assert [len(divide(Bounds(0, hi), 8)) for hi in (1, 5, 8, 100)] == [1, 5, 8, 8]
