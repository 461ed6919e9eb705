"""The pump cluster under all kinds of faults, each run from one seed (docs/understand/simulator.md)."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import pytest
from support.examples import spread

from simulator.scenarios import SCENARIOS, shape_of
from simulator.world import run

pytestmark = pytest.mark.long

PARTS, SEEDS = 2, 16
_TESTS = Path(__file__).resolve().parents[1]
# Seeds for each single kind of fault: in `make test`, in `make soak`.
_SCENARIO_SEEDS, _SOAKED_SEEDS = 1, 100


def failures(seeds: range, scenario: str = "") -> list[str]:
    """The failed invariants, each with the line that replays its run."""
    reports = [run(seed, shape_of(seed, scenario)) for seed in seeds]
    return [report.told(scenario) for report in reports if report.failure is not None]


@pytest.mark.parametrize("part", range(PARTS))
def test_no_binlog_is_lost_doubled_or_invented_under_random_faults(part: int) -> None:
    # DESIGN 3.1 to DESIGN 3.4; S0-16, S0-48, S0-57
    failed = failures(range(part * SEEDS // PARTS, (part + 1) * SEEDS // PARTS))
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("name", spread(list(SCENARIOS), least=8))
def test_each_kind_of_fault_alone_breaks_no_invariant(name: str) -> None:
    failed = failures(range(_SCENARIO_SEEDS), name)
    assert not failed, "\n".join(failed)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SCENARIOS)
def test_many_more_seeds_of_each_kind_of_fault_break_no_invariant(name: str) -> None:
    failed = failures(range(_SCENARIO_SEEDS, _SOAKED_SEEDS), name)
    assert not failed, "\n".join(failed)


@pytest.mark.soak
def test_a_seed_gives_the_same_run_in_every_process() -> None:
    seed = 7
    outputs = {
        subprocess.run(
            [sys.executable, "-m", "simulator", str(seed), "--scenario", "members"],
            env={**os.environ, "PYTHONHASHSEED": salt, "PYTHONPATH": f"{_TESTS.parent}{os.pathsep}{_TESTS}"},
            capture_output=True, text=True, check=True,
        ).stdout.rpartition("steps,")[0]
        for salt in ("1", "2")
    }  # fmt: skip
    assert len(outputs) == 1
    assert "serves" in outputs.pop()


@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
def test_thousands_of_seeds_break_no_invariant() -> None:
    first, count = int(os.environ.get("SIMULATOR_SEED", 1_000)), int(os.environ.get("SIMULATOR_SEEDS", 4_000))
    failed: list[str] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        parts = [
            pool.submit(failures, range(at, min(at + 25, first + count))) for at in range(first, first + count, 25)
        ]
        for part in as_completed(parts):
            failed += part.result()
            print("\n".join(part.result()), end="", flush=True)
    assert not failed, "\n".join(failed)
