"""Held rows of `mutation`: left out while they wait, then placed at their release, next to any other rows."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest
from support.examples import seeds
from support.tabledefs import col, table

from binlake.ddl.shardlocks import OPEN, Hold
from binlake.ddl.sharedrows import ReleasedRange, apply_holds, find_released_ranges
from binlake.rows.codec import MUTATION_SCHEMA

DEFINITION = table("t", col("i"))
FILLED = {"x": "1", "é": ""}
HI = 40


def hold(source: str, since: int, until: int = OPEN, released: int = OPEN, **filled: str) -> Hold:
    return Hold(("all", "t"), ("d", source), since, since, "", DEFINITION, DEFINITION, until, released, filled)


def test_released_rows_of_earlier_windows_are_selected() -> None:
    """For a window (30, 40]: its releases of rows at or below 30."""
    holds = [
        hold("a", 10, 20, 35),
        hold("b", 10, OPEN, 35),
        hold("c", 30, OPEN, 40),
        hold("d", 30, 31, 31),
        hold("released before", 10, 20, 30),
        hold("released behind", 10, 20, 41),
        hold("begins here", 31, OPEN, 40),
        hold("waits", 10, 20),
    ]
    assert find_released_ranges(holds, 30, 40) == [
        ReleasedRange(("d", "a"), 9, 19),
        ReleasedRange(("d", "b"), 9, 30),
        ReleasedRange(("d", "c"), 29, 30),
        ReleasedRange(("d", "d"), 29, 30),
    ]


def draw_rows(draw: Random) -> list[dict[str, Any]]:
    return [
        {
            "commit_ts": (commit := draw.randint(1, HI)),
            "start_ts": commit - 1,
            "source_db": draw.choice(["d", "D", "e"]),
            "source_table": draw.choice(["t", "u", "v"]),
            "before": draw.choice([None, [("i", "1")]]),
            "after": draw.choice([None, [], [("i", "2"), ("j", None)]]),
        }
        for _ in range(draw.randint(0, 14))
    ]


def draw_holds(draw: Random) -> list[Hold]:
    """Consecutive steps of two tables; released holds are released at one of the steps or later."""
    found = []
    for source in ("t", "u"):
        places = sorted(draw.sample(range(1, HI + 5), draw.randint(0, 4) + 1))
        for since, until in zip(places, [*places[1:], OPEN], strict=True):
            released = draw.choice([OPEN, draw.randint(max(since, until) + 1, HI + 6)])
            filled = draw.choice([{}, FILLED])
            found.append(hold(source, since, until, released, **filled))
    draw.shuffle(found)
    return found


def place_row(row: dict[str, Any], holds: list[Hold]) -> list[dict[str, Any]]:
    """Place one row by the rule."""
    for one in holds:
        end = min(end or HI + 1 for end in (one.until, one.released))
        if (row["source_db"], row["source_table"]) != one.source or not one.since <= row["commit_ts"] < end:
            continue
        if one.released == OPEN or one.released > HI:
            return []
        images = {
            name: None if row[name] is None else [*row[name], *one.filled.items()] for name in ("before", "after")
        }
        return [{**row, **images, "commit_ts": one.released, "start_ts": row["commit_ts"]}]
    return [row]


@pytest.mark.parametrize("seed", seeds(100))
def test_each_row_is_placed_by_its_hold(seed: int) -> None:
    draw = Random(seed)
    rows, holds = draw_rows(draw), draw_holds(draw)
    cut = draw.randint(0, len(rows))
    batches = [pa.RecordBatch.from_pylist(part, MUTATION_SCHEMA) for part in (rows[:cut], rows[cut:])]
    found = apply_holds(pa.Table.from_batches(batches, MUTATION_SCHEMA), holds, HI)
    found.validate(full=True)
    assert found.schema == MUTATION_SCHEMA
    wanted = [one for row in batches[0].to_pylist() + batches[1].to_pylist() for one in place_row(row, holds)]
    assert found.to_pylist() == wanted


def test_batch_without_held_rows_is_returned_unchanged() -> None:
    rows = pa.Table.from_pylist(draw_rows(Random(3)), MUTATION_SCHEMA)
    found = apply_holds(rows, [hold("other", 1, OPEN, 30)], HI)
    assert found.equals(rows)
