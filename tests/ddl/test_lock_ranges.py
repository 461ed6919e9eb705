"""Holds of tables that share a target: when they end, their JSON form, and the target's definition meanwhile."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.tabledefs import col, table

from binlake import tso
from binlake.ddl.shardlocks import OPEN, Hold, Locks, PassedOver, Resolution

BEFORE, AFTER, LAST = (table("t", *map(col, names), id=7) for names in ("i", "ij", "ijk"))
FIRST = Hold(("all", "t"), ("s1", "T_1"), 20, 21, "ALTER 1", BEFORE, AFTER, until=30)
SECOND = replace(FIRST, since=30, commit_ts=31, sql="ALTER 2", before=AFTER, after=LAST, until=OPEN)
PASSED = PassedOver(("all", "t"), ("s2", "T_2"), 25, AFTER)


@pytest.mark.parametrize(
    ("until", "released", "end"),
    [(OPEN, OPEN, 51), (40, OPEN, 40), (OPEN, 45, 45), (40, 45, 40), (45, 40, 40), (60, OPEN, 51)],
)
def test_hold_ends_with_the_next_step_its_release_or_the_window(until: int, released: int, end: int) -> None:
    assert replace(FIRST, until=until, released=released).compute_end(50) == end


def test_locks_are_read_back_from_json() -> None:
    hold = replace(FIRST, released=40, filled={"k": "5"})
    passed = replace(PASSED, until=60)
    locks = Locks((hold, SECOND), (passed, PASSED))
    text = json.dumps(locks.to_dict())
    again = Locks.from_dict(json.loads(text))
    assert json.dumps(again.to_dict()) == text
    for one, other in zip(again.holds, locks.holds, strict=True):
        assert replace(one, before=other.before, after=other.after) == other
    for back, put in zip(again.passed, locks.passed, strict=True):
        assert replace(back, table=put.table) == put
    found = again.holds[0]
    assert [(side.db, side.name, side.id, [c.name for c in side.columns]) for side in (found.before, found.after)] == [
        ("d", "t", 7, ["i"]), ("d", "t", 7, ["i", "j"]),
    ]  # fmt: skip
    assert Locks().to_dict() == {}
    command = Resolution(("all", "t"), (("s2", "T_2"), ("s3", "T_3")), "ALTER by hand")
    assert Resolution.from_dict(json.loads(json.dumps(command.to_dict()))) == command


def count_columns(locks: Locks, ts: int) -> dict[str, int]:
    """The number of columns that the target has for each table."""
    return {source: len(definition.columns) for (_, source), definition in locks.list_definitions_at(ts).items()}


def test_target_keeps_the_definition_before_the_first_waiting_step() -> None:
    locks = Locks((SECOND, FIRST))
    assert [count_columns(locks, ts) for ts in (19, 20, 30, 99)] == [{}, {"t_1": 1}, {"t_1": 1}, {"t_1": 1}]
    released = Locks((SECOND, replace(FIRST, released=40)))
    assert [count_columns(released, ts) for ts in (20, 39, 40, 99)] == [{"t_1": 1}, {"t_1": 1}, {"t_1": 2}, {"t_1": 2}]


def test_renamed_table_is_listed_under_its_current_name() -> None:
    locks = Locks((FIRST, replace(SECOND, source=("s1", "T_9"))))
    assert [count_columns(locks, ts) for ts in (29, 30)] == [{"t_1": 1}, {"t_9": 1}]


def test_rows_are_held_from_the_start_of_a_hold_until_its_end() -> None:
    assert [Locks((FIRST,)).list_held_tables(ts) for ts in (19, 20, 29, 30)] == [
        set(),
        {FIRST.source},
        {FIRST.source},
        set(),
    ]


def test_table_passed_over_is_listed_until_it_follows() -> None:
    locks = Locks((), (replace(PASSED, until=60),))
    assert [count_columns(locks, ts) for ts in (24, 25, 59, 60)] == [{}, {"t_2": 2}, {"t_2": 2}, {}]
    assert [count_columns(Locks((), (PASSED,)), ts) for ts in (24, 25, 1 << 60)] == [{}, {"t_2": 2}, {"t_2": 2}]


def test_last_version_of_a_hold_in_several_windows_counts() -> None:
    former = Locks((FIRST, SECOND), (PASSED,))
    later = Locks((replace(FIRST, released=40),), (replace(PASSED, until=60),))
    joined = Locks.join([former, later])
    assert joined == Locks((*later.holds, SECOND), later.passed)
    assert joined.still_open == Locks((SECOND,), ())
    assert former.still_open == former
    assert [bool(one) for one in (joined, Locks((FIRST,)), Locks((), (PASSED,)), Locks())] == [True, True, True, False]


def test_waiting_seconds_and_the_alert_follow_the_clock() -> None:
    begin = 1_795_000_000_000
    hold = replace(FIRST, since=tso.compose(begin, 0))

    def after(ms: int) -> int:
        return tso.compose(begin + ms, 0)

    locks = Locks((hold,))
    assert locks.list_waiting(after(3_600_000))[0]["seconds"] == "3600"
    assert [bool(locks.list_alerts(after(lo), after(hi), 90)) for lo, hi in (
        (0, 90_000), (0, 90_001), (90_000, 90_001), (90_000, 200_000), (90_001, 200_000)
    )] == [False, True, True, True, False]  # fmt: skip
