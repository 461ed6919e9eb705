"""Amounts by name as horizontal bars, the first on top: the name and the amount stand above each bar."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from binlake_airflow.pages.charts.scale import Scale
from binlake_airflow.pages.charts.svg import Attributes, ChartFrame, build_tag, draw_frame, format_share, write_text

_ROW, _BAR = 34.0, 10.0


def draw_bars(
    name: str, title: str, text: str, amounts: Sequence[tuple[str, float]], kind: str, write: Callable[[float], str]
) -> Markup:
    """The chart `name` (its id) with `title` and the description `text`; `kind`: the class that colours the bars."""
    across = Scale(0.0, max((amount for _, amount in amounts), default=0.0))
    parts = [part for number, one in enumerate(amounts) for part in _draw_bar(one, number, across, kind, write)]
    return draw_frame(ChartFrame(name, title, text, 0.0, _ROW * len(amounts)), [], parts)


def _draw_bar(
    one: tuple[str, float], number: int, across: Scale, kind: str, write: Callable[[float], str]
) -> list[Markup]:
    (name, amount), top = one, _ROW * number
    share = across.place(amount) if across.high > 0 else 0.0
    box: Attributes = {"class": f"bar {kind}", "x": "0%", "y": top + 18, "height": _BAR, "rx": 2,
                       "width": format_share(share)}  # fmt: skip
    return [
        write_text("0%", top + 13, name, "start"),
        write_text("100%", top + 13, write(amount), "end"),
        build_tag("rect", box),
    ]
