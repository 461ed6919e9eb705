"""Prove by digests that exactly the sealed batches are executed: one of a window's batches, one of each text (R-62)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

from binlake.base.lakecolumns import Statement
from binlake.errors import ImmutableWindow
from binlake.statements.batch import Phase, StatementBatch, compute_statement_digest

INDEX = (
    Statement.SEGMENT,
    Statement.PHASE,
    Statement.BATCH,
    Statement.DB,
    Statement.TABLE,
    Statement.ROWS,
    Statement.DIGEST,
    Statement.ROUND,
    Statement.QUEUE,
    Statement.WHOLE_TS,
)
"""The columns of a batch that the digest of a window covers."""


def compute_digest_of_index(rows: Iterable[Mapping[str, Any]]) -> str:
    """SHA-256 (hex) of batches by their columns of INDEX, sorted by position: `statement` of an ApplyManifest."""
    digest = hashlib.sha256()
    for row in sorted(rows, key=lambda row: tuple(row[name] for name in INDEX[:3])):
        digest.update("\0".join(str(row[name]) for name in INDEX).encode())
        digest.update(b"\n")
    return digest.hexdigest()


def convert_batch_to_row(batch: StatementBatch) -> dict[str, Any]:
    """The fields of `batch` as plain values; the inverse of `restore_checked_batch`."""
    return {**asdict(batch), "phase": int(batch.phase)}


def restore_checked_batch(row: Mapping[str, Any]) -> StatementBatch:
    """Restore the batch that `convert_batch_to_row` wrote. Raises ImmutableWindow if its text does not have the stored
    digest."""
    sql = cast(Sequence[str], row[Statement.SQL])
    if compute_statement_digest(sql) != row[Statement.DIGEST]:
        raise ImmutableWindow(
            "a statement differs from the one that was derived",
            where={name: row[name] for name in INDEX[:5]},
            hint="the stored statements were changed: restore them (a Delta table by time travel), or run convert"
            " again",
        )
    phase, expect = Phase(row[Statement.PHASE]), tuple(row[Statement.EXPECT])
    return StatementBatch(**{**row, "phase": phase, "sql": tuple(sql), "expect": expect})
