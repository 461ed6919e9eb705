"""Check Binlake's own JSON for numbers that a browser would round (hazards R-46)."""

from __future__ import annotations

from typing import Any

EXACT = 1 << 53
"""JavaScript represents every integer up to this one exactly."""


def find_rounded_numbers(value: Any, place: str = "$") -> list[str]:
    """Paths in `value` of numbers beyond EXACT, such as a commit_ts that is not a string."""
    if isinstance(value, dict):
        return [found for key, inner in value.items() for found in find_rounded_numbers(inner, f"{place}.{key}")]
    if isinstance(value, list | tuple):
        return [found for at, inner in enumerate(value) for found in find_rounded_numbers(inner, f"{place}[{at}]")]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return [f"{place} = {value}"] if is_number and abs(value) > EXACT else []
