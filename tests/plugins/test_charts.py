"""The charts: whatever the numbers and texts are, the drawing is well-formed, inside its bounds and escaped."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlake_airflow.pages.charts import (
    HEIGHT,
    Axes,
    Bar,
    ChartSeries,
    Lane,
    Mark,
    build_table,
    draw_bars,
    draw_gantt,
    draw_lines,
    draw_spark,
)
from binlake_airflow.pages.drawing import (
    Scale,
    build_value_scale,
    choose_count_step,
    choose_duration_step,
    choose_size_step,
    list_time_ticks,
)

NOW = 1_795_000_000_000.0
HOSTILE = "<script>alert(1)</script>\"'&]]>\u202e"
numbers = st.floats(allow_nan=True, allow_infinity=True)
moments = st.floats(NOW - 1e9, NOW + 1e9)
texts = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufffe\uffff"), max_size=20)
points = st.lists(st.tuples(moments, st.floats(0, 1e18)), max_size=30).map(sorted)
steps = st.sampled_from([choose_count_step, choose_duration_step, choose_size_step])


def parse(markup: str) -> ET.Element:
    """The drawing as a tree: a text that was not escaped would end it, or be an element of its own."""
    return ET.fromstring(markup)


def list_places(tree: ET.Element) -> list[float]:
    """All positions across, in percent."""
    names = ("x", "x1", "x2", "cx", "width")
    found = (element.get(name, "") for element in tree.iter() for name in names)
    return [float(text.removesuffix("%")) for text in found if text.endswith("%")]


@given(numbers, numbers, numbers)
def test_scale_maps_every_number_into_its_range(low: float, high: float, value: float) -> None:
    assert 0 <= Scale(low, high).place(value) <= 1 or math.isnan(low) or math.isnan(high) or math.isinf(high - low)


@given(st.lists(numbers, max_size=20), steps)
def test_ticks_cover_the_values_and_are_few(values: list[float], step) -> None:  # type: ignore[no-untyped-def]
    scale, ticks = build_value_scale(values, step)
    assert ticks[0] == 0
    assert 2 <= len(ticks) <= 6
    assert scale.high == ticks[-1] > 0
    assert all(value <= scale.high * (1 + 1e-9) for value in values if math.isfinite(value) and value < 1e15)


@given(moments, moments)
def test_times_are_inside_the_range_and_few(one: float, other: float) -> None:
    low, high = sorted((one, other))
    ticks = list_time_ticks(low, high)
    assert len(ticks) <= 5
    assert all(low <= at <= high for at, _ in ticks)


@given(points, points, moments, steps, st.booleans(), texts)
def test_lines_stay_in_their_frame(first, second, until, step, filled, text) -> None:  # type: ignore[no-untyped-def]
    series = [ChartSeries(text, "lake", first), ChartSeries("b", "target", second)]
    axes = Axes(NOW - 1e6, until, lambda value: f"{value:g}", step)
    chart = str(draw_lines("c", text, text, series, axes, [Mark(NOW, text)], filled=filled))
    tree = parse(chart)
    assert all(0 <= place <= 100 for place in list_places(tree))
    assert "nan" not in re.sub(r">[^<]*<", "><", chart).lower().replace("inherit", "")
    for path in tree.iter("path"):
        numbers_of_path = [float(part) for part in re.findall(r"-?[\d.]+", path.get("d", ""))]
        assert all(0 <= number <= 1000 for number in numbers_of_path)
    heights = [float(circle.get("cy", "0")) for circle in tree.iter("circle")]
    assert all(0 <= height <= HEIGHT + 8 for height in heights)


@given(st.lists(st.lists(st.tuples(st.floats(0, 1e9), st.floats(-1, 1e9)), max_size=8), max_size=8))
def test_bars_stay_in_their_frame(drawn: list[list[tuple[float, float]]]) -> None:
    lanes = [Lane(HOSTILE, [Bar(HOSTILE, "lake", start, long, HOSTILE) for start, long in bars]) for bars in drawn]
    tree = parse(str(draw_gantt("g", HOSTILE, HOSTILE, lanes)))
    assert all(0 <= place <= 100 for place in list_places(tree))
    assert not [element for element in tree.iter() if element.tag == "script"]


@pytest.mark.parametrize("given_points", [[], [(NOW, 0.0)], [(NOW, 3.0)], [(NOW, 0.0), (NOW, 0.0)]])
def test_no_data_and_one_point_are_drawn(given_points: list[tuple[float, float]]) -> None:
    axes = Axes(NOW, NOW, str, choose_count_step)
    for filled in (False, True):
        tree = parse(str(draw_lines("c", "t", "d", [ChartSeries("s", "lake", given_points)], axes, filled=filled)))
        assert len([path for path in tree.iter("path")]) == bool(given_points)
    assert parse(f"<p>{draw_spark('t', given_points, 'lake')}</p>") is not None
    assert parse(str(draw_gantt("g", "t", "d", []))) is not None


def test_chart_has_a_title_a_description_and_a_table_of_its_numbers() -> None:
    series = [
        ChartSeries("lake", "lake", [(NOW, 1.0), (NOW + 1000, 2.0)]),
        ChartSeries("target", "target", [(NOW + 1000, 7.0)]),
    ]
    axes = Axes(NOW, NOW + 1000, lambda value: f"{value:.0f} s", choose_duration_step)
    chart = parse(str(draw_lines("lag", "Lag", HOSTILE, series, axes, [Mark(NOW, HOSTILE)])))
    plot = next(svg for svg in chart.iter("svg") if svg.get("role") == "img")
    named = [next(e for e in plot.iter() if e.get("id") == one) for one in str(plot.get("aria-labelledby")).split()]
    assert [element.text for element in named] == ["Lag", HOSTILE]
    rows = parse(str(build_table(HOSTILE, series, axes.write))).findall("tbody/tr")
    assert [[cell.text for cell in row][1:] for row in rows] == [["2 s", "7 s"], ["1 s", "–"]]


@given(st.lists(st.tuples(texts, numbers), max_size=8))
def test_bars_hold_every_amount_and_name(amounts: list[tuple[str, float]]) -> None:
    tree = parse(draw_bars("b", HOSTILE, HOSTILE, amounts, "target", lambda value: f"{value} {HOSTILE}"))
    assert all(0 <= place <= 100 for place in list_places(tree))
    assert len(tree.findall(".//rect")) == len(amounts)
    assert [text for element in tree.iter("text") if (text := element.text or "") and HOSTILE not in text] == [
        name for name, _ in amounts if name and HOSTILE not in name
    ]


def test_longest_bar_is_the_whole_width_and_others_are_their_share() -> None:
    tree = parse(draw_bars("b", "t", "d", [("a.b", 400.0), ("a.c", 100.0), ("a.d", 0.0)], "target", str))
    assert [rect.get("width") for rect in tree.iter("rect")] == ["100.000%", "25.000%", "0.000%"]
