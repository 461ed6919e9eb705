"""The elements of charts as SVG, and the scales on which they are placed.

Rule: every attribute and text is escaped, every number is finite. Positions across are shares of the width (percent),
so that texts keep their size on a phone and on a wall. A scale says where a value is between 0 and 1, and which round
values are named beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import Markup, escape

Attributes = Mapping[str, str | float]


@dataclass(frozen=True)
class ChartFrame:
    """What every chart has: name (an id), title, description, and in pixels the width of its axis and the height."""

    name: str
    title: str
    text: str
    axis: float
    height: float


def draw_frame(frame: ChartFrame, labels: Iterable[Markup], parts: Iterable[Markup]) -> Markup:
    """A chart: the `labels` of its axis, beside it the drawing of `parts`, named for a screen reader."""
    axis: Attributes = {"class": "axis", "width": frame.axis, "height": frame.height, "aria-hidden": "true"}
    title, text = f"{frame.name}-title", f"{frame.name}-text"
    plot: Attributes = {"class": "plot", "height": frame.height, "role": "img", "aria-labelledby": f"{title} {text}"}
    said = [build_tag("title", {"id": title}, frame.title), build_tag("desc", {"id": text}, frame.text)]
    return build_tag(
        "div", {"class": "drawing"}, build_tag("svg", axis, *labels), build_tag("svg", plot, *said, *parts)
    )


def write_text(x: str | float, y: float, text: str, anchor: str) -> Markup:
    """`text` at a place; `anchor`: start, middle or end."""
    return build_tag("text", {"x": x, "y": y, "text-anchor": anchor}, text)


def build_tag(name: str, attributes: Attributes, *children: str) -> Markup:
    """An element. A child that is not Markup is text, and escaped."""
    written = "".join(f' {key}="{escape(_format(value))}"' for key, value in attributes.items())
    return Markup(f"<{name}{written}>{join_tags(*children)}</{name}>")  # all parts are escaped above


def join_tags(*parts: str) -> Markup:
    """The parts in order; what is not Markup is escaped."""
    return Markup("").join(parts)


def format_share(share: float) -> str:
    """A share of the width, 0 to 1."""
    return f"{100 * share:.3f}%"


def _format(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")


_TIME_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400,
                 172_800, 604_800, 2_592_000, 31_536_000)  # fmt: skip
_MINUTE_S, _DAY_S = 60, 86_400
_TICKS = 4
StepChooser = Callable[[float], float]
_GREATEST = 1e15
"""Values above this are drawn at the top: no lag, rate or size is greater."""


@dataclass(frozen=True)
class Scale:
    """Maps low..high to 0..1. What lies outside is put at the end, what is not a number at the start."""

    low: float
    high: float

    def place(self, value: float) -> float:
        """Between 0 and 1, for every float; a scale without extent puts everything in its middle."""
        if math.isnan(value):
            return 0.0
        if not self.high > self.low:
            return 0.5
        return min(max((min(max(value, -_GREATEST), _GREATEST) - self.low) / (self.high - self.low), 0.0), 1.0)


def build_value_scale(values: Iterable[float], choose_step: StepChooser) -> tuple[Scale, list[float]]:
    """A scale from 0 to a round value at or above all finite `values`, and its ticks."""
    top = min(max((value for value in values if math.isfinite(value)), default=0.0), _GREATEST)
    step = choose_step(max(top, 0.0) / _TICKS)
    count = max(math.ceil(top / step - 1e-9), 1)
    return Scale(0.0, count * step), [number * step for number in range(count + 1)]


def choose_count_step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is at least `least`; 1 for 0."""
    if least <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(step for factor in (1, 2, 5, 10) if (step := factor * power) >= least * (1 - 1e-9))


def choose_size_step(least: float) -> float:
    """The smallest power of two that is at least `least` bytes."""
    return 1.0 if least <= 1 else 2.0 ** math.ceil(math.log2(least) - 1e-9)


def choose_duration_step(least: float) -> float:
    """The smallest round duration that is at least `least` seconds."""
    if least < 1:
        return choose_count_step(least) if least > 0 else 1.0
    rounded = next((step for step in _TIME_STEPS_S if step >= least), None)
    return float(rounded) if rounded is not None else _TIME_STEPS_S[-1] * choose_count_step(least / _TIME_STEPS_S[-1])


def list_time_ticks(from_ms: float, to_ms: float, most: int = 5) -> list[tuple[float, str]]:
    """At most `most` round moments between two times (Unix ms), each with its text in UTC."""
    span_s = max(to_ms - from_ms, 0.0) / 1000
    step_s = int(max(choose_duration_step(span_s / most), 1))
    if span_s <= 0:
        return [(from_ms, _format_moment(from_ms, step_s))]
    first = math.ceil(from_ms / 1000 / step_s)
    ticks = [number * step_s * 1000.0 for number in range(first, first + most + 1) if number * step_s * 1000 <= to_ms]
    return [(tick, _format_moment(tick, step_s)) for tick in ticks[:most]]


def _format_moment(ms: float, step_s: float) -> str:
    form = "%H:%M:%S" if step_s < _MINUTE_S else "%H:%M" if step_s < _DAY_S else "%Y-%m-%d"
    return datetime.fromtimestamp(ms / 1000, UTC).strftime(form)
