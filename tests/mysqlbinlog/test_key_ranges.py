"""Read and unread ranges of a key: a random load, interrupted and resumed, is checked key by key."""

from __future__ import annotations

import itertools
import json
from random import Random

import pytest
from support.examples import seeds

from binlake.mysqlbinlog.tablerows.ranges import KeyRange, KeyRanges

KEYS = 12
"""Keys are 1 to 12; a bound is one of them, "" below the first and above the last."""


def keys_of(keys: KeyRange) -> range:
    return range(int(keys.low or 0) + 1, int(keys.high or KEYS) + 1)


def read_by_key(stored: list[tuple[str, str, int]]) -> dict[int, int]:
    """The snapshot of each key; the ranges cover every key once, in order."""
    by_key: dict[int, int] = {}
    assert (stored[0][0], stored[-1][1]) == ("", "")
    for (_, high, _), (low, _, _) in itertools.pairwise(stored):
        assert high == low
    for low, high, snapshot in stored:
        by_key |= {key: snapshot for key in keys_of(KeyRange(low, high)) if key not in by_key}
    return by_key


@pytest.mark.parametrize("seed", seeds(40))
def test_every_key_is_read_once_however_often_reading_restarts(seed: int) -> None:  # S4-24
    draw = Random(seed)
    ranges, read = KeyRanges(), dict.fromkeys(range(1, KEYS + 1), -1)
    for snapshot in range(30):
        claimed: list[KeyRange] = []
        for _ in range(draw.randint(0, 6)):
            if (left := ranges.find_next()) is not None and draw.random() < 0.6:
                keys = keys_of(left)
                bound = draw.choice([str(key) for key in keys if key < KEYS and str(key) != left.high] + [left.high])
                claimed.append(part := ranges.claim(left, bound))
                assert (part.low, part.high) == (left.low, bound)
            elif claimed:
                done = claimed.pop(draw.randrange(len(claimed)))
                ranges.finish(done.low, done.high, snapshot)
                read |= dict.fromkeys(keys_of(done), snapshot)
        assert read_by_key(ranges.store()) == read
        assert ranges.snapshots == sorted({snapshot for snapshot in read.values() if snapshot >= 0})
        assert ranges.is_complete == (min(read.values()) >= 0)
        # Adjacent ranges of one snapshot are merged, so that a large table has few.
        stored = ranges.store()
        assert all(first[2] != other[2] for first, other in itertools.pairwise(stored))
        # The next process continues from what is stored: a range that was being read counts as unread.
        ranges = KeyRanges.of(json.loads(json.dumps(stored)))
        first = ranges.find_next()
        assert (first is None) == ranges.is_complete
        assert first is None or keys_of(first)[0] == min(key for key, snapshot in read.items() if snapshot < 0)


def test_parts_that_are_being_read_are_not_merged() -> None:
    """Each part is finished by its own bounds."""
    ranges = KeyRanges()
    for bound in ("3", "5", ""):
        left = ranges.find_next()
        assert left is not None
        ranges.claim(left, bound)
    assert ranges.find_next() is None
    ranges.finish("3", "5", 0)
    assert ranges.store() == [("", "3", -1), ("3", "5", 0), ("5", "", -1)]
    ranges.finish("", "3", 0)
    ranges.finish("5", "", 0)
    assert ranges.store() == [("", "", 0)]
