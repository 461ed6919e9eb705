"""What each of the last windows did when: a line a window, a bar a stage, in seconds since the window's first stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from binlake_airflow.pages.charts.scale import Scale, build_value_scale, choose_duration_step
from binlake_airflow.pages.charts.svg import Attributes, ChartFrame, build_tag, draw_frame, format_share, write_text

_ROW, _BAR, _BELOW, _AXIS = 24.0, 14.0, 22.0, 72.0
_NAMED = 0.09
"""A bar with at least this share of the width has its name inside."""


@dataclass(frozen=True)
class Bar:
    """One stage: its name, the class that colours it, when it began and how long it took (seconds), and the tip."""

    name: str
    kind: str
    start_s: float
    seconds: float
    tip: str


@dataclass(frozen=True)
class Lane:
    """One window."""

    name: str
    bars: Sequence[Bar]


def draw_gantt(name: str, title: str, text: str, lanes: Sequence[Lane]) -> Markup:
    """The chart `name` (its id) with `title` and the description `text`, the first lane on top."""
    ends = (bar.start_s + bar.seconds for lane in lanes for bar in lane.bars)
    across, ticks = build_value_scale(ends, choose_duration_step)
    height = _ROW * len(lanes) + _BELOW
    labels = [write_text(_AXIS - 8, _ROW * number + 16, lane.name, "end") for number, lane in enumerate(lanes)]
    parts = [
        *(_draw_rule(across.place(tick), height - _BELOW) for tick in ticks),
        *(_draw_bar(bar, number, across) for number, lane in enumerate(lanes) for bar in lane.bars),
        *(_write_tick(tick, across.place(tick), height - 5) for tick in ticks),
    ]
    return draw_frame(ChartFrame(name, title, text, _AXIS, height), labels, parts)


def _draw_rule(share: float, height: float) -> Markup:
    x = format_share(share)
    return build_tag("line", {"class": "rule", "x1": x, "x2": x, "y1": "0", "y2": height})


def _draw_bar(bar: Bar, number: int, across: Scale) -> Markup:
    start, end = across.place(bar.start_s), across.place(bar.start_s + max(bar.seconds, 0.0))
    y = _ROW * number + (_ROW - _BAR) / 2
    # A stage of a few milliseconds stays visible by its outline.
    box: Attributes = {"class": f"bar {bar.kind}", "x": format_share(start), "y": y, "height": _BAR, "rx": 2,
           "width": format_share(end - start)}  # fmt: skip
    inside = end - start >= _NAMED
    # On a phone a name may be longer than its bar: what does not fit is cut.
    frame: Attributes = {**box, "class": "inside"}
    name = build_tag("svg", frame, build_tag("text", {"class": "name", "x": 6, "y": 11}, bar.name))
    parts = [build_tag("title", {}, bar.tip), build_tag("rect", box), *([name] if inside else [])]
    return build_tag("g", {}, *parts)


def _write_tick(tick: float, share: float, y: float) -> Markup:
    anchor = "start" if share < 0.04 else "end" if share > 0.96 else "middle"
    return write_text(format_share(share), y, f"{tick:g} s", anchor)
