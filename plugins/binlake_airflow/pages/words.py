"""How states, times and sizes are said on a page: in words, as a person would; the exact value is one hover away.

Filters and functions of the templates. Everything is text: the templates escape it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from binlake.common.terminal import format_duration, format_pace
from binlake.health.survey import ORDER
from binlake.pipeline import label_sink, parse_feed_sink

_TONES = {
    "running": "good", "online": "good", "normal": "good", "reading": "good", "finished": "good",
    "behind": "warn", "attention": "warn", "stopped": "warn", "loading": "warn", "closing": "warn",
    "failing": "bad", "blocked": "bad", "unreachable": "bad", "standing": "bad", "unknown": "bad", "error": "bad",
    "failed": "bad", "silent": "bad",
    "paused": "held", "pausing": "held", "offline": "held", "empty": "held", "removed": "held",
}  # fmt: skip
_SOON_S = 2.0
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP = 1024.0
_GREAT = 1e12
_FOUR_DIGITS = 999.5


def choose_tone(state: str) -> str:
    """How serious a state is: good, warn, bad or held. It picks a colour and an icon beside the word."""
    return _TONES.get(state, "warn")


def format_behind(position: Mapping[str, Any] | None) -> str:
    """How far a position is behind the source: "26 h behind"."""
    if position is None:
        return "nothing yet"
    lag_s = position["lag_seconds"]
    if lag_s is None:
        return "lag unknown"
    return "up to date" if lag_s < _SOON_S else f"{format_duration(lag_s)} behind"


def format_ago(moment: str, now: datetime) -> str:
    """How long ago an ISO 8601 time was at `now`: "3 min ago"."""
    seconds = (now - _parse(moment)).total_seconds()
    if seconds <= -_SOON_S:
        return f"in {format_duration(-seconds)}"
    return "just now" if seconds < _SOON_S else f"{format_duration(seconds)} ago"


def shift_to_source(now: datetime, view: Mapping[str, Any]) -> datetime:
    """`now` by the clock that gives a replication's commit_ts."""
    return now + timedelta(milliseconds=view.get("skew_ms") or 0)


def format_since(moment: str, now: datetime) -> str:
    """How long something has gone on at `now`: "3 min"."""
    return format_duration((now - _parse(moment)).total_seconds())


def format_clock(moment: str) -> str:
    """An ISO 8601 time in UTC, as people write it."""
    return f"{moment.removesuffix('+00:00').replace('T', ' ')} UTC"


def format_size(size: float) -> str:
    """Bytes in the greatest unit that leaves at least one: "3.4 MiB"."""
    for unit in _UNITS[:-1]:
        if size < _STEP:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= _STEP
    return f"{size:.1f} {_UNITS[-1]}"


def format_count(count: float) -> str:
    """A count or a rate in at most four digits: "12", "3.4 k", "1.2 M"."""
    if count >= _GREAT:
        return f"{count:.1e}"
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            share = count / size
            return f"{share:.3g} {unit}" if share < _FOUR_DIGITS else f"{share:.0f} {unit}"
    return f"{count:.0f}" if count >= 10 or count == int(count) else f"{count:.2g}"


def format_plural(count: int, noun: str) -> str:
    """A count with its noun: "1 row", "4,000 rows"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def sort_worst_first(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The replications of the list, those that need a person first, then by name."""
    return sorted(rows, key=lambda row: (ORDER.index(find_state(row)), row["name"]))


def find_state(row: Mapping[str, Any]) -> str:
    """The state of a replication of the list: `unknown` if its lake cannot be read."""
    return "unknown" if row.get("problem") else str(row["state"])


def summarise(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """How many replications are in which state, the worst first."""
    states = [find_state(row) for row in rows]
    return [(state, states.count(state)) for state in ORDER if state in states]


def format_spent(window: Mapping[str, Any]) -> str:
    """Seconds from the beginning of a window's first stage to the end of its last one."""
    stages = window["stages"]
    return f"{(max(s['to_ms'] for s in stages) - min(s['from_ms'] for s in stages)) / 1000:,.1f}"


def name_place(sink: str) -> str:
    """What a page calls a sink."""
    label = label_sink(sink)
    return label[0].upper() + label[1:]


def _parse(moment: str) -> datetime:
    parsed = datetime.fromisoformat(moment)
    return parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)


FILTERS = {
    "tone": choose_tone, "behind": format_behind, "ago": format_ago, "since": format_since, "clock": format_clock,
    "size": format_size, "count_short": format_count, "plural": format_plural, "pace": format_pace,
    "worst_first": sort_worst_first,
    "state_of": find_state, "summary": summarise,
    "spent": format_spent, "at_source": shift_to_source, "place": name_place, "feed": parse_feed_sink,
}  # fmt: skip
"""By the name that a template uses."""
