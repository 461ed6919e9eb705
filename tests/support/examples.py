"""How many examples are drawn: all that a test asks for, in `make test` a quarter, in `make test-quick` a fifth."""

from __future__ import annotations

from typing import Any

import pytest

_share = 1


def draw_share(share: int) -> None:
    """From now on one of `share` examples; before test modules are imported."""
    global _share
    _share = share


def examples(asked: int, least: int = 5) -> int:
    """The share of `asked` that this run has time for; `least` are always drawn."""
    return max(min(least, asked), asked // _share)


def seeds(asked: int) -> list[Any]:
    """As parameters, the seeds of a test that draws by itself; two are always drawn."""
    return [pytest.param(seed, marks=pytest.mark.drawn) for seed in range(examples(asked, least=2))]
