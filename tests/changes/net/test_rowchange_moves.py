"""The key moves of a window's rows: each table and segment has separate origins of its keys."""

from __future__ import annotations

import pyarrow as pa

from binlake.changes.net.origins import MOVES, ORIGINS, find_origins

SEGMENTS, TABLES = 3, 40


def test_origins_are_separate_for_each_table_and_segment() -> None:
    cells = [(segment, "d", f"t{number}") for segment in range(SEGMENTS) for number in range(TABLES)]
    moves = [
        (*cell, 1, 1, at, f"{cell[0]}.{cell[2]}.{at}", f"{cell[0]}.{cell[2]}.{at + 1}")
        for number, cell in enumerate(cells)
        for at in range(1 + number % 4)
    ]
    rows = [dict(zip(MOVES.names, row, strict=True)) for row in moves]
    found = find_origins(pa.Table.from_pylist(rows, schema=MOVES)).to_pylist()
    assert {(one["segment"], one["db"], one["table"]) for one in found} == set(cells)
    assert all(one["key"].startswith(f"{one['segment']}.{one['table']}.") for one in found)
    assert list(found[0]) == ORIGINS.names
