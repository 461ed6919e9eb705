"""Chunks of net changes: the same for every caller and every order of rows, and equal to counting row by row."""

from __future__ import annotations

import itertools
from collections import Counter
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from support.examples import seeds
from support.netchanges import changes

from binlake.base.rowhash import hash_rows
from binlake.statements import BatchLimits, chunks
from binlake.statements.chunks import (
    BUCKETS,
    ENTRY_BYTES,
    TEXT_FACTOR,
    add_chunk_keys,
    cut_chunks,
    measure_sizes,
    number_chunks,
    split_by_chunk,
)

LIMITS = BatchLimits(rows=7)


def counted_by_row(rows: pa.Table) -> list[dict[str, Any]]:
    """The sizes, counted one row after the other."""
    found: dict[tuple[Any, ...], Counter[str]] = {}
    beginnings = pa.table({"key": [key.as_py().encode()[:-4] for key in rows["key"]]})
    for row, mixed in zip(rows.to_pylist(), hash_rows(beginnings, ["key"]).tolist(), strict=True):
        phase = 1 if row["op"] == "delete" else 2
        own = found.setdefault((row["segment"], phase, row["db"], row["table"], mixed % BUCKETS), Counter())
        image = row["before"] if row["after"] is None else row["after"]
        text = sum(len((value or "").encode()) for _, value in image) * TEXT_FACTOR + ENTRY_BYTES * len(image)
        own.update(rows=row["copies"], bytes=text * row["copies"])
    names = (*chunks.CHUNK_KEY, "bucket")
    return [dict(zip(names, place, strict=True)) | found[place] for place in sorted(found)]


@pytest.mark.parametrize("seed", seeds(20))
def test_sizes_equal_counting_row_by_row(seed: int) -> None:
    draw = Random(seed)
    rows = changes(draw, draw.choice([1, 2, 300]))
    assert chunks.sum_sizes(measure_sizes(add_chunk_keys(rows))) == counted_by_row(rows)


@pytest.mark.parametrize("seed", seeds(20))
def test_chunks_do_not_depend_on_how_rows_are_distributed(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:  # R-18 R-62
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 20)
    draw = Random(seed)
    rows = changes(draw, 400)
    whole = cut_chunks(chunks.sum_sizes(measure_sizes(add_chunk_keys(rows))), LIMITS)
    cuts = sorted(draw.sample(range(1, 400), 5))
    shares = [rows.slice(start, stop - start) for start, stop in zip([0, *cuts], [*cuts, 400], strict=True)]
    draw.shuffle(shares)
    parts = pa.concat_tables([measure_sizes(add_chunk_keys(share)) for share in shares])
    assert cut_chunks(chunks.sum_sizes(parts), LIMITS) == whole
    assert len({chunk.key for chunk in whole}) < len(whole)
    numbers = {key: number for share in shares for key, number in _numbers_by_row(share, whole)}
    assert numbers == dict(_numbers_by_row(rows, whole))
    for number, part in enumerate(
        split_by_chunk(add_chunk_keys(rows), number_chunks(add_chunk_keys(rows), whole), len(whole))
    ):
        assert [_chunk_key(row) for row in part.to_pylist()] == [whole[number].key] * part.num_rows
        assert set(part["bucket"].to_pylist()) == set(whole[number].buckets)


def _numbers_by_row(rows: pa.Table, cut: list[chunks.Chunk]) -> list[tuple[int, int]]:
    return list(zip(rows["last_commit_ts"].to_pylist(), number_chunks(add_chunk_keys(rows), cut).tolist(), strict=True))


def _chunk_key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in chunks.CHUNK_KEY)


def test_batch_numbers_of_a_phase_do_not_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 20)
    found = cut_chunks(chunks.sum_sizes(measure_sizes(add_chunk_keys(changes(Random(1), 400)))), LIMITS)
    for before, chunk in itertools.pairwise(found):
        follows = before.key[:2] == chunk.key[:2]
        assert chunk.first_batch == (before.last_batch + 1 if follows else 0)


def test_neighbouring_keys_share_a_bucket_and_buckets_are_balanced() -> None:
    # A bucket is the smallest unit of a call: a hundred rows whose keys have the same beginning, of any size.
    numbers = [f'["{number}"]' for number in range(100_000, 164_000)]
    rows = changes(Random(1), 1).take(pa.array([0] * len(numbers)))
    buckets = add_chunk_keys(rows.set_column(rows.column_names.index("key"), "key", pa.array(numbers)))[
        "bucket"
    ].to_pylist()
    assert {len(set(buckets[start : start + 100])) for start in range(0, len(buckets), 100)} == {1}
    counted = Counter(buckets)
    assert len(counted) == BUCKETS
    assert max(counted.values()) <= 2500


def test_no_rows_have_no_chunks() -> None:
    rows = add_chunk_keys(changes(Random(1), 0))
    assert cut_chunks(chunks.sum_sizes(measure_sizes(rows)), LIMITS) == []
    assert split_by_chunk(rows, number_chunks(rows, []), 0) == []
