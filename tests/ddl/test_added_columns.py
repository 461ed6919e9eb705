"""Columns that routes add to row images: adding them batch-wise equals adding them row by row."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest
from support.examples import seeds

from binlake.ddl.sharedrows import Extra, add_columns
from binlake.rows.codec import MUTATION_SCHEMA

ADDED = [
    Extra("d", "t", 0, 5, {"x": "1"}),
    Extra("d", "t", 5, 90, {"x": "2", "é": ""}),
    Extra("d", "u", 3, 4, {"y": "3"}),
]


def draw_image(draw: Random) -> list[tuple[str, str | None]] | None:
    if draw.random() < 0.3:
        return None
    return [(f"c{n}", draw.choice([None, "", "v", "中"])) for n in range(draw.randint(0, 3))]


def draw_batch(draw: Random) -> pa.RecordBatch:
    rows = [
        {
            "commit_ts": draw.randint(0, 9),
            "source_db": draw.choice(["d", "e"]),
            "source_table": draw.choice(["t", "u", "v"]),
            "before": draw_image(draw),
            "after": draw_image(draw),
        }
        for _ in range(draw.randint(0, 12))
    ]
    first = draw.randint(0, len(rows))
    return pa.RecordBatch.from_pylist(rows, MUTATION_SCHEMA).slice(first)


def add_columns_by_row(row: dict[str, Any]) -> dict[str, Any]:
    for extra in ADDED:
        here = (row["source_db"], row["source_table"]) == (extra.db, extra.table)
        if here and extra.since <= row["commit_ts"] < extra.until:
            images = {name: row[name] and [*row[name], *extra.values.items()] for name in ("before", "after")}
            empty = {name: list(extra.values.items()) for name in images if row[name] == []}
            return {**row, **images, **empty}
    return row


@pytest.mark.parametrize("seed", seeds(200))
def test_batch_images_get_the_same_columns_as_row_by_row(seed: int) -> None:
    batch = draw_batch(Random(seed))
    found = add_columns(batch, ADDED)
    found.validate(full=True)
    assert found.schema == MUTATION_SCHEMA
    assert found.to_pylist() == [add_columns_by_row(row) for row in batch.to_pylist()]


def test_batch_without_added_columns_is_returned_unchanged() -> None:
    batch = draw_batch(Random(1))
    assert add_columns(batch, []) is batch
