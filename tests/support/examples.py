"""How many examples are drawn: all that a test asks for, in `make test` a quarter, in `make test-quick` a fifth."""

from __future__ import annotations

import pytest
from _pytest.mark import ParameterSet

_LEAST = 5
_share = 1


def draw_share(share: int) -> None:
    """From now on one of `share` examples; before test modules are imported."""
    global _share
    _share = share


def examples(asked: int) -> int:
    """The share of `asked` that this run has time for; a few are always drawn."""
    return max(min(_LEAST, asked), asked // _share)


def seeds(asked: int) -> list[ParameterSet]:
    """The seeds of a test that draws by itself: the share of `asked` that this run has time for, two at least."""
    return [pytest.param(seed, marks=pytest.mark.drawn) for seed in range(max(min(2, asked), asked // _share))]
