"""Charts as inline SVG: pure functions from numbers to escaped markup; no number of any kind breaks one.

- Values over time: lines, or steps filled to the ground; DDL as marks; a table of the same numbers.
- What each of the last windows did when: a line a window, a bar a stage, in seconds since the window's first stage.
- Amounts by name as horizontal bars, the first on top: the name and the amount stand above each bar.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import Markup

from binlake_airflow.pages.drawing import (
    Attributes,
    ChartFrame,
    Scale,
    StepChooser,
    build_tag,
    build_value_scale,
    choose_duration_step,
    draw_frame,
    format_share,
    join_tags,
    list_time_ticks,
    write_text,
)

HEIGHT = 132.0
"""Pixels of the drawing, without the times below it."""
_TOP, _BELOW, _AXIS = 8.0, 22.0, 58.0
_UNITS = 1000.0
"""Width of the path's own coordinates, which the browser stretches to the width of the page."""


@dataclass(frozen=True)
class ChartSeries:
    """One line: its name, the class that colours it, and its points (Unix ms, value) in order of time."""

    name: str
    kind: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Mark:
    """A moment on the time line, such as a DDL, and what it was."""

    at_ms: float
    text: str


@dataclass(frozen=True)
class Axes:
    """The range of time (Unix ms) of a chart, how its values are written, and how its steps are chosen."""

    from_ms: float
    to_ms: float
    write: Callable[[float], str]
    choose_step: StepChooser


def draw_lines(
    name: str, title: str, text: str, series: Sequence[ChartSeries], axes: Axes, marks: Sequence[Mark] = (), *,
    filled: bool = False,
) -> Markup:  # fmt: skip
    """The chart `name` (its id) with `title` and the description `text`; `filled`: steps down to the ground."""
    across = Scale(axes.from_ms, axes.to_ms)
    up, ticks = build_value_scale((value for one in series for _, value in one.points), axes.choose_step)
    height = _TOP + HEIGHT + _BELOW
    labels = [write_text(_AXIS - 8, _place(up, tick) + 4, axes.write(tick), "end") for tick in ticks]
    paths = [_draw_path(one, across, up, filled=filled) for one in series if one.points]
    parts = [
        *(_draw_rule(_place(up, tick)) for tick in ticks),
        _stretch(paths),
        *(_draw_mark(mark, across) for mark in marks if axes.from_ms <= mark.at_ms <= axes.to_ms),
        *(_draw_end(one, across, up) for one in series if one.points),
        *_draw_tips(series, across, axes.write),
        *_write_times(axes, across),
    ]
    return draw_frame(ChartFrame(name, title, text, _AXIS, height), labels, parts)


def _place(up: Scale, value: float) -> float:
    return _TOP + HEIGHT * (1 - up.place(value))


def _draw_rule(y: float) -> Markup:
    return build_tag("line", {"class": "rule", "x1": "0", "x2": "100%", "y1": y, "y2": y})


def _stretch(paths: Sequence[Markup]) -> Markup:
    whole = _TOP + HEIGHT
    box: Attributes = {
        "viewBox": f"0 0 {_UNITS:.0f} {whole:.0f}",
        "preserveAspectRatio": "none",
        "width": "100%",
        "height": whole,
    }
    return build_tag("svg", box, *paths)


def _draw_path(one: ChartSeries, across: Scale, up: Scale, *, filled: bool) -> Markup:
    spots = [(_UNITS * across.place(at), _place(up, value)) for at, value in one.points]
    if not filled:
        line = "M" + "L".join(f"{x:.2f} {y:.2f}" for x, y in spots)
        return build_tag("path", {"class": f"line {one.kind}", "d": line})
    # A value holds for the time up to its moment, since the moment before.
    (x, y), *rest = spots
    steps = f"M{x:.2f} {_TOP + HEIGHT:.2f}V{y:.2f}" + "".join(f"V{y:.2f}H{x:.2f}" for x, y in rest)
    return build_tag("path", {"class": f"area {one.kind}", "d": f"{steps}V{_TOP + HEIGHT:.2f}Z"})


def _draw_end(one: ChartSeries, across: Scale, up: Scale) -> Markup:
    at, value = one.points[-1]
    return build_tag("circle", {"class": f"end {one.kind}", "cx": format_share(across.place(at)),
                               "cy": _place(up, value), "r": 3})  # fmt: skip


def _draw_mark(mark: Mark, across: Scale) -> Markup:
    x = format_share(across.place(mark.at_ms))
    line: Attributes = {"class": "mark", "x1": x, "x2": x, "y1": _TOP, "y2": _TOP + HEIGHT}
    flag: Attributes = {"class": "flag", "cx": x, "cy": _TOP, "r": 4}
    return build_tag("g", {}, build_tag("line", line), build_tag("circle", flag), build_tag("title", {}, mark.text))


def _draw_tips(series: Sequence[ChartSeries], across: Scale, write: Callable[[float], str]) -> list[Markup]:
    """An invisible column for each moment, with its values as the tip; marks stay reachable above the columns."""
    moments = sorted({at for one in series for at, _ in one.points})
    places = [across.place(at) for at in moments]
    edges = [0.0, *((a + b) / 2 for a, b in itertools.pairwise(places)), 1.0]
    said = [dict(one.points) for one in series]
    tips = []
    for number, at in enumerate(moments):
        values = [f"{one.name}: {write(known[at])}" for one, known in zip(series, said, strict=True) if at in known]
        box: Attributes = {"class": "tip", "x": format_share(edges[number]), "y": _TOP + 10, "height": HEIGHT - 10,
               "width": format_share(max(edges[number + 1] - edges[number], 0.0))}  # fmt: skip
        text = "\n".join([f"{format_time(at)} UTC", *values])
        tips.append(build_tag("rect", box, build_tag("title", {}, text)))
    return tips


def _write_times(axes: Axes, across: Scale) -> list[Markup]:
    texts = []
    for at, text in list_time_ticks(axes.from_ms, axes.to_ms):
        share = across.place(at)
        anchor = "start" if share < 0.06 else "end" if share > 0.94 else "middle"
        texts.append(write_text(format_share(share), _TOP + HEIGHT + 17, text, anchor))
    return texts


def format_time(at_ms: float) -> str:
    """Unix ms as date and time in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def build_table(caption: str, series: Sequence[ChartSeries], write: Callable[[float], str]) -> Markup:
    """The numbers of a chart as a table, the newest first: for a screen reader, and to copy."""
    said = [dict(one.points) for one in series]
    moments = sorted({at for known in said for at in known}, reverse=True)
    head = [build_tag("th", {"scope": "col"}, name) for name in ("Time (UTC)", *(one.name for one in series))]
    rows = [
        build_tag("tr", {}, build_tag("th", {"scope": "row"}, format_time(at)), *(
            build_tag("td", {"class": "number"}, write(known[at]) if at in known else "–") for known in said
        ))
        for at in moments
    ]  # fmt: skip
    return build_tag(
        "table", {}, build_tag("caption", {"class": "hidden"}, caption),
        build_tag("thead", {}, build_tag("tr", {}, *head)), build_tag("tbody", {}, join_tags(*rows)),
    )  # fmt: skip


def draw_spark(title: str, points: Sequence[tuple[float, float]], kind: str) -> Markup:
    """A small line without axes, for a list; nothing without at least two points."""
    if len(points) < 2:
        return Markup("")
    across, up = Scale(points[0][0], points[-1][0]), Scale(0.0, max(value for _, value in points))
    spots = [f"{120 * across.place(at):.2f} {27 - 24 * up.place(value):.2f}" for at, value in points]
    line = build_tag("path", {"class": f"line {kind}", "d": "M" + "L".join(spots)})
    box: Attributes = {"class": "spark", "viewBox": "0 0 120 30", "width": 120, "height": 30, "role": "img"}
    return build_tag("svg", {**box, "aria-label": title}, build_tag("title", {}, title), line)


_LANE, _LANE_BAR, _BELOW_LANES, _LANE_AXIS = 24.0, 14.0, 22.0, 72.0
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
    height = _LANE * len(lanes) + _BELOW_LANES
    labels = [write_text(_LANE_AXIS - 8, _LANE * number + 16, lane.name, "end") for number, lane in enumerate(lanes)]
    parts = [
        *(_draw_lane_rule(across.place(tick), height - _BELOW_LANES) for tick in ticks),
        *(_draw_lane_bar(bar, number, across) for number, lane in enumerate(lanes) for bar in lane.bars),
        *(_write_tick(tick, across.place(tick), height - 5) for tick in ticks),
    ]
    return draw_frame(ChartFrame(name, title, text, _LANE_AXIS, height), labels, parts)


def _draw_lane_rule(share: float, height: float) -> Markup:
    x = format_share(share)
    return build_tag("line", {"class": "rule", "x1": x, "x2": x, "y1": "0", "y2": height})


def _draw_lane_bar(bar: Bar, number: int, across: Scale) -> Markup:
    start, end = across.place(bar.start_s), across.place(bar.start_s + max(bar.seconds, 0.0))
    y = _LANE * number + (_LANE - _LANE_BAR) / 2
    # A stage of a few milliseconds stays visible by its outline.
    box: Attributes = {"class": f"bar {bar.kind}", "x": format_share(start), "y": y, "height": _LANE_BAR, "rx": 2,
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


_AMOUNT, _AMOUNT_BAR = 34.0, 10.0


def draw_bars(
    name: str, title: str, text: str, amounts: Sequence[tuple[str, float]], kind: str, write: Callable[[float], str]
) -> Markup:
    """The chart `name` (its id) with `title` and the description `text`; `kind`: the class that colours the bars."""
    across = Scale(0.0, max((amount for _, amount in amounts), default=0.0))
    parts = [part for number, one in enumerate(amounts) for part in _draw_amount(one, number, across, kind, write)]
    return draw_frame(ChartFrame(name, title, text, 0.0, _AMOUNT * len(amounts)), [], parts)


def _draw_amount(
    one: tuple[str, float], number: int, across: Scale, kind: str, write: Callable[[float], str]
) -> list[Markup]:
    (name, amount), top = one, _AMOUNT * number
    share = across.place(amount) if across.high > 0 else 0.0
    box: Attributes = {"class": f"bar {kind}", "x": "0%", "y": top + 18, "height": _AMOUNT_BAR, "rx": 2,
                       "width": format_share(share)}  # fmt: skip
    return [
        write_text("0%", top + 13, name, "start"),
        write_text("100%", top + 13, write(amount), "end"),
        build_tag("rect", box),
    ]
