"""The state of a feed follows from the last event of its sink; a removed feed leaves none to the next of its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from binlake import tso
from binlake.errors import Fenced, Permanent, SchemaError, Transient
from binlake.feed.state import (
    read_progress,
    read_state,
    record_feed_error,
    record_finish,
    record_pause,
    record_removal,
    record_resume,
)
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.pipeline import name_feed_sink

FEED = "kafka-avro"
T1, T2, T3 = (tso.compose(1_700_000_000_000 + 1000 * second, 0) for second in (0, 5, 9))


def done(windows: WindowLog, stage: str, lo: int, hi: int, sink: str = name_feed_sink(FEED)) -> None:
    windows.record(WindowEvent(stage, lo, hi, "done", sink=sink))


@pytest.fixture
def windows(tmp_path: Path) -> WindowLog:
    log = WindowLog(LakePaths(str(tmp_path / "lake")))
    done(log, "land", T1, T3, sink="")
    return log


def test_feed_without_events_is_normal_with_the_position_of_publish(windows: WindowLog) -> None:
    assert (read_state(windows, FEED).state, read_state(windows, FEED).works) == ("normal", True)
    assert read_progress(windows, FEED, T1).lag_s == 9
    done(windows, "encode", T1, T3)
    done(windows, "publish", T1, T2)
    done(windows, "publish", T1, T3, sink=name_feed_sink("other"))
    progress = read_progress(windows, FEED, T1)
    assert (progress.checkpoint, progress.encoded, progress.landed, progress.lag_s) == (T2, T3, T3, 4)


def test_feed_is_paused_and_resumed_by_an_operator(windows: WindowLog) -> None:
    assert record_pause(windows, FEED, reason="consumers upgrade").works is False
    state = read_state(windows, FEED)
    assert (state.state, state.reason) == ("stopped", "consumers upgrade")
    assert read_state(windows, "other").state == "normal"
    assert "consumers upgrade" in state.explain_skip(FEED)
    assert record_resume(windows, FEED).state == "normal"


# S2-39
def test_only_a_permanent_error_stops_a_feed_and_the_state_names_its_position(windows: WindowLog) -> None:
    for error in (Transient("away"), Fenced("another publisher"), ValueError("a fault")):
        record_feed_error(windows, FEED, "publish", error, run_id="r")
    assert read_state(windows, FEED).state == "normal"
    where = {"table": "shop.item", "subject": "t-value", "commit_ts": T2}
    record_feed_error(windows, FEED, "publish", SchemaError("refused", where=where, hint="fix it"), run_id="r")
    state = read_state(windows, FEED)
    assert state.state == "error"
    assert state.error is not None
    assert dict(state.error.where) == {"table": "shop.item", "subject": "t-value", "commit_ts": str(T2)}
    assert (state.error.stage, state.error.text, state.error.hint) == ("publish", "refused", "fix it")
    assert "table=shop.item" in state.explain_skip(FEED)
    assert record_resume(windows, FEED).error is None


def test_removed_feed_leaves_no_position_to_the_next_of_its_name(windows: WindowLog) -> None:
    done(windows, "publish", T1, T2)
    removed = record_removal(windows, FEED)
    assert (removed.state, removed.life) == ("removed", 1)
    assert read_progress(windows, FEED).checkpoint is None
    again = record_resume(windows, FEED)
    assert (again.state, again.life, again.life_ms) == ("normal", 1, removed.since_ms)
    assert read_progress(windows, FEED).checkpoint is None


def test_events_of_one_millisecond_keep_their_order(windows: WindowLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("binlake.lake.windowlog.time.time_ns", lambda: 1_800_000_000_000_000_000)
    record_pause(windows, FEED)
    record_resume(windows, FEED)
    record_finish(windows, FEED)
    assert (read_state(windows, FEED).state, read_state(windows, FEED).number) == ("finished", 3)


def test_reading_a_state_creates_no_lake(tmp_path: Path) -> None:
    windows = WindowLog(LakePaths(str(tmp_path / "none")))
    with pytest.raises(Permanent, match="no lake"):
        record_pause(windows, FEED)
    assert not windows.exists()
    assert read_state(windows, FEED).state == "normal"
