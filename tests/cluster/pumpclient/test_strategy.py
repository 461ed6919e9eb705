"""The choice of a pump: pure functions of any set of pumps (S0-41, S0-43 to S0-45)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlake.cluster.pumpclient import pumps as strategy

counts = st.integers(1, 12)
names = st.lists(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=6, unique=True)


@dataclass(frozen=True)
class Pump:
    node_id: str
    score: int = 0


@given(counts, st.integers(0, 10**6), st.integers(1, 10))
def test_range_is_even_from_any_offset(count: int, offset: int, rounds: int) -> None:
    # S0-43
    chosen = Counter(strategy.pick_by_turn(offset + n, count) for n in range(count * rounds))
    assert chosen == dict.fromkeys(range(count), rounds)


@given(counts, st.integers(0, 2**63 - 1))
def test_hash_is_fixed_and_its_retries_reach_all_pumps(count: int, start_ts: int) -> None:
    # S0-44
    assert strategy.pick_by_hash(start_ts, 0, count) == start_ts % count
    assert {strategy.pick_by_hash(start_ts, tries, count) for tries in range(count)} == set(range(count))


@given(st.dictionaries(st.text(min_size=1, max_size=4), st.integers(1, 15), min_size=1, max_size=6), st.integers(1, 3))
def test_choices_match_weights_exactly_and_are_spread_evenly(weight: dict[str, int], rounds: int) -> None:
    # S0-45: after each choice every pump is less than one turn away from its share.
    total, credit, chosen = sum(weight.values()), dict[str, int](), Counter[str]()
    for turn in range(1, total * rounds + 1):
        name, credit = strategy.pick_by_weight(weight, credit)
        chosen[name] += 1
        assert all(abs(chosen[n] - turn * w / total) < len(weight) for n, w in weight.items())
    assert chosen == {name: w * rounds for name, w in weight.items()}


@given(st.lists(st.integers(0, 100), min_size=1, max_size=8))
def test_pump_without_a_score_gets_the_average(scores: list[int]) -> None:
    found = strategy.compute_weights(scores)
    assert [w for w, score in zip(found, scores, strict=True) if score] == [score for score in scores if score]
    assert all(w > 0 for w in found)
    if not any(scores):
        assert set(found) == {1}


@given(names, st.data())
def test_score_skips_failed_pumps_until_all_have_failed(ids: list[str], data: st.DataObject) -> None:
    pumps = [Pump(name, data.draw(st.integers(0, 100))) for name in sorted(ids)]
    chooser = strategy.build_strategy("score")
    failed: list[str] = []
    for tries in range(len(pumps)):
        failed.append(pumps[chooser.pick(pumps, 1, tries, failed)].node_id)
    assert sorted(failed) == sorted(ids)
    assert chooser.pick(pumps, 1, len(pumps), failed) in range(len(pumps))


@given(st.lists(names, min_size=1, max_size=20), st.sampled_from(["range", "hash", "score"]))
def test_every_choice_is_a_current_pump_as_pumps_change(lists: list[list[str]], word: str) -> None:
    chooser = strategy.build_strategy(word)
    for start_ts, ids in enumerate(lists):
        pumps = [Pump(name, len(name)) for name in sorted(ids)]
        assert 0 <= chooser.pick(pumps, start_ts, 0, ()) < len(pumps)


def test_scores_30_and_70_get_300_and_700_of_1000_prewrites() -> None:
    # S0-45
    pumps, chooser = [Pump("a", 30), Pump("b", 70)], strategy.build_strategy("score")
    assert Counter(pumps[chooser.pick(pumps, n, 0, ())].node_id for n in range(1000)) == {"a": 300, "b": 700}


@pytest.mark.parametrize(
    ("label", "wanted", "own"),
    [
        ({"zone": "a", "disk": "ssd"}, {"zone": "a"}, True),
        ({"zone": "a"}, {"zone": "b"}, False),
        ({}, {"zone": "a"}, False),
        ({}, {}, True),
        ({"zone": "a"}, {"zone": "a", "disk": "ssd"}, False),
    ],
)
def test_label_requires_each_pair(label: dict[str, str], wanted: dict[str, str], own: bool) -> None:
    # S0-32
    assert strategy.matches_label(label, wanted) is own
