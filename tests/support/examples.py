"""How many random examples a test runs: all that it wants, a sixth in `make test`, a fifth in `make test-quick`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

_share = 1


def draw_share(share: int) -> None:
    """Run only one of `share` examples from now on; call it before test modules are imported."""
    global _share
    _share = share


def examples(asked: int, least: int = 5) -> int:
    """The share of `asked` examples that this run has time for, but at least `least`."""
    return max(min(least, asked), asked // _share)


def seeds(asked: int) -> list[Any]:
    """Parameters of a test with its own random generator: its seeds, at least two."""
    return [pytest.param(seed, marks=pytest.mark.drawn) for seed in range(examples(asked, least=2))]


def spread(cases: Sequence[Any], least: int) -> list[Any]:
    """Parameters of a test: this run's share of `cases`, evenly spread over them, but at least `least`."""
    count = examples(len(cases), least)
    chosen = [cases[n * len(cases) // count] for n in range(count)]
    return [pytest.param(*case, marks=pytest.mark.drawn) if isinstance(case, tuple)
            else pytest.param(case, marks=pytest.mark.drawn) for case in chosen]  # fmt: skip
