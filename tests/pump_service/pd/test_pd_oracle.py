"""Timestamps are unique and increase, across restarts and clock steps; and the led clock of a replay."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from binlake import tso
from binlake.errors import ConfigError, Permanent
from binlake.pump_service.pd.oracle import LED_LOGICAL, Oracle

NOW = 1_795_000_000_000
BOUND = tso.compose(NOW, 1)


def test_batches_are_unique_and_increasing(tmp_path: Path) -> None:  # S0-16
    oracle = Oracle(tmp_path, now_ms=lambda: NOW)
    last = 0
    for count in (1, 7, 1000, 1, 3):
        given_now = oracle.take(count)
        assert given_now - count >= last
        last = given_now


def test_a_full_millisecond_moves_the_whole_batch_to_the_next(tmp_path: Path) -> None:  # S0-16
    oracle = Oracle(tmp_path, now_ms=lambda: NOW)
    oracle.take(100_000)
    oracle.take(100_000)
    last = oracle.take(100_000)
    assert tso.extract_physical(last) == NOW + 1
    assert tso.extract_logical(last) >= 99_999


def test_a_restart_with_the_clock_set_back_gives_greater_timestamps(tmp_path: Path) -> None:  # S0-16 R-09
    before = Oracle(tmp_path, now_ms=lambda: NOW).take(5)
    assert Oracle(tmp_path, now_ms=lambda: NOW - 3_600_000).take(1) > before


@settings(max_examples=examples(30), deadline=None)
@given(steps=st.lists(st.tuples(st.integers(-5000, 5000), st.booleans(), st.integers(1, 500)), max_size=12))
def test_timestamps_never_repeat(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, bool, int]]) -> None:
    folder, clock, last = tmp_path_factory.mktemp("tso"), [NOW], 0
    oracle = Oracle(folder, now_ms=lambda: clock[0])
    for step, restart, count in steps:
        clock[0] += step
        if restart:
            oracle = Oracle(folder, now_ms=lambda: clock[0])
        taken = oracle.take(count)
        assert taken - count >= last
        last = taken


def test_a_led_clock_stays_just_below_its_bound(tmp_path: Path) -> None:
    oracle = Oracle(tmp_path, led_from=1, now_ms=lambda: NOW)
    assert oracle.take(1) < tso.compose(2)
    oracle.lead(BOUND)
    taken = oracle.take(1)
    assert tso.extract_physical(taken) == NOW - 1
    assert tso.extract_logical(taken) >= LED_LOGICAL, "never one of the recorded cluster's own timestamps"
    assert oracle.take(3) == taken + 3


def test_a_led_clock_waits_for_room_and_continues_when_the_bound_moves(tmp_path: Path) -> None:
    oracle = Oracle(tmp_path, led_from=1, now_ms=lambda: NOW)
    oracle.lead(BOUND)
    oracle.take(60_000)
    oracle.take(60_000)
    with pytest.raises(TimeoutError):
        oracle.take(60_000, wait_s=0.05)
    taken: list[int] = []
    waiter = threading.Thread(target=lambda: taken.append(oracle.take(60_000, wait_s=60)))
    waiter.start()
    oracle.lead(tso.compose(NOW + 5))
    waiter.join()
    assert tso.compose(NOW) < taken[0] < tso.compose(NOW + 5)


def test_a_released_clock_advances_in_real_time_from_the_bound(tmp_path: Path) -> None:
    now = NOW + 50_000_000
    oracle = Oracle(tmp_path, led_from=1, now_ms=lambda: now)
    oracle.lead(BOUND)
    oracle.release()
    first = oracle.take(1)
    assert first > BOUND
    now += 1000
    assert tso.extract_physical(oracle.take(1)) - tso.extract_physical(first) == 1000


def test_the_clock_is_still_led_after_a_restart(tmp_path: Path) -> None:
    oracle = Oracle(tmp_path, led_from=1, now_ms=lambda: NOW)
    oracle.lead(BOUND)
    before = oracle.take(1)
    again = Oracle(tmp_path, now_ms=lambda: NOW + 10_000_000)
    assert tso.extract_physical(again.lead(BOUND + 1)) <= NOW
    again.lead(tso.compose(NOW + 3))
    assert before < again.take(1) < tso.compose(NOW + 3)


def test_a_bound_below_given_timestamps_is_refused(tmp_path: Path) -> None:
    oracle = Oracle(tmp_path, now_ms=lambda: NOW)
    oracle.take(1)
    with pytest.raises(Permanent, match="already given out"):
        oracle.lead(tso.compose(NOW - 5))


def test_restarts_of_a_held_clock_repeat_no_timestamp_and_never_pass_the_bound(tmp_path: Path) -> None:
    Oracle(tmp_path, led_from=1, now_ms=lambda: NOW).lead(BOUND)
    last, full = 0, False
    # Each restart skips the timestamps reserved ahead, until the millisecond below the bound is used up.
    while not full:
        oracle = Oracle(tmp_path, now_ms=lambda: NOW)
        try:
            taken = oracle.take(1, wait_s=0)
        except TimeoutError:
            full = True
        else:
            assert last < taken < BOUND
            last = taken
    assert last > 0
    # The replayer can still move the bound, however little.
    again = Oracle(tmp_path, now_ms=lambda: NOW)
    assert again.lead(BOUND + 1) < BOUND


def test_an_unreadable_bound_is_an_error(tmp_path: Path) -> None:
    Oracle(tmp_path).take(1)
    (tmp_path / "tso.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tso\.json"):
        Oracle(tmp_path)


def test_a_bound_that_was_not_saved_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # S0-16
    now = [NOW]
    oracle = Oracle(tmp_path, now_ms=lambda: now[0])
    oracle.take(1)
    now[0] += 10_000

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("binlake.pump_service.pd.oracle.replace_file", full)
        for _ in range(3):
            with pytest.raises(OSError, match="No space"):
                oracle.take(1)
        with pytest.raises(OSError, match="No space"):
            oracle.lead(tso.compose(NOW + 60_000))
        with pytest.raises(OSError, match="No space"):
            oracle.take(1)
    last = oracle.take(1)
    assert tso.extract_physical(last) == NOW + 10_000, "a lead that was not saved has no effect"
    assert Oracle(tmp_path, now_ms=lambda: NOW).take(1) > last


def test_a_flipped_bit_in_the_saved_bound_is_an_error(tmp_path: Path) -> None:  # S0-16
    oracle = Oracle(tmp_path, now_ms=lambda: NOW)
    oracle.take(1)
    file = tmp_path / "tso.json"
    whole = file.read_bytes()
    for at in range(len(whole)):
        for bit in range(8):
            file.write_bytes(whole[:at] + bytes((whole[at] ^ 1 << bit,)) + whole[at + 1 :])
            try:
                again = Oracle(tmp_path, now_ms=lambda: NOW)
            except ConfigError:
                continue
            assert again._saved == oracle._saved, f"byte {at}, bit {bit}"
