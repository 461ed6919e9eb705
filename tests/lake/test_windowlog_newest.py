"""The newest events of a stage, page by page, and the events of the windows that hold given commit_ts."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from binlake.lake import control, controlrows, windowlog
from binlake.lake.controltables import WINDOW
from binlake.lake.ddls import read_landed_ddls, read_newest_ddls
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog
from deploy.local.sample_lake import BASE, S, build_sample


def test_newest_events_equal_those_of_the_whole_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Many small files and few large ones, so that the search has to know when to stop.
    monkeypatch.setattr(control, "COMPACT_EVERY", 10)
    log = WindowLog(LakePaths(str(tmp_path)))
    for hi in [20, 40, 10, 30, 60, 50]:
        log.record(WindowEvent("land", hi - 10, hi, "done"))
        log.record(WindowEvent("mirror", hi - 10, hi, "started"))
        log.record(WindowEvent("plan", hi, hi + 5, "blocked", blocked_by=f"p{hi}"))
    assert [event["hi"] for event in log.read_newest(("land",), 3)] == [60, 50, 40]
    assert [event["hi"] for event in log.read_newest(("land",), 2, 35)] == [30, 20]
    assert [event["hi"] for event in log.read_newest(("land",), 99)] == [60, 50, 40, 30, 20, 10]
    assert log.read_newest(("mirror",), 9) == []
    assert (log.read_last_event(("plan", "land")) or {})["blocked_by"] == "p50"
    # A commit_ts lies in (lo, hi].
    assert sorted({event["hi"] for event in log.read_events_at([10, 11, 60]) if event["stage"] == "land"}) == [
        10,
        20,
        60,
    ]
    assert log.read_events_at([]) == []


def test_reads_of_single_row_groups_find_what_reads_of_all_rows_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windowlog, "WINDOW", replace(WINDOW, group_rows=4))
    monkeypatch.setattr(controlrows, "SMALL_BYTES", 0)
    monkeypatch.setattr(control, "COMPACT_EVERY", 5)
    chance, log, known = random.Random(7), WindowLog(LakePaths(str(tmp_path))), []
    for _ in range(12):
        events = [WindowEvent(chance.choice(("land", "merge")), lo, lo + 10, "done", rows=chance.randrange(9))
                  for lo in chance.choices(range(0, 400, 10), k=9)]  # fmt: skip
        log.record_together(events)
        known += events
    for _ in range(40):
        moments = chance.choices(range(420), k=chance.randrange(1, 6))
        found = sorted((row["stage"], row["hi"], row["rows"]) for row in log.read_events_at(moments, ("land",)))
        assert found == sorted(
            ("land", one.hi, one.rows)
            for one in known
            if one.stage == "land" and any(one.lo < ts <= one.hi for ts in moments)
        )
        upto, count = chance.randrange(420), chance.randrange(1, 20)
        his = sorted((one.hi for one in known if one.stage == "merge" and one.hi <= upto), reverse=True)
        assert [row["hi"] for row in log.read_newest(("merge",), count, upto)] == his[:count]
    assert log.find_greatest_hi("land") == max(one.hi for one in known if one.stage == "land")


def test_empty_log_has_no_events(tmp_path: Path) -> None:
    log = WindowLog(LakePaths(str(tmp_path)))
    assert (log.read_newest(("land",), 3), log.read_last_event(("land",)), log.read_events_at([1])) == ([], None, [])


@pytest.mark.long
def test_ddl_of_a_lake_are_listed_by_time_and_by_table(tmp_path: Path) -> None:
    paths = LakePaths(str(tmp_path / "shop"))
    assert read_newest_ddls(paths, 5) == []
    build_sample(paths)
    (line,) = read_newest_ddls(paths, 5)
    assert (line.commit_ts, line.sql, line.decision) == (
        BASE + 25 * S,
        "ALTER TABLE item ADD COLUMN stock INT",
        "apply",
    )
    assert read_newest_ddls(paths, 5, BASE + 25 * S - 1) == []
    assert [ddl.commit_ts for ddl in read_landed_ddls(paths, BASE, BASE + 40 * S, ("SHOP", "Item"))] == [line.commit_ts]
    assert read_landed_ddls(paths, BASE, BASE + 40 * S, ("shop", "pair")) == []
