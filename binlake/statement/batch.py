"""One batch of SQL as convert writes it and finalize executes it: a row of the lake table `statement`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

UNCHECKED = -1
"""In `expect`: the affected rows of this statement are not checked."""

Kind = Literal["ddl", "delete", "replace", "insert"]


@dataclass(frozen=True)
class StatementBatch:
    """`sql` is executed in order, in one transaction with its ledger row (a DDL: alone, by its intent).

    `phase` 0 DDL, 1 deletes, 2 writes; `batch` numbers within (segment, phase); `expect` are affected rows per statement
    (UNCHECKED = any); `verify_sql` counts the batch's keys after phase 2 and must give `verify_rows` (empty: no check);
    `rows` are rows of the net change.
    """

    segment: int
    phase: int
    batch: int
    db: str
    table: str
    kind: Kind
    sql: tuple[str, ...]
    expect: tuple[int, ...]
    verify_sql: str
    verify_rows: int
    rows: int
    digest: str


def sql_digest(sql: Sequence[str]) -> str:
    """SHA-256 of the statements of a batch, as the ledger keeps it."""
    return hashlib.sha256("\0".join(sql).encode()).hexdigest()
