"""How many examples Hypothesis draws: all that a test asks for, in a quick run a share (`make test-quick`)."""

from __future__ import annotations

_QUICK_SHARE = 5
_LEAST = 5
_quick = False


def draw_few() -> None:
    """From now on; before test modules are imported."""
    global _quick
    _quick = True


def examples(asked: int) -> int:
    """`asked`, or the share of it that a quick run has time for."""
    return max(_LEAST, asked // _QUICK_SHARE) if _quick else asked
