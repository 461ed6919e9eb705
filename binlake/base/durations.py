"""Durations in plain words, short enough for a cell of a table."""

from __future__ import annotations

_UNITS = ((86_400, "d", 3), (3_600, "h", 2), (60, "min", 2))
"""Seconds of a unit, its name, and from how many of it on it is used."""


def format_duration(seconds: float) -> str:
    """`seconds` in the greatest unit of which there are at least two or three: "4 s", "26 h"."""
    for size, unit, least in _UNITS:
        if seconds >= size * least:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def format_pace(rows_per_second: float, seconds_left: float | None) -> str:
    """`, 1,200 rows/s, 3 min left`: what follows the state of a full load; "" if neither is known."""
    pace = f", {rows_per_second:,.0f} rows/s" if rows_per_second else ""
    return pace + (f", {format_duration(seconds_left)} left" if seconds_left else "")
