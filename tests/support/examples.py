"""How many examples are drawn: all that a test asks for, a quarter of them in `make test`, a fifth in `make test-quick`."""

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
