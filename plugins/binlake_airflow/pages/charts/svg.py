"""Writes elements: every attribute and text is escaped, every number is finite.

Positions across are shares of the width (percent), so that texts keep their size on a phone and on a wall.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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
