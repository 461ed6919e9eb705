"""Count the keys of a batch on the target: after a segment is written, each key must exist (hazards R-13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from binlake.base.sql import Dialect
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.statements.keyconditions import KeyConditions
from binlake.statements.keyless import format_exact_name
from binlake.statements.literal import quote_name, quote_qualified_name
from binlake.statements.writtencolumns import list_key_columns

_LEAST = 4
"""Minimum average number of keys per range; below it, a list is shorter."""


class KeyCounts:
    """The queries that count the rows of `table` with some of the keys `columns` (canonical texts, by key column).

    `alike`: the target's key has the source's type. Consecutive integers are then counted as ranges: a key exists at
    most once, so a range has its full count only if each of its numbers exists.
    """

    def __init__(self, table: TableDef, columns: Sequence[Any], *, dialect: Dialect, alike: bool) -> None:
        keys = list_key_columns(table)
        self._table = quote_qualified_name(table.db, table.name)
        self._name = quote_name(keys[0].name)
        # Texts are compared by bytes too, because another batch may have a key that is equal in the collation.
        exact = [format_exact_name(column) for column in keys]
        self._conditions = KeyConditions(keys, columns, dialect, alike=alike, exact=exact)
        self._numbers = _read_integers(columns[0], keys[0]) if alike and len(keys) == 1 else None

    @property
    def sizes(self) -> Any:
        """The most bytes that each key takes in a query (numpy)."""
        return self._conditions.sizes

    def format_query(self, start: int, stop: int) -> str:
        """The query that counts the keys `start` to `stop` - 1."""
        counts = [
            f"SELECT COUNT(*) FROM {self._table} WHERE {part}"
            for part, _ in self._conditions.format_conditions(start, stop)
        ]
        listed = counts[0] if len(counts) == 1 else f"SELECT {'+'.join(f'({count})' for count in counts)}"
        ranges = self._format_ranges(start, stop)
        # The list has at most the size that the batch was cut for; a range is used only if it is shorter.
        ranged = f"SELECT COUNT(*) FROM {self._table} WHERE {ranges}"
        return ranged if ranges and len(ranged.encode()) < len(listed.encode()) else listed

    def _format_ranges(self, start: int, stop: int) -> str:
        """The keys as ranges without gaps; empty if a list is certainly shorter."""
        if self._numbers is None:
            return ""
        numbers = np.sort(self._numbers[start:stop])
        ends = np.flatnonzero(np.diff(numbers) != 1)
        if _LEAST * (len(ends) + 1) > len(numbers):
            return ""
        firsts, lasts = numbers[np.append(0, ends + 1)].tolist(), numbers[np.append(ends, -1)].tolist()
        return " OR ".join(f"{self._name} BETWEEN {low} AND {high}" for low, high in zip(firsts, lasts, strict=True))


def _read_integers(values: Any, column: ColumnInfo) -> Any:
    """The keys as 64-bit integers (numpy); None if they are not integers."""
    if column.tp not in t.INTEGERS:
        return None
    try:
        return np.asarray(values.cast(pa.int64()))
    except pa.ArrowInvalid:
        # Unsigned keys above 2^63 are counted by a list.
        return None
