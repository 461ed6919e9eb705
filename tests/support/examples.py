"""How many examples are drawn: all that a test asks for, in `make test` a quarter, in `make test-quick` a fifth."""

from __future__ import annotations

_LEAST = 5
_share = 1


def draw_share(share: int) -> None:
    """From now on one of `share` examples; before test modules are imported."""
    global _share
    _share = share


def examples(asked: int) -> int:
    """The share of `asked` that this run has time for; a few are always drawn."""
    return max(min(_LEAST, asked), asked // _share)
