"""What stages derive, for the next stage of the same process: by stage and window, for a few windows at a time."""

from __future__ import annotations

import threading

from binlake.target import Position
from spark_jobs.job.handover import Handover
from spark_jobs.job.results import Bounds

FIRST, SECOND = Bounds(0, 10), Bounds(10, 20)


def test_each_reader_gets_what_was_derived_last_of_the_window() -> None:
    handover = Handover()
    handover.put("merge", FIRST, "rows")
    handover.put("change", FIRST, "changes")
    assert [handover.find("merge", FIRST) for _ in range(2)] == ["rows", "rows"]
    assert handover.find("merge", SECOND) is None
    handover.put("merge", FIRST, "derived again")
    assert (handover.find("merge", FIRST), handover.find("change", FIRST)) == ("derived again", "changes")


def test_windows_that_are_finished_are_discarded() -> None:
    handover = Handover()
    for bounds in (FIRST, SECOND):
        handover.put("merge", bounds, bounds)
    handover.drop(10)
    assert (handover.find("merge", FIRST), handover.find("merge", SECOND)) == (None, SECOND)


def test_only_the_newest_windows_of_a_stage_are_held() -> None:
    handover, windows = Handover(), [Bounds(lo, lo + 10) for lo in range(0, 50, 10)]
    for bounds in windows:
        handover.put("merge", bounds, bounds)
    assert [handover.find("merge", bounds) for bounds in windows] == [None, None, *windows[2:]]


def test_results_derived_ahead_count_only_at_the_assumed_position() -> None:
    handover, position = Handover(), Position(10, None, 1 << 20)
    handover.put_ahead("compact", SECOND, position, "changes")
    handover.put_ahead("convert", SECOND, position, "statements")
    assert handover.take_ahead("compact", SECOND, position) == "changes"
    assert handover.take_ahead("compact", SECOND, position) is None
    assert handover.take_ahead("convert", SECOND, position) is None
    for bounds, there in ((FIRST, position), (SECOND, Position(11, None, 1 << 20))):
        handover.put_ahead("compact", SECOND, position, "changes")
        handover.put_ahead("convert", SECOND, position, "statements")
        assert handover.take_ahead("compact", bounds, there) is None
        # If the target is elsewhere, no result of any stage counts.
        assert handover.take_ahead("convert", SECOND, position) is None


def test_sinks_read_at_once() -> None:
    handover, found, at_once = Handover(), [], threading.Barrier(4)

    def read() -> None:
        at_once.wait()
        found.append(handover.find("merge", FIRST))

    handover.put("merge", FIRST, "rows")
    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["rows"] * 4
