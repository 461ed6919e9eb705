"""JSON of our own as a browser reads it: which of its numbers it would round (hazards R-46)."""

from __future__ import annotations

from typing import Any

EXACT = 1 << 53
"""The greatest integer below which JavaScript tells every one from the next."""


def rounded(value: Any, place: str = "$") -> list[str]:
    """Where in `value` a number stands that is above EXACT: a commit_ts that is no text."""
    if isinstance(value, dict):
        return [found for key, inner in value.items() for found in rounded(inner, f"{place}.{key}")]
    if isinstance(value, list | tuple):
        return [found for at, inner in enumerate(value) for found in rounded(inner, f"{place}[{at}]")]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return [f"{place} = {value}"] if is_number and abs(value) > EXACT else []
