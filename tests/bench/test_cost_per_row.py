"""The CPU of each step of a row's processing stays below 1.5 times the recorded figure (DESIGN 7: the budget)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import cost_per_row
import pytest
from cost_per_row import BenchStep, compute_limit, read_recorded

# On a busy machine even the best of many repeats can be slow, so this is not a part of every change's tests.
pytestmark = [pytest.mark.long, pytest.mark.soak]

TRIES = 3
"""If others use the same processor, the best of more repeats is closer to the truth."""


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BenchStep]:
    return {step.name: step for step in cost_per_row.build_steps(str(tmp_path_factory.mktemp("steps")))}


def costs_too_much(step: BenchStep) -> bool:
    return all(cost_per_row.measure_ratio(step)[0] > compute_limit(step.name) for _ in range(TRIES))


def test_every_step_is_recorded(steps: dict[str, BenchStep]) -> None:
    assert set(steps) == set(read_recorded()), "run `make bench-record`"


@pytest.mark.parametrize("name", list(read_recorded()))
def test_step_costs_no_more_than_recorded(steps: dict[str, BenchStep], name: str) -> None:
    assert not costs_too_much(steps[name]), "find out why; if the higher cost is justified, run `make bench-record`"


def test_step_that_does_its_work_three_times_is_detected(steps: dict[str, BenchStep]) -> None:
    # Twice the work exceeds the limit only by a third, which a figure recorded on a busy machine may hide.
    by_cost = sorted(steps.values(), key=lambda one: read_recorded()[one.name])
    step = by_cost[len(by_cost) // 2]

    def thrice(run: Callable[[], object]) -> Callable[[], object]:
        return lambda: (run(), run(), run())

    assert costs_too_much(replace(step, run=thrice(step.run)))
