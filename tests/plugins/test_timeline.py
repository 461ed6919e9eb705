"""The charts' numbers from events, the panels made of them, and the words of a page."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from markupsafe import escape

from binlake import tso
from binlake.health.values import build_ts_view
from binlake.window.manifest import WindowManifest
from binlake_airflow.pages import words
from binlake_airflow.pages.history import describe_notice
from binlake_airflow.pages.panels import build_panels, draw_lag_spark
from binlake_airflow.pages.timeline import build_disks, build_timeline

AT = 1_795_000_000_000
STEP = 10_000
NASTY = "<script>alert(1)</script>"


def event(stage: str, number: int, late_ms: int, sink: str = "", **more: Any) -> Any:
    """The end of `stage` of the window `number`, `late_ms` after the window's hi."""
    hi_ms = AT + STEP * number
    size = WindowManifest("r", 1, 1, 2, "", (), 4, 0, 0, 4096, 1, "").to_json() if stage == "land" else ""
    return {"lo": tso.compose(hi_ms - STEP), "hi": tso.compose(hi_ms), "stage": stage, "sink": sink, "state": "done",
            "rows": 40, "seconds": 0.5, "run_id": "r", "at_ms": hi_ms + late_ms, "blocked_by": "", "detail": "{}",
            "manifest": size, **more}  # fmt: skip


def windows(count: int) -> list[Any]:
    """`count` windows that landed 2 s, and were applied 3 s, after their hi."""
    return [one for n in range(count) for one in (event("land", n, 2000), event("finalize", n, 3000, "sql"))]


def test_lag_and_rates_follow_from_the_recorded_ends() -> None:
    again = event("land", 1, 90_000, state="already", rows=0)
    timeline = build_timeline([*windows(3), again], AT + 30_000)
    assert [(lag["place"], [value for _, value in lag["points"]]) for lag in timeline["lags"]] == [
        ("lake", [2.0] * 3), ("target", [3.0] * 3),
    ]  # fmt: skip
    # A window that is landed again adds no rows.
    assert [(one["at_ms"] - one["from_ms"], one["rows"], one["bytes"]) for one in timeline["landings"]] == [
        (500, 40, 4096), (STEP, 40, 4096), (STEP, 40, 4096),
    ]  # fmt: skip
    assert [stage["task"] for stage in timeline["windows"][0]["stages"]] == ["land", "finalize"]
    assert json.loads(json.dumps(timeline)) is not None


def test_hottest_tables_are_summed_over_the_windows_as_last_derived() -> None:
    def derived(number: int, late_ms: int, *tables: tuple[str, int]) -> Any:
        return event("compact", number, late_ms, "sql", detail=json.dumps({"hottest": tables}))

    cold = [(f"d.t{number}", 1) for number in range(9)]
    events = [*windows(2), derived(0, 2500, ("d.a", 3), (f"d.{NASTY}", 9)), derived(1, 2500, ("d.a", 7), *cold),
              derived(1, 9000, ("d.a", 8), ("d.b", 1)), event("compact", 0, 2400, "sql")]  # fmt: skip
    timeline = build_timeline(events, AT + STEP)
    assert timeline["hottest"] == [("d.a", 11), (f"d.{NASTY}", 9), ("d.b", 1)]
    panel = build_panels(timeline)[-1]
    assert (panel.title, panel.span) == ("Hottest tables", None)
    assert NASTY not in f"{panel.chart}{panel.table}"
    # Without a target nothing is recorded, and nothing shown.
    assert "hottest" not in [one.name for one in build_panels(build_timeline(windows(2), AT + STEP))]


def test_feed_has_its_own_line_and_a_ddl_its_mark() -> None:
    ddl = {"commit_ts": str(tso.compose(AT + STEP - 1)), "query": f"ALTER {NASTY}", "sql": None}
    before = {**ddl, "commit_ts": str(tso.compose(AT - 10 * STEP))}
    timeline = build_timeline([*windows(2), event("publish", 1, 4000, "feed.f")], AT + STEP, [ddl, before])
    assert [lag["place"] for lag in timeline["lags"]] == ["lake", "target", "feed f"]
    assert timeline["ddls"] == [{"at_ms": AT + STEP + 2000, "text": f"DDL: ALTER {NASTY}"}]
    shown = "".join(str(part) for panel in build_panels(timeline) for part in (panel.chart, panel.table))
    assert NASTY not in shown
    assert str(escape(NASTY)) in shown


def test_panels_of_few_windows_and_of_none() -> None:
    assert build_panels(build_timeline([], AT)) == []
    for count in (1, 2):
        assert [panel.name for panel in build_panels(build_timeline(windows(count), AT))] == [
            "lag", "rows", "bytes", "stages",
        ]  # fmt: skip
    for manifest in ("", "damaged", "[]"):
        without = [{**one, "manifest": manifest} for one in windows(2)]
        assert [panel.name for panel in build_panels(build_timeline(without, AT))] == ["lag", "rows", "stages"]
    assert draw_lag_spark([]) == ""
    assert "Lag of the target in its last 3 windows" in draw_lag_spark(build_timeline(windows(3), AT)["lags"])


def test_long_silence_leaves_the_past_half_of_the_width() -> None:
    timeline = build_timeline(windows(3), AT + 10**9)
    last = AT + 2 * STEP + 3000
    assert timeline["to_ms"] - last == last - timeline["from_ms"]


def test_times_are_said_as_a_person_would() -> None:
    now = datetime(2026, 11, 20, tzinfo=UTC)
    said = [words.format_ago((now - timedelta(seconds=s)).isoformat(), now) for s in (0, 45, 200, 93_600, -60)]
    assert said == ["just now", "45 s ago", "3 min ago", "26 h ago", "in 60 s"]
    lags = [None, {"lag_seconds": None}, {"lag_seconds": 0.3}, {"lag_seconds": 93_600.0}]
    assert [words.format_behind(lag) for lag in lags] == ["nothing yet", "lag unknown", "up to date", "26 h behind"]
    assert [words.format_size(size) for size in (0, 1023, 1536, 2**50)] == ["0 B", "1023 B", "1.5 KiB", "1024.0 TiB"]
    assert [words.format_count(count) for count in (0, 0.25, 12, 1500, 6138, 999_900, 3.2e6, 1e15)] == [
        "0", "0.25", "12", "1.5 k", "6.14 k", "1000 k", "3.2 M", "1.0e+15",
    ]  # fmt: skip


def test_worst_replication_comes_first() -> None:
    rows = [{"name": "b", "state": "running"}, {"name": "a", "state": "running"}, {"name": "c", "state": "behind"},
            {"name": "d", "problem": "its lake cannot be read"}]  # fmt: skip
    assert [row["name"] for row in words.sort_worst_first(rows)] == ["d", "c", "a", "b"]
    assert words.summarise(rows) == [("unknown", 1), ("behind", 1), ("running", 2)]


SENTENCES = {
    ("skip", "done", '{"commit_ts": "7", "kind": "ddl", "rule": "the rule"}'): "The DDL at commit_ts 7 was left out",
    ("forget", "accepted-loss", '{"pump": "p1", "lost": "(1, 2]"}'): "The pump p1 was given up",
    ("aside", "set-aside", '{"table": "d.t", "by": "policy", "reason": "missing"}'): "The table d.t was set aside by",
    ("aside", "back", '{"table": "d.t"}'): "The table d.t is back",
    ("position", "moved", '{"found": "9"}'): "Another hand moved the target's checkpoint",
    ("repair", "done", '{"keys": 3}'): "40 rows of the target were repaired",
    ("validation", "ignored", '{"numbers": [7], "errors": 0}'): "40 differing rows (numbers 7) were ignored by hand",
    ("verify-ddl", "different", '{"tables": [{"table": "d.t"}]}'): "After a DDL that changed its rows, d.t differs",
    ("release", "released", '{"ddl_commit_ts": "5"}'): "The window of the DDL at commit_ts 5 was released",
    ("backfill", "finished", "{}"): "A backfill of the windows",
    ("unheard-of", "odd", '{"x": 1}'): "unheard-of: odd.",
}  # fmt: skip


@pytest.mark.parametrize(("stage", "state", "detail"), SENTENCES)
def test_notice_is_a_sentence_without_json(stage: str, state: str, detail: str) -> None:
    told = describe_notice(event(stage, 0, 0, state=state), json.loads(detail))
    assert told.startswith(SENTENCES[stage, state, detail])
    assert told.endswith(".")
    assert not set(told) & set('{}"')


def test_the_cpu_of_a_window_is_that_of_its_stages_as_far_as_it_was_recorded() -> None:
    def spent(stage: str, number: int, late_ms: int, sink: str, seconds: float) -> Any:
        return event(stage, number, late_ms, sink, detail=json.dumps({"cpu_seconds": seconds}))

    events = [spent("land", 0, 2000, "", 0.25), spent("finalize", 0, 3000, "sql", 0.5), *windows(3)[2:4],
              spent("land", 2, 2000, "", 1.25), event("finalize", 2, 3000, "sql")]  # fmt: skip
    timeline = build_timeline(events, AT + 3 * STEP)
    assert [[stage["cpu_s"] for stage in window["stages"]] for window in timeline["windows"]] == [
        [1.25, None], [None, None], [0.25, 0.5],
    ]  # fmt: skip
    [panel] = [one for one in build_panels(timeline) if one.name == "cpu"]
    assert "1.00 s a window" in panel.text
    assert [line.count("<td") for line in str(panel.table).split("<tr>")[2:]] == [2, 2, 2]
    assert "land: 1.25 s of CPU, 40 rows" in panel.chart


def test_disks_are_drawn_over_their_readings_without_pumps_that_are_gone() -> None:
    def reading(number: int, **stored: int) -> Any:
        disks = [{"place": place, "stored": size, "free": 3 << 30, "size": 4 << 30} for place, size in stored.items()]
        return event("disk", number, 0, detail=json.dumps({"disks": disks}))

    disks = build_disks([reading(2, pump=9 << 20, lake=3 << 20), reading(1, old=7, pump=8 << 20, lake=1 << 20)])
    assert [(disk["place"], [size >> 20 for _, size in disk["points"]]) for disk in disks] == [
        ("lake", [1, 3]), ("pump", [8, 9]),
    ]  # fmt: skip
    [panel] = [one for one in build_panels({**build_timeline(windows(2), AT), "disks": disks}) if one.name == "disk"]
    assert "lake 3.0 GiB of 4.0 GiB free; pump 3.0 GiB of 4.0 GiB free" in panel.text
    assert build_disks([]) == []
    # Pumps differ by their lines, not by words only.
    many = build_disks([reading(1, lake=1, a=1, b=1, c=1, d=1)])
    [panel] = [one for one in build_panels({**build_timeline(windows(2), AT), "disks": many}) if one.name == "disk"]
    assert panel.legend == [
        ("lake", "lake"), ("a", "pump"), ("b", "pump second"), ("c", "pump third"), ("d", "pump"),
    ]  # fmt: skip


def test_watermarks_are_compared_with_the_end_of_the_last_window_the_least_first() -> None:
    def pump(name: str, ahead_ms: int | None, **more: str) -> dict[str, Any]:
        position = None if ahead_ms is None else build_ts_view(tso.compose(AT + STEP + ahead_ms))
        return {"id": name, "kind": "pump", "state": "online", "position": position, **more}

    nodes = [
        pump("p1", 90_000), pump(NASTY, 1500), pump("behind", -5), pump("new", None),
        pump("gone", 1, state="offline"), pump("replication", 1, kind="drainer"),
    ]  # fmt: skip
    [panel] = [one for one in build_panels(build_timeline(windows(2), AT), nodes) if one.name == "watermarks"]
    assert "The next one ends at the least: that of behind." in panel.text
    assert [line.split("</td>")[0].rpartition(">")[2] for line in str(panel.table).split("<tr>")[2:]] == [
        "0 s", "1.5 s", "90 s",
    ]  # fmt: skip
    assert NASTY not in panel.chart + panel.table
    assert "watermarks" not in [one.name for one in build_panels(build_timeline(windows(2), AT), nodes[3:])]
