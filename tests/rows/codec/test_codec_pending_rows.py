"""Bytes of rows that wait in a batch are returned unchanged, in the order of their group."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from codec_tables import as_payload, each, ints
from support.examples import seeds
from support.tidb_json import Tables, article_table

from binlake.rows.codec import MutationBatch, MutationBuilder
from binlake.rows.codec import lanes as lanes_of_rows
from binlake.rows.codec.lanes import PAD, Lanes
from binlake.rows.codec.pendingrows import PendingRows

NUMBERS = 5_000


def drawn_rows(draw: Random, count: int) -> list[bytes]:
    return [draw.randbytes(draw.choice([0, 1, 30])) for _ in range(count)]


@pytest.mark.parametrize("seed", seeds(60))
def test_rows_are_returned_in_group_order(seed: int) -> None:
    draw, kept = Random(seed), PendingRows()
    expected: dict[int, list[bytes]] = {}
    for _ in range(draw.randint(1, 6)):
        rows = drawn_rows(draw, draw.randint(1, 20))
        groups = [draw.choice([-1, 3, 4]) for _ in rows]
        for group, row in zip(groups, rows, strict=True):
            expected.setdefault(group, []).append(row)
        own = {group: [row for g, row in zip(groups, rows, strict=True) if g == group] for group in set(groups)}
        if draw.random() < 0.4:
            for group, alone in own.items():
                kept.add_alone(group, alone)
        else:
            lanes, of = Lanes.of(rows), np.asarray(groups)
            kept.add(lanes, {g: (lanes.starts[of == g], lanes.ends[of == g]) for g in own})
    found = kept.build_rows()
    assert {group: len(rows) for group, rows in found.items()} == {g: len(rows) for g, rows in expected.items()}
    for group, rows in found.items():
        assert rows.compute_sizes().tolist() == list(map(len, expected[group]))
        edges = sorted({0, len(rows), *(draw.randrange(len(rows) + 1) for _ in range(3))})
        parts = [rows.take(low, high) for low, high in pairwise(edges)]
        assert [part.read_row(n) for part in parts for n in range(len(part))] == expected[group]
        assert all(len(part.data) >= (part.ends.max() if len(part) else 0) + len(PAD) for part in parts)


@pytest.mark.parametrize("first", [0, 3])
def test_array_is_read_without_a_copy(first: int) -> None:
    rows = [b"abc", b"", b"\x00", b"d" * 40, b"", b"e"]
    array = pa.array(rows, pa.binary())
    for part in (array[first:], array[first : first + 2], array[:0]):
        lanes = Lanes.of(part)
        assert [lanes.read_row(n) for n in range(len(lanes))] == part.to_pylist()
        assert not len(lanes) or len(lanes.data) >= lanes.ends[-1] + len(PAD)


def test_distant_rows_are_copied_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_of_rows, "_MOST_SPREAD", 50)
    lanes = Lanes.of([b"a" * 20, b"b" * 40, b"c" * 20])
    far = Lanes(lanes.data, lanes.starts[::2], lanes.ends[::2]).slice_rows(0, 2)
    assert [far.read_row(0), far.read_row(1)] == [b"a" * 20, b"c" * 20]
    assert len(far.data) == 40 + len(PAD)


@pytest.mark.long
def test_left_out_rows_use_no_memory() -> None:
    """A batch waits until it is full of wanted rows; until then, unwanted rows must not fill the memory."""
    wanted = article_table()
    other = replace(wanted, id=46, name="left_out")
    batch = MutationBatch(route=lambda table: (table.db, table.name) if table.id == 45 else None)

    def payload(ts: int, table: object) -> bytes:
        return as_payload(ts, MutationBuilder(table).insert({"id": str(ts), "name": "x" * 1000}).message)  # type: ignore[arg-type]

    gc.collect()
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    for start in range(0, NUMBERS, 500):
        times = ints(*range(start, start + 500))
        payloads = pa.array([payload(ts, wanted if ts % 100 == 0 else other) for ts in times.tolist()], pa.binary())
        batch.add_all(payloads, times, times - 1, each(lambda _: Tables(wanted, other)))
        del payloads
    held = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes() - before
    tracemalloc.stop()
    assert len(batch) == NUMBERS // 100
    assert held < 1000 * NUMBERS // 5
    assert [row["commit_ts"] for row in batch.take().to_pylist()] == list(range(0, NUMBERS, 100))
