"""The CPU of a process, divided among stages that run side by side in it."""

from __future__ import annotations

from binlake.common.process import CPU, CpuMeter


class _Clock:
    """CPU seconds that a test spends."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


def test_open_shares_get_equal_parts_and_all_parts_are_what_was_spent() -> None:
    clock = _Clock()
    meter = CpuMeter(clock)
    clock.spend(50)
    with meter.begin() as first:
        clock.spend(1)
        with meter.begin() as second, meter.begin() as third:
            clock.spend(3)
            assert (second.take_s(), third.take_s()) == (1.0, 1.0)
            clock.spend(6)
        clock.spend(2)
        assert (first.take_s(), second.take_s(), third.take_s()) == (1 + 1 + 2 + 2, 2.0, 2.0)
    clock.spend(70)
    with meter.begin() as later:
        clock.spend(4)
    assert (first.take_s(), later.take_s()) == (0.0, 4.0)


def test_what_other_processes_spent_for_a_share_counts_for_it_alone() -> None:
    meter = CpuMeter(_Clock())
    with meter.begin() as one, meter.begin() as other:
        one.add(5.0)
        assert (one.take_s(), other.take_s()) == (5.0, 0.0)


def test_the_meter_of_a_process_counts_all_its_threads() -> None:
    with CPU.begin() as share:
        spent = 0.0
        while spent < 0.02:
            spent += share.take_s()
