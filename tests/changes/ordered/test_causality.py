"""Which changes wait for others: DM's relation (data-migration 6.4) and the drainer's itest example."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tabledefs import col, key, primary, table

from binlake.changes.net import RowEvent
from binlake.changes.ordered import ChangeKeys, build_detector
from binlake.changes.ordered.rounds import Causality, FlushAll

T = table("t", col("a"), col("b"), keys=(primary("a"), key("b", "b")))


def event(before: tuple[int, int] | None, after: tuple[int, int] | None) -> RowEvent:
    images = [None if row is None else {"a": str(row[0]), "b": str(row[1])} for row in (before, after)]
    op = "insert" if before is None else "delete" if after is None else "update"
    return RowEvent(1, 0, 0, op, *images)


def test_keys_of_one_change_form_one_group() -> None:
    # S4-14: {t1,t2,t3} one group, {t4} its own, {t4,t3} a conflict
    found = Causality()
    first = found.add(["t1", "t2", "t3"])
    assert not first.flush
    assert found.groups == {"t1": "t1", "t2": "t1", "t3": "t1"}
    assert found.add(["t4"]).group == "t4"
    last = found.add(["t4", "t3"])
    assert last.flush
    # The barrier clears all keys; then the new keys are in flight.
    assert found.groups == {"t4": "t4", "t3": "t4"}


def test_change_that_links_two_groups_is_a_conflict() -> None:
    # S4-13: dml dml dml dml conflict dml
    found, of = Causality(), ChangeKeys(T, "mariadb")
    history = [event(None, (1, 2)), event(None, (2, 3)), event((2, 3), (3, 4)), event((1, 2), None)]
    assert [found.add(of.list_keys(change)).flush for change in history] == [False] * 4
    assert found.add(of.list_keys(event(None, (1, 3)))).flush


ITEST = [["4", "3"], ["5", "2"], ["3"]]
"""update itest set id=4 where id=3; update itest set id=5 where id=2; delete from itest where id=3."""


def test_the_itest_example_under_the_drainers_rule() -> None:
    # S0-68, S0-69: dispatch, dispatch, flush, dispatch
    found = FlushAll()
    seen = []
    for keys in ITEST:
        flush = found.add(keys).flush
        seen.append((flush, set(found.keys)))
    assert seen == [(False, {"3", "4"}), (False, {"2", "3", "4", "5"}), (True, {"3"})]


def test_the_itest_example_under_causality() -> None:
    # S4-16: the third joins the first one's group, without a barrier
    found = Causality()
    decisions = [found.add(keys) for keys in ITEST]
    assert [decision.flush for decision in decisions] == [False, False, False]
    assert decisions[2].group == decisions[0].group != decisions[1].group


@pytest.mark.parametrize("strategy", ["causality", "flush"])
def test_flush_clears_all_keys(strategy: str) -> None:
    found = build_detector(strategy)  # type: ignore[arg-type]
    for number in range(11):
        found.add([number, number + 1] if strategy == "causality" else [number])
    found.clear()
    assert not found.add([3, 7]).flush


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True), max_size=60))
def test_changes_that_share_a_key_are_separated_or_in_one_group(history: list[list[int]]) -> None:
    # S4-14, and the drainer's rule is never laxer than this
    for found in (Causality(), FlushAll()):
        since_barrier: list[tuple[set[int], object]] = []
        for keys in history:
            decision = found.add(keys)
            if decision.flush:
                since_barrier.clear()
            for other, group in since_barrier:
                assert other.isdisjoint(keys) or group == decision.group
            since_barrier.append((set(keys), decision.group))
