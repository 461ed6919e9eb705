"""Cuts a table into ranges of its primary key, one after the other, as readers ask for them.

The bound of a range is looked up in the reader's own snapshot: ranges leave no gap and share no row, whatever is
written meanwhile. A table whose key has no exact order in SQL is one range.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from binlake.mysqlbinlog.tablerows.link import Link, Name, ask
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.statements.literal import qualified, quote, quote_name

_NUMBERS = t.INTEGERS | {t.NEWDECIMAL, t.YEAR}
_ORDERED = _NUMBERS | t.MOMENTS | t.DATES | {t.DURATION, t.VARCHAR, t.VARSTRING, t.STRING}


@dataclass(frozen=True, slots=True)
class Chunk:
    """A range of a table: `where` is its condition, "" for a whole table; `last`: no other comes behind it."""

    where: str
    last: bool


class Chunks:
    """The ranges of table `name` at the source, of `rows` rows each; for one thread at a time."""

    def __init__(self, name: Name, table: TableDef, rows: int) -> None:
        self._from = qualified(*name)
        self._column = _cut_column(table)
        self._rows = rows
        self._low = ""
        self._over = False

    def take(self, link: Link) -> Chunk | None:
        """The next range; None when all are given out. `link` sees the snapshot."""
        if self._over:
            return None
        high = self._bound(link)
        self._over = not high
        name = quote_name(self._column.name) if self._column else ""
        bounds = [f"{name} > {self._low}"] * bool(self._low) + [f"{name} <= {high}"] * bool(high)
        self._low = high
        return Chunk(" AND ".join(bounds), self._over)

    def _bound(self, link: Link) -> str:
        """The literal of the key's value `rows` rows on; "" where fewer are left."""
        if self._column is None:
            return ""
        name, text = quote_name(self._column.name), _shown(self._column)
        above = f" WHERE {name} > {self._low}" if self._low else ""
        found = ask(link, f"SELECT {text} FROM {self._from}{above} ORDER BY {name} LIMIT {self._rows - 1}, 1")
        return _literal(self._column)(str(found[0][0])) if found else ""


def _cut_column(table: TableDef) -> ColumnInfo | None:
    """The first column of the primary key, where SQL compares its values as the index orders them."""
    if not table.primary_key:
        return None
    index = table.primary_index
    if index is not None and index.columns[0].length != t.UNSPECIFIED_LENGTH:
        return None
    column = table.column(table.primary_key[0])
    return column if column is not None and column.tp in _ORDERED else None


def _shown(column: ColumnInfo) -> str:
    name = quote_name(column.name)
    return f"HEX({name})" if column.is_binary else f"CAST({name} AS CHAR)"


def _literal(column: ColumnInfo) -> Callable[[str], str]:
    if column.is_binary:
        return lambda text: f"X'{text}'"
    return str if column.tp in _NUMBERS else quote
