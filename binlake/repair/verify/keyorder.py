"""The order of keys in the target's index, if it can be derived from texts; else a table is split by hashes.

A wrong order would only move a row to a neighbouring chunk on one side. A row that is missing in one chunk and extra in
another is matched when the table's differences are merged (`differences`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from binlake.base.sql import Dialect
from binlake.dialect.collations import find_target_collation
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t

Key = tuple[str, ...]
"""Canonical texts of the columns of a key, none of them NULL."""

_BY_CODE_POINT = frozenset({"utf8mb4_bin", "utf8mb3_bin", "utf8_bin", "ascii_bin"})
_NO_PAD = frozenset({"utf8mb4_nopad_bin", "utf8mb4_0900_bin"})

AnyKey = Sequence[str | None]
"""A key of any table. For a table without a key: the texts of the whole row, including NULLs."""

Rank = Callable[[str], Any]


class KeyOrder:
    """Compares keys of one table: two ranks compare like the keys in the index."""

    def __init__(self, ranks: Sequence[Rank]) -> None:
        self._ranks = tuple(ranks)

    @classmethod
    def of(cls, table: TableDef, dialect: Dialect) -> KeyOrder | None:
        """The order of the table's key; None without a key, or if only the server knows the order."""
        identity = table.find_identity()
        if identity.kind == "row":
            return None
        candidates = [
            _choose_rank(column, dialect)
            for name in identity.columns
            if (column := table.find_column(name)) is not None
        ]
        ranks = [rank for rank in candidates if rank is not None]
        return cls(ranks) if len(ranks) == len(identity.columns) else None

    def compute_rank(self, key: Sequence[str]) -> tuple[Any, ...]:
        """The value by which `key` is compared."""
        return tuple(rank(text) for rank, text in zip(self._ranks, key, strict=True))


def _choose_rank(column: ColumnInfo, dialect: Dialect) -> Rank | None:
    if column.tp in t.INTEGERS or column.tp == t.YEAR:
        return int
    if column.tp == t.NEWDECIMAL:
        return Decimal
    # These texts have equal widths, and upper-case hex sorts like its bytes.
    if column.tp in t.DATES | t.MOMENTS or (column.is_binary and column.tp not in (t.BIT, *t.BLOBS)):
        return str
    if column.tp in t.STRINGS - t.BLOBS:
        return _choose_text_rank(column, find_target_collation(column.collate, dialect))
    return None


def _choose_text_rank(column: ColumnInfo, collation: str) -> Rank | None:
    if collation in _NO_PAD:
        return str
    # Texts are compared as if padded with blanks, so `a` followed by a tab sorts before `a`.
    width = max(column.flen, 1)
    return (lambda text: text.ljust(width)) if collation in _BY_CODE_POINT else None
