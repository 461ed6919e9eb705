"""Maintenance deletes a feed's messages only after they are published and a week has gone by."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from binlake import tso
from binlake.errors import LeaseHeld
from binlake.feed import upkeep
from binlake.feed.state import record_pause, record_removal, record_resume
from binlake.lake.lock import hold_lake_lock
from binlake.lake.paths import LakePaths
from binlake.lake.tables import MESSAGE, WORKING_DAYS, build_message_table
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.pipeline import name_feed_lock, name_feed_sink

DAY_MS = 86_400_000
ENDS = [tso.compose(1_795_000_000_000 + day * DAY_MS) for day in range(13)]
WINDOWS = list(itertools.pairwise(ENDS))
OLD = len(WINDOWS) - WORKING_DAYS
FEED = "kafka"


@pytest.fixture
def paths(tmp_path: Path) -> LakePaths:
    """Twelve windows of a day with one message each; the last one ended just now."""
    paths = LakePaths(str(tmp_path / "lake"))
    kinds = MESSAGE.build_arrow_schema()
    rows = [
        {"window": f"{lo}-{hi}", "commit_ts": hi, "start_ts": lo, "seq": 0, "part": 1, "db": "d", "table": "t",
         "op": "c", "topic": "d_t", "hash": 0, "key_schema": "k", "value_schema": "v", "key": b"1", "value": b"2"}
        for lo, hi in WINDOWS
    ]  # fmt: skip
    for row in rows:
        data = pa.Table.from_pylist([row], pa.schema([kinds.field(name) for name in MESSAGE.list_column_names()]))
        write_deltalake(
            paths.locate_table(build_message_table(FEED).name), data, partition_by=["window"], mode="append"
        )
    log = WindowLog(paths)
    log.record(WindowEvent("land", ENDS[0], ENDS[-1], "done", 12))
    return paths


def publish(paths: LakePaths, upto: int) -> WindowLog:
    log = WindowLog(paths)
    for lo, hi in WINDOWS[:upto]:
        log.record(WindowEvent("publish", lo, hi, "done", 1, sink=name_feed_sink(FEED)))
    return log


def list_remaining(paths: LakePaths) -> list[int]:
    """The windows whose messages still exist, by number."""
    found = (
        DeltaTable(paths.locate_table(build_message_table(FEED).name))
        .to_pyarrow_table(columns=["window"])
        .column(0)
        .to_pylist()
    )
    names = [f"{lo}-{hi}" for lo, hi in WINDOWS]
    return sorted(names.index(name) for name in found)


def tidy(paths: LakePaths) -> int:
    return upkeep.tidy_feed(paths, WindowLog(paths), FEED, ENDS[-1]).windows


@pytest.mark.long
def test_unpublished_messages_stay_at_any_age(paths: LakePaths) -> None:
    #
    assert tidy(paths) == 0
    log = publish(paths, 3)
    record_pause(log, FEED, reason="its registry is moved")
    assert tidy(paths) == 3
    assert list_remaining(paths) == list(range(3, 12))
    # Messages of a feed whose section is currently missing stay as well.
    assert upkeep.list_feeds_in_lake(paths, []) == [FEED]
    assert tidy(paths) == 0


def test_published_messages_stay_for_a_week(paths: LakePaths) -> None:
    publish(paths, 12)
    assert tidy(paths) == OLD
    assert list_remaining(paths) == list(range(OLD, 12))


def test_removed_feed_needs_no_messages_and_its_namesake_starts_anew(paths: LakePaths) -> None:
    log = publish(paths, 2)
    record_removal(log, FEED)
    record_resume(log, FEED)
    # What the former feed published does not count for the new one.
    assert tidy(paths) == 0
    record_removal(log, FEED)
    assert tidy(paths) == OLD


def test_small_files_of_a_window_are_joined(paths: LakePaths) -> None:
    place = paths.locate_table(build_message_table(FEED).name)
    rows = DeltaTable(place).to_pyarrow_table(filters=[("window", "=", f"{ENDS[-2]}-{ENDS[-1]}")])
    for _ in range(3):
        write_deltalake(place, rows, mode="append")
    assert upkeep.tidy_feed(paths, WindowLog(paths), FEED, ENDS[-1]).joined == 4
    assert len(DeltaTable(place).file_uris()) == 12


def test_maintenance_waits_only_for_the_feeds_own_lock(paths: LakePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "hold_lake_lock", lambda own, name: hold_lake_lock(own, name, wait_s=0))
    with hold_lake_lock(paths, name_feed_lock("other")):
        tidy(paths)
    with hold_lake_lock(paths, name_feed_lock(FEED)), pytest.raises(LeaseHeld):
        tidy(paths)


def test_lake_without_feeds_needs_no_maintenance(tmp_path: Path) -> None:
    assert upkeep.list_feeds_in_lake(LakePaths(str(tmp_path)), ["new"]) == []
