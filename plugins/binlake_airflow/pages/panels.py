"""The panels of a replication's page: each timeline's numbers as a chart with a title, a sentence and a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from markupsafe import Markup

from binlake import tso
from binlake.common.terminal import format_duration
from binlake.pipeline import FEED, LAKE, SINKS, SQL
from binlake_airflow.pages.charts import (
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
from binlake_airflow.pages.drawing import StepChooser, choose_count_step, choose_duration_step, choose_size_step
from binlake_airflow.pages.timeline import Disk, Lag, Landing, StageSpan, Timeline, WindowSpan, list_labels
from binlake_airflow.pages.words import format_clock, format_count, format_size

_PUMPS = ("pump", "pump second", "pump third")
"""Classes of pumps: one colour, dashed in other ways."""
_MARKS = 20


@dataclass(frozen=True)
class ChartPanel:
    """A chart with its title, what it shows in a sentence, its legend (name, class) and its numbers as a table.

    `span`: the range of time (Unix ms) across a chart over time, in which a range can be picked; None for others.
    """

    name: str
    title: str
    text: str
    legend: Sequence[tuple[str, str]]
    chart: Markup
    table: Markup
    span: tuple[int, int] | None = None


def build_panels(timeline: Timeline, nodes: Sequence[Mapping[str, Any]] = ()) -> list[ChartPanel]:
    """The panels that have something to show; `nodes`: those of the registry, as `build_nodes_view` gives them."""
    if not timeline["landings"]:
        return []
    panels = [_build_lag_panel(timeline)]
    panels.append(_build_rate_panel(timeline, "rows", "Rows a second", _count_rows, format_count, choose_count_step))
    if any(landing["bytes"] is not None for landing in timeline["landings"]):
        panels.append(
            _build_rate_panel(timeline, "bytes", "Bytes a second", _count_bytes, format_size, choose_size_step)
        )
    panels += _build_watermark_panels(nodes, int(timeline["landings"][-1]["hi"]))
    panels.append(_build_stages_panel(timeline["windows"]))
    panels += _build_cpu_panels(timeline["windows"])
    panels += _build_disk_panels(timeline["disks"])
    return [*panels, _build_hottest_panel(timeline)] if timeline["hottest"] else panels


def draw_lag_spark(lags: Sequence[Lag]) -> Markup:
    """The lag of the place that is furthest along the way (the target, else the lake), for the list."""
    if not lags:
        return Markup("")
    lag = next((one for one in lags if one["place"] == SQL.label), lags[0])
    last = format_duration(lag["points"][-1][1])
    title = f"Lag of the {lag['place']} in its last {len(lag['points'])} windows, at last {last}"
    return draw_spark(title, lag["points"], _choose_kind(lag["place"]))


def _name_kind(stage: StageSpan) -> str:
    return SINKS[stage["sink"]].label if stage["sink"] else LAKE.label


def _choose_kind(place: str) -> str:
    return place if place in list_labels().values() else FEED


def _format_lag(seconds: float) -> str:
    return format_duration(seconds) if seconds >= 10 or seconds == int(seconds) else f"{seconds:.1f} s"


def _build_lag_panel(timeline: Timeline) -> ChartPanel:
    series = [ChartSeries(lag["place"], _choose_kind(lag["place"]), lag["points"]) for lag in timeline["lags"]]
    now = "; ".join(f"{one.name} {_format_lag(one.points[-1][1])}" for one in series)
    text = f"Behind the clock when a window ended. At last: {now}."
    axes = Axes(timeline["from_ms"], timeline["to_ms"], _format_lag, choose_duration_step)
    return ChartPanel(
        "lag", "Lag", text, [(one.name, one.kind) for one in series],
        draw_lines("lag", "Lag over time", text, series, axes, _list_marks(timeline)),
        build_table("Lag over time", series, _format_lag), (timeline["from_ms"], timeline["to_ms"]),
    )  # fmt: skip


def _build_rate_panel(
    timeline: Timeline, name: str, title: str, count: Callable[[Landing], int], write: Callable[[float], str],
    choose_step: StepChooser,
) -> ChartPanel:  # fmt: skip
    # Nothing says since when the first window was awaited, so its rate is not known.
    landings = timeline["landings"][1:] or timeline["landings"]
    rates = [count(landing) / _measure_s(landing) for landing in landings]
    # The area of a window ends where it landed, and begins where the one before it did.
    points = [(float(landings[0]["from_ms"]), rates[0])]
    points += [(float(landing["at_ms"]), rate) for landing, rate in zip(landings, rates, strict=True)]
    total = sum(count(landing) for landing in landings)
    text = f"Landed in the last {len(landings)} windows: {write(total)}{' rows' if name == 'rows' else ''}."
    series, axes = (
        [ChartSeries(title, "lake", points)],
        Axes(timeline["from_ms"], timeline["to_ms"], write, choose_step),
    )
    return ChartPanel(
        name, title, text, [], draw_lines(name, title, text, series, axes, _list_marks(timeline), filled=True),
        build_table(title, series, write), (timeline["from_ms"], timeline["to_ms"]),
    )  # fmt: skip


def _count_rows(landing: Landing) -> int:
    return landing["rows"]


def _count_bytes(landing: Landing) -> int:
    return landing["bytes"] or 0


def _measure_s(landing: Landing) -> float:
    return max(landing["at_ms"] - landing["from_ms"], 1) / 1000


def _list_marks(timeline: Timeline) -> list[Mark]:
    """A mark for each window with DDL: it names all of them."""
    texts: dict[int, list[str]] = {}
    for ddl in timeline["ddls"][:_MARKS]:
        texts.setdefault(ddl["at_ms"], []).append(ddl["text"])
    return [Mark(at_ms, "\n".join(of_window)) for at_ms, of_window in texts.items()]


def _build_stages_panel(windows: Sequence[WindowSpan]) -> ChartPanel:
    lanes = [_build_lane(window) for window in windows]
    kinds = list(dict.fromkeys(bar.kind for lane in lanes for bar in lane.bars))
    text = f"The stages of the last {len(lanes)} windows, the newest on top, since each window's first stage began."
    return ChartPanel(
        "stages", "Stages of the last windows", text, [(kind, kind) for kind in kinds],
        draw_gantt("stages", "Stages of the last windows", text, lanes), _build_stages_table(lanes),
    )  # fmt: skip


def _build_cpu_panels(windows: Sequence[WindowSpan]) -> list[ChartPanel]:
    """The stages of each window one after the other, as long as the CPU that they took; none if it was not recorded."""
    lanes = [lane for window in windows if (lane := _build_cpu_lane(window)).bars]
    if not lanes:
        return []
    total = sum(bar.seconds for lane in lanes for bar in lane.bars)
    kinds = list(dict.fromkeys(bar.kind for lane in lanes for bar in lane.bars))
    title = "CPU of the last windows"
    text = f"CPU seconds by stage, the newest window on top; {total / len(lanes):,.2f} s a window."
    return [
        ChartPanel(
            "cpu", title, text, [(kind, kind) for kind in kinds], draw_gantt("cpu", title, text, lanes),
            _build_cpu_table(lanes),
        )
    ]  # fmt: skip


def _build_cpu_lane(window: WindowSpan) -> Lane:
    bars: list[Bar] = []
    began = 0.0
    for stage in window["stages"]:
        if (spent := stage["cpu_s"]) is not None:
            tip = f"{stage['task']}: {spent:,.2f} s of CPU, {stage['rows']:,} rows\n"
            tip += f"window to {format_clock(window['hi']['time'])}"
            bars.append(Bar(stage["task"], _name_kind(stage), began, spent, tip))
            began += spent
    return Lane(window["hi"]["time"][11:19], bars)


def _build_cpu_table(lanes: Sequence[Lane]) -> Markup:
    row = Markup('<tr><th scope="row">{}</th><td>{}</td><td class="number">{:.3f}</td></tr>')
    rows = Markup("").join(row.format(lane.name, bar.name, bar.seconds) for lane in lanes for bar in lane.bars)
    head = Markup(
        '<table><caption class="hidden">CPU of the last windows</caption><thead><tr><th scope="col">Window to</th>'
        '<th scope="col">Stage</th><th scope="col" class="number">CPU seconds</th></tr></thead>'
        "<tbody>{}</tbody></table>"
    )
    return head.format(rows)


def _build_disk_panels(disks: Sequence[Disk]) -> list[ChartPanel]:
    if not disks:
        return []
    lake = [ChartSeries(disk["place"], "lake", disk["points"]) for disk in disks if disk["place"] == "lake"]
    pumps = (disk for disk in disks if disk["place"] != "lake")
    series = lake + [
        ChartSeries(disk["place"], kind, disk["points"]) for disk, kind in zip(pumps, cycle(_PUMPS), strict=False)
    ]
    moments = [at for one in series for at, _ in one.points]
    free = "; ".join(
        f"{disk['place']} {format_size(disk['free'])} of {format_size(disk['size'])} free" for disk in disks
    )
    text = f"Stored by the pumps and the lake. Of their disks: {free}."
    axes = Axes(min(moments), max(moments), format_size, choose_size_step)
    return [
        ChartPanel(
            "disk", "Disk", text, [(one.name, one.kind) for one in series],
            draw_lines("disk", "Disk over time", text, series, axes),
            build_table("Disk over time", series, format_size),
        )
    ]  # fmt: skip


def _build_watermark_panels(nodes: Sequence[Mapping[str, Any]], hi: int) -> list[ChartPanel]:
    """How far the watermark of each pump lies above `hi`, the end of the last window, the least one first."""
    ends_ms = tso.extract_physical(hi)
    pumps = sorted(
        (max(tso.extract_physical(int(node["position"]["commit_ts"])) - ends_ms, 0) / 1000, node["id"])
        for node in nodes
        if node["kind"] == "pump" and node["position"] is not None and node["state"] != "offline"
    )
    if not pumps:
        return []
    amounts, title = [(name, ahead_s) for ahead_s, name in pumps], "Watermarks of the pumps"
    text = f"Above the end of the last window. The next one ends at the least: that of {pumps[0][1]}."
    table = _build_table_of_amounts(title, "Pump", "Above", amounts, _format_lag)
    return [
        ChartPanel(
            "watermarks", title, text, [], draw_bars("watermarks", title, text, amounts, "lake", _format_lag), table
        )
    ]


def _build_table_of_amounts(
    title: str, of: str, what: str, amounts: Sequence[tuple[str, float]], write: Callable[[float], str]
) -> Markup:
    row = Markup('<tr><th scope="row">{}</th><td class="number">{}</td></tr>')
    return Markup(
        '<table><caption class="hidden">{}</caption><thead><tr><th scope="col">{}</th>'
        '<th scope="col" class="number">{}</th></tr></thead><tbody>{}</tbody></table>'
    ).format(title, of, what, Markup("").join(row.format(name, write(amount)) for name, amount in amounts))


def _build_hottest_panel(timeline: Timeline) -> ChartPanel:
    tables = [(name, float(count)) for name, count in timeline["hottest"]]
    title = "Hottest tables"
    text = f"Row changes for the target in the last {len(timeline['landings'])} windows, of the tables with most."
    table = _build_table_of_amounts(title, "Table", "Row changes", tables, lambda count: f"{count:,.0f}")
    return ChartPanel(
        "hottest", title, text, [], draw_bars("hottest", title, text, tables, "target", format_count), table
    )


def _build_lane(window: WindowSpan) -> Lane:
    began = min(stage["from_ms"] for stage in window["stages"])
    bars = [
        Bar(stage["task"], _name_kind(stage), (stage["from_ms"] - began) / 1000,
            (stage["to_ms"] - stage["from_ms"]) / 1000,
            f"{stage['task']}: {(stage['to_ms'] - stage['from_ms']) / 1000:,.2f} s, {stage['rows']:,} rows\n"
            f"window to {format_clock(window['hi']['time'])}")
        for stage in window["stages"]
    ]  # fmt: skip
    return Lane(window["hi"]["time"][11:19], bars)


def _build_stages_table(lanes: Sequence[Lane]) -> Markup:
    row = Markup(
        '<tr><th scope="row">{}</th><td>{}</td><td class="number">{:.2f}</td><td class="number">{:.2f}</td></tr>'
    )
    rows = Markup("").join(
        row.format(lane.name, bar.name, bar.start_s, bar.seconds) for lane in lanes for bar in lane.bars
    )
    head = Markup(
        '<table><caption class="hidden">Stages of the last windows</caption><thead><tr><th scope="col">Window to</th>'
        '<th scope="col">Stage</th><th scope="col" class="number">Began at (s)</th>'
        '<th scope="col" class="number">Seconds</th></tr></thead><tbody>{}</tbody></table>'
    )
    return head.format(rows)
