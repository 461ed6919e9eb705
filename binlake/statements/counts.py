"""Count the keys of a batch on the target: after a segment is written, each key must exist (hazards R-13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.statements.columns import JoinedTexts, append_commas, format_match_literals, join_tuples
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

    def __init__(self, table: TableDef, columns: Sequence[Any], *, alike: bool) -> None:
        keys = list_key_columns(table)
        self._name = quote_qualified_name(table.db, table.name)
        self._names = format_name_tuple([quote_name(column.name) for column in keys])
        self._exact = format_name_tuple([format_exact_name(column) for column in keys])
        literals = [format_match_literals(values, column) for values, column in zip(columns, keys, strict=True)]
        self._texts = JoinedTexts(append_commas(literals[0] if len(literals) == 1 else join_tuples(literals)))
        self._numbers = _read_integers(columns[0], keys[0]) if alike and len(keys) == 1 else None

    @property
    def sizes(self) -> Any:
        """The most bytes that each key takes in a query (numpy)."""
        return self._texts.sizes * (1 if self._exact == self._names else 2)

    def format_query(self, start: int, stop: int) -> str:
        """The query that counts the keys `start` to `stop` - 1. Texts are compared by bytes, because another batch may
        have a key that is equal in the collation."""
        keys = self._texts.join_rows(start, stop).decode()
        listed = f"{self._names} IN ({keys})"
        if self._exact != self._names:
            listed += f" AND {self._exact} IN ({keys})"
        ranges = self._format_ranges(start, stop)
        # The list has at most the size that the batch was cut for; a range is used only if it is shorter.
        condition = ranges if ranges and len(ranges.encode()) < len(listed.encode()) else listed
        return f"SELECT COUNT(*) FROM {self._name} WHERE {condition}"

    def _format_ranges(self, start: int, stop: int) -> str:
        """The keys as ranges without gaps; empty if a list is certainly shorter."""
        if self._numbers is None:
            return ""
        numbers = np.sort(self._numbers[start:stop])
        ends = np.flatnonzero(np.diff(numbers) != 1)
        if _LEAST * (len(ends) + 1) > len(numbers):
            return ""
        firsts, lasts = numbers[np.append(0, ends + 1)].tolist(), numbers[np.append(ends, -1)].tolist()
        return " OR ".join(f"{self._names} BETWEEN {low} AND {high}" for low, high in zip(firsts, lasts, strict=True))


def format_name_tuple(names: Sequence[str]) -> str:
    """`(a,b,…)`, or a single name without parentheses."""
    return names[0] if len(names) == 1 else f"({','.join(names)})"


def _read_integers(values: Any, column: ColumnInfo) -> Any:
    """The keys as 64-bit integers (numpy); None if they are not integers."""
    if column.tp not in t.INTEGERS:
        return None
    try:
        return np.asarray(values.cast(pa.int64()))
    except pa.ArrowInvalid:
        # Unsigned keys above 2^63 are counted by a list.
        return None
