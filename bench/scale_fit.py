"""How a cost grows with a size: the exponent of the part that grows, from costs at 1x, 4x and 16x."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

STEP = 4
FLAT = 1.25
"""A cost that is at most this many times as high at 16x counts as flat: what grows of it is in the noise."""
AIM = 1.1


@dataclass(frozen=True)
class Growth:
    """`costs` at 1x, 4x, 16x of the least of `sizes`."""

    sizes: Sequence[int]
    costs: Sequence[float]

    @property
    def slope(self) -> float:
        """The exponent with which costs above the fixed part grow: 1 = linear; 0 = flat."""
        first, second, third = self.costs
        if third <= FLAT * first:
            return 0.0
        less, more = second - first, third - second
        # Without growth in the first step, all of the second one counts, as if there were no fixed part.
        grown = more / less if less > 0 else third / first
        return math.log(grown, STEP) if grown > 0 else 0.0

    @property
    def whole_slope(self) -> float:
        """The exponent of the whole costs, fixed part included: a line through their logarithms."""
        xs, ys = [math.log(size) for size in self.sizes], [math.log(max(cost, 1e-9)) for cost in self.costs]
        x, y = sum(xs) / len(xs), sum(ys) / len(ys)
        return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)

    @property
    def per_unit(self) -> float:
        """What one more costs, from the last step."""
        return (self.costs[-1] - self.costs[-2]) / (self.sizes[-1] - self.sizes[-2])

    @property
    def is_met(self) -> bool:
        """True if the aim is met."""
        return self.slope <= AIM
