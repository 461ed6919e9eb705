"""`make captures`: which folders are captures, and the one line that it prints for each."""

from __future__ import annotations

from pathlib import Path

import pytest

from binlake.errors import ConfigError
from binlake.testkit.captures.capture import StateAt
from deploy.local.captures import CaptureResult, list_captures, place_states, select_sample


def test_every_folder_with_binlogs_is_a_capture(tmp_path: Path) -> None:
    for name, file in (("b", "binlogs.bin"), ("a", "binlogs.bin.gz"), ("wire", "samples.bin")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
    (tmp_path / "README.md").touch()
    assert [capture.name for capture in list_captures(tmp_path)] == ["a", "b"]
    assert [capture.name for capture in list_captures(tmp_path / "b")] == ["b"]


def test_folder_without_captures_is_one_clear_error(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ConfigError, match="no capture found"):
            list_captures(folder)


def test_line_says_equal_or_shows_the_first_difference() -> None:
    outcome = CaptureResult(
        "keys", "direct", transactions=1246, rows=3000, states=5, recorded=9, windows=6, seconds=12.34
    )
    words = [
        "keys",
        "direct",
        "1246",
        "transactions",
        "3000",
        "rows",
        "5",
        "of",
        "9",
        "states",
        "6",
        "windows",
        "12.3",
        "s",
    ]
    assert outcome.format_line().split() == [*words, "equal"]
    outcome.difference = "at 7 (end): keys_db.t: 1 rows missing"
    assert outcome.format_line().split() == [*words, "differs:", *outcome.difference.split()]
    assert not outcome.equal


def test_sampled_states_are_spread_evenly_and_include_the_last() -> None:
    states = [StateAt(ts, "", None, None, ()) for ts in range(1, 12)]
    assert [state.commit_ts for state in select_sample(states, 3)] == [1, 6, 11]
    assert [state.commit_ts for state in select_sample(states, 1)] == [11]
    assert select_sample(states, 0) == select_sample(states, 99) == states


def test_states_read_long_after_the_last_commit_are_compared_right_after_it() -> None:
    first, later, last = (StateAt(ts, "", None, None, ()) for ts in (3, 8, 9_000_000))
    assert place_states([first, later, last], 7) == {3: [first], 7: [later, last]}
