"""Values of target-only columns move with their row, and never to two rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlake.changes.net.origins import trace_origins


# hazards R-12: moved keys take their old row's values
@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        ([], {}),
        ([("1", "2")], {"1": None, "2": "1"}),
        # a chain, a way back, a swap over a third key
        ([("1", "2"), ("2", "3")], {"1": None, "2": None, "3": "1"}),
        ([("1", "2"), ("2", "1")], {"2": None}),
        ([("1", "9"), ("2", "1"), ("9", "2")], {"1": "2", "2": "1", "9": None}),
        # 1 was deleted, and 2 took its key, so the values of 1 are lost
        ([("2", "1"), ("1", "3")], {"1": None, "2": None, "3": "2"}),
    ],
)
def test_origins_of_moved_keys(moves: list[tuple[str, str]], expected: dict[str, str | None]) -> None:
    assert trace_origins(moves) == expected


KEY = st.sampled_from("abcde")


@given(st.lists(st.tuples(KEY, KEY).filter(lambda move: move[0] != move[1]), max_size=12))
def test_origins_equal_moving_one_after_the_other(moves: list[tuple[str, str]]) -> None:
    held: dict[str, str | None] = {key: key for key in "abcde"}
    for old, new in moves:
        held[new], held[old] = held[old], None
    found = trace_origins(moves)
    assert {key: found.get(key, key) for key in "abcde"} == held
    taken = [origin for origin in held.values() if origin is not None]
    assert len(taken) == len(set(taken))
