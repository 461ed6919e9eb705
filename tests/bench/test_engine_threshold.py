"""The size from which Spark is faster, from the costs that the bench measures."""

from __future__ import annotations

import pytest
from bench_engine import CostLine, find_threshold


def test_a_line_goes_through_two_sizes_and_no_cost_is_negative() -> None:
    assert CostLine.through([(10, 3.0), (110, 13.0)]) == CostLine(pytest.approx(2.0), pytest.approx(0.1))
    assert CostLine.through([(10, 0.5), (110, 13.0)]).fixed == 0.0
    assert CostLine.through([(10, 3.0), (110, 2.0)]) == CostLine(3.0, 0.0)


def test_spark_is_faster_from_where_its_cores_have_saved_the_cost_of_its_jobs() -> None:
    process, driver, workers = CostLine(0.2, 0.02), CostLine(0.1, 0.004), CostLine(1.7, 0.02)
    assert find_threshold(process, driver, workers, 2) == pytest.approx(1.6 / 0.006)
    assert find_threshold(process, driver, workers, 10) == pytest.approx(1.6 / 0.014)
    # One core never is; and a process that is dearer from the begin always is.
    assert find_threshold(process, driver, workers, 1) is None
    assert find_threshold(CostLine(9.0, 0.02), driver, workers, 2) == 0.0
