"""A batch of SQL as the lake's table `statement` holds it: what finalize executes and nothing else (hazards R-62)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

UNCHECKED = -1
"""In `expect`: the number of affected rows says nothing (REPLACE counts removed rows too)."""


class Phase(IntEnum):
    """Order inside a segment (invariant 6): its DDL, then deletes, then writes."""

    DDL = 0
    DELETE = 1
    WRITE = 2


@dataclass(frozen=True)
class StatementBatch:
    """One batch: `sql` runs in order, each statement must report `expect` affected rows (-1 = unchecked).

    After phase 2 of the segment `verify_sql` (empty = none) must return `verify_rows`. `rows` counts row changes.
    """

    segment: int
    phase: Phase
    batch: int
    db: str
    table: str
    kind: Literal["ddl", "delete", "replace", "insert"]
    sql: tuple[str, ...]
    expect: tuple[int, ...]
    verify_sql: str
    verify_rows: int
    rows: int
    digest: str


def statement_digest(sql: Sequence[str]) -> str:
    """SHA-256 (hex) of statements in order; a NUL byte parts them."""
    digest = hashlib.sha256()
    for statement in sql:
        digest.update(statement.encode())
        digest.update(b"\0")
    return digest.hexdigest()
