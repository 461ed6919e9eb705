"""The slopes that `make bench-scale` prints."""

from __future__ import annotations

import pytest
from scale_fit import Growth

SIZES = (10, 40, 160)


@pytest.mark.parametrize(
    ("cost", "slope"),
    [(lambda n: 3 * n, 1.0), (lambda n: 100 + 3 * n, 1.0), (lambda _: 7.0, 0.0), (lambda n: 1000 + n, 0.0),
     (lambda n: 5 + n * n, 2.0)],
)  # fmt: skip
def test_the_slope_is_that_of_the_part_that_grows(cost, slope):
    growth = Growth(SIZES, [float(cost(size)) for size in SIZES])
    assert growth.slope == pytest.approx(slope)
    assert growth.is_met is (slope <= 1.1)


def test_the_whole_slope_includes_the_fixed_part():
    assert Growth(SIZES, [3.0 * size for size in SIZES]).whole_slope == pytest.approx(1.0)
    assert 0 < Growth(SIZES, [100 + 3.0 * size for size in SIZES]).whole_slope < 1


def test_growth_that_begins_late_is_not_taken_for_flat():
    growth = Growth(SIZES, [10.0, 9.0, 90.0])
    assert growth.slope > 1.1
    assert growth.per_unit == pytest.approx(81 / 120)
