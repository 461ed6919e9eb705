"""What the charts show, from the events of the last windows in the lake: lag, rows, bytes, stages, CPU, disks, DDL.

Three reads, whatever the length of the history: which windows are the newest, all events in their range, and the last
readings of the disks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

from binlake import tso
from binlake.errors import WireError
from binlake.health.values import WindowEvents, build_ts_view, parse_detail
from binlake.pipeline import BY_NAME, ENDED, FEED, label_sink, list_places, name_task
from binlake.window.events import CPU_SECONDS, DISK, EventRow
from binlake.window.manifest import WindowManifest

WINDOWS = 60
"""The newest landed windows that the charts cover."""
_GANTT = 8
_DISKS = 200
"""Readings of the disks: at one in five minutes, 17 hours."""
_HOTTEST = 6


def list_labels() -> dict[str, str]:
    """The lake and its sinks, in order, by the stage that moves them; without feeds, which are shown by their names."""
    return {place.moved_by: place.label for place in list_places() if place.name != FEED}


class Landing(TypedDict):
    """A window (`lo`, `hi`] that landed at `at_ms`, since the one before it landed at `from_ms`; `bytes`: None if not
    recorded. Both bounds are texts: a script would round them."""

    lo: str
    hi: str
    from_ms: int
    at_ms: int
    rows: int
    bytes: int | None


class StageSpan(TypedDict):
    """A stage of a window: when it began and ended (Unix ms), and its CPU seconds; None if not recorded."""

    task: str
    sink: str
    state: str
    from_ms: float
    to_ms: float
    rows: int
    cpu_s: float | None


class WindowSpan(TypedDict):
    """A window by its hi, and its stages in order of time."""

    hi: dict[str, str]
    stages: list[StageSpan]


class Lag(TypedDict):
    """How far a place was behind the clock when each window ended there: (Unix ms, seconds)."""

    place: str
    points: list[tuple[int, float]]


class Disk(TypedDict):
    """What a pump or the lake has stored: (Unix ms, bytes); and of its disk the `free` bytes now, and its `size`."""

    place: str
    points: list[tuple[int, int]]
    free: int
    size: int


class DdlMark(TypedDict):
    """A DDL, at the moment when its window landed."""

    at_ms: int
    text: str


class Timeline(TypedDict):
    """All that the charts of one replication show; the times are Unix ms.

    `hottest`: the tables with most row changes for the target, and how many.
    """

    from_ms: int
    to_ms: int
    lags: list[Lag]
    landings: list[Landing]
    windows: list[WindowSpan]
    ddls: list[DdlMark]
    hottest: list[tuple[str, int]]
    disks: list[Disk]


def read_timeline(log: Any, now_ms: int, ddls: Sequence[dict[str, Any]] = (), skew_ms: int = 0) -> Timeline:
    """The timeline of the newest windows of `log`; `ddls`: rows of the DDL's view; `skew_ms`: PD's clock minus ours."""
    landed = log.read_newest(("land",), WINDOWS)
    if not landed:
        return {"from_ms": now_ms, "to_ms": now_ms, "lags": [], "landings": [], "windows": [], "ddls": [],
                "hottest": [], "disks": []}  # fmt: skip
    within = (min(event["lo"] for event in landed), landed[0]["hi"])
    timeline = build_timeline(log.read_events(within=within, sealed=True), now_ms, ddls, skew_ms)
    return {**timeline, "disks": build_disks(log.read_newest((DISK,), _DISKS))}


def read_lags(log: WindowEvents, skew_ms: int = 0) -> list[Lag]:
    """The lag of the lake and of its sinks in the last windows, for a small picture."""
    return _build_lags(log.read_newest(tuple(list_labels()), WINDOWS), skew_ms)


def build_timeline(
    events: Sequence[EventRow], now_ms: int, ddls: Sequence[dict[str, Any]] = (), skew_ms: int = 0
) -> Timeline:
    """From all events of a range of windows."""
    ended = [event for event in events if event["stage"] in BY_NAME and event["state"] in ENDED]
    lands = _keep_first([event for event in ended if event["stage"] == "land"])
    landings = _build_landings(lands)
    first = min((landing["from_ms"] for landing in landings), default=now_ms)
    last = max((event["at_ms"] for event in ended), default=now_ms)
    return {
        "from_ms": first,
        # If nothing has happened for long, the past keeps at least half of the width.
        "to_ms": max(min(now_ms, last + max(last - first, 1000)), last),
        "lags": _build_lags(ended, skew_ms),
        "landings": landings,
        "windows": _build_windows(ended),
        "ddls": _build_ddl_marks(lands, ddls),
        "hottest": _build_hottest(ended),
        "disks": [],
    }


def _keep_first(lands: Iterable[EventRow]) -> list[EventRow]:
    """The first landing of each window, in order of time: a window that is landed again adds no rows."""
    first: dict[int, EventRow] = {}
    for event in sorted(lands, key=lambda event: event["at_ms"]):
        first.setdefault(event["hi"], event)
    return list(first.values())


def _build_landings(lands: Sequence[EventRow]) -> list[Landing]:
    landings: list[Landing] = []
    for event in lands:
        own_ms = event["at_ms"] - int(1000 * event["seconds"])
        from_ms = landings[-1]["at_ms"] if landings else own_ms
        landings.append({"lo": str(event["lo"]), "hi": str(event["hi"]), "from_ms": min(from_ms, event["at_ms"]),
                         "at_ms": event["at_ms"], "rows": event["rows"], "bytes": _read_bytes(event)})  # fmt: skip
    return landings


def _read_bytes(event: EventRow) -> int | None:
    try:
        return WindowManifest.from_json(event.get("manifest") or "").bytes
    except WireError:
        # Without a manifest, or with a damaged one, the rest of the page is needed all the more.
        return None


def _build_lags(events: Iterable[EventRow], skew_ms: int) -> list[Lag]:
    """By PD's clock, as far as it has not been set since."""
    points: dict[str, dict[int, float]] = {}
    moving = {place.moved_by for place in list_places()}
    for event in sorted(events, key=lambda event: event["at_ms"]):
        place = label_sink(event["sink"]) if event["stage"] in moving else None
        behind_ms = event["at_ms"] + skew_ms - tso.extract_physical(event["hi"])
        if place is not None and event["state"] == "done":
            points.setdefault(place, {})[event["at_ms"]] = max(behind_ms, 0) / 1000
    order = list(list_labels().values())
    names = [*(name for name in order if name in points), *sorted(name for name in points if name not in order)]
    return [{"place": name, "points": list(points[name].items())} for name in names]


def _build_windows(ended: Sequence[EventRow]) -> list[WindowSpan]:
    newest = sorted({event["hi"] for event in ended if event["stage"] == "land"}, reverse=True)[:_GANTT]
    spans: dict[int, dict[str, StageSpan]] = {hi: {} for hi in newest}
    for event in sorted(ended, key=lambda event: event["at_ms"]):
        # A stage that had been done already did nothing in this window.
        if event["hi"] in spans and event["state"] == "done":
            task, to_ms = name_task(event["stage"], event["sink"]), float(event["at_ms"])
            spans[event["hi"]][task] = {
                "task": task, "sink": BY_NAME[event["stage"]].sink or "", "state": event["state"],
                "from_ms": to_ms - 1000 * event["seconds"], "to_ms": to_ms, "rows": event["rows"],
                "cpu_s": parse_detail(event).get(CPU_SECONDS),
            }  # fmt: skip
    return [{"hi": build_ts_view(hi), "stages": list(stages.values())} for hi, stages in spans.items() if stages]


def build_disks(events: Iterable[EventRow]) -> list[Disk]:
    """From the readings of the disks: the lake first, then the pumps of the last reading."""
    disks: dict[str, Disk] = {}
    readings = sorted(events, key=lambda event: event["at_ms"])
    for event in readings:
        for one in parse_detail(event)["disks"]:
            disk = disks.setdefault(one["place"], {"place": one["place"], "points": [], "free": 0, "size": 0})
            disk["points"].append((event["at_ms"], one["stored"]))
            disk["free"], disk["size"] = one["free"], one["size"]
    last = readings[-1]["at_ms"] if readings else 0
    present = [disk for disk in disks.values() if disk["points"][-1][0] == last]
    return sorted(present, key=lambda disk: (disk["place"] != "lake", disk["place"]))


def _build_hottest(ended: Iterable[EventRow]) -> list[tuple[str, int]]:
    """From what compact recorded of each window; of a window that was derived again the last time counts."""
    of_window = {
        (event["lo"], event["hi"]): parse_detail(event).get("hottest") or ()
        for event in sorted(ended, key=lambda event: event["at_ms"])
        if event["stage"] == "compact"
    }
    changes = Counter[str]()
    for tables in of_window.values():
        for name, count in tables:
            changes[str(name)] += int(count)
    return sorted(changes.items(), key=lambda one: (-one[1], one[0]))[:_HOTTEST]


def _build_ddl_marks(lands: Sequence[EventRow], ddls: Sequence[dict[str, Any]]) -> list[DdlMark]:
    marks: list[DdlMark] = []
    for ddl in ddls:
        ts = int(ddl["commit_ts"])
        landing = next((event for event in lands if event["lo"] < ts <= event["hi"]), None)
        if landing is not None:
            marks.append({"at_ms": landing["at_ms"], "text": f"DDL: {ddl['query'] or ddl['sql'] or ''}"})
    return marks
