"""Splits a table into ranges of its primary key, one after the other, as readers request them.

The bound of a range is looked up in the reader's own snapshot: ranges leave no gaps and do not overlap, whatever is
written meanwhile. A table whose key has no exact order in SQL is one range.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from binlake.mysqlbinlog.tablerows.link import Link, Name, ask
from binlake.mysqlbinlog.tablerows.ranges import KeyRange, KeyRanges
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.statements.literal import quote, quote_name, quote_qualified_name

_NUMBERS = t.INTEGERS | {t.NEWDECIMAL, t.YEAR}
_ORDERED = _NUMBERS | t.MOMENTS | t.DATES | {t.DURATION, t.VARCHAR, t.VARSTRING, t.STRING}


@dataclass(frozen=True, slots=True)
class Chunk:
    """A range of a table, above `low` up to `high`: `where` is its condition, "" for a whole table."""

    low: str
    high: str
    where: str


class Chunks:
    """The unread rest of `ranges` of table `name` at the source, `rows` rows at a time; for one thread at a time.

    `row_id`: a number that the server has for each row of a table without a key (TiDB's `_tidb_rowid`).
    """

    def __init__(
        self, name: Name, table: TableDef, rows: int, row_id: str = "", ranges: KeyRanges | None = None
    ) -> None:
        self.ranges = ranges or KeyRanges()
        self._from = quote_qualified_name(*name)
        column = cut_column(table)
        self._name = quote_name(column.name) if column is not None else row_id
        self._text_sql = _format_text_sql(column) if column is not None else row_id
        self._literal = build_key_formatter(column) if column is not None else str
        self._rows = rows

    @property
    def is_cut(self) -> bool:
        """Whether the table may have more than one range."""
        return bool(self._name)

    @property
    def low(self) -> str:
        """Where the next range begins; "" at the beginning of the table, and after its end."""
        left = self.ranges.find_next()
        return left.low if left is not None else ""

    def take(self, link: Link) -> Chunk | None:
        """The next range; None when all are assigned. `link` sees the snapshot."""
        left = self.ranges.find_next()
        if left is None:
            return None
        part = self.ranges.claim(left, self._find_bound(link, left))
        return Chunk(part.low, part.high, self._build_condition(part.low, part.high))

    def pass_over(self, high: str) -> None:
        """Claim the next range as one that ends at `high`, without querying the bound."""
        left = self.ranges.find_next()
        if left is not None:
            self.ranges.claim(left, high)

    def _build_condition(self, low: str, high: str) -> str:
        return " AND ".join([f"{self._name} > {low}"] * bool(low) + [f"{self._name} <= {high}"] * bool(high))

    def _find_bound(self, link: Link, left: KeyRange) -> str:
        """The literal of the key `rows` rows further on; the end of `left` if fewer rows are left."""
        if not self._name:
            return left.high
        condition = self._build_condition(left.low, left.high)
        where = f" WHERE {condition}" if condition else ""
        query = f"SELECT {self._text_sql} FROM {self._from}{where} ORDER BY {self._name} LIMIT {self._rows - 1}, 1"
        rows = ask(link, query)
        return self._literal(str(rows[0][0])) if rows else left.high


def cut_column(table: TableDef) -> ColumnInfo | None:
    """The first column of the primary key, if SQL compares its values in the index's order."""
    if not table.primary_key:
        return None
    index = table.primary_index
    if index is not None and index.columns[0].length != t.UNSPECIFIED_LENGTH:
        return None
    column = table.find_column(table.primary_key[0])
    return column if column is not None and column.tp in _ORDERED else None


def _format_text_sql(column: ColumnInfo) -> str:
    name = quote_name(column.name)
    return f"HEX({name})" if column.is_binary else f"CAST({name} AS CHAR)"


def build_key_formatter(column: ColumnInfo) -> Callable[[str], str]:
    """A function that makes an SQL literal of a key's canonical text."""
    if column.is_binary:
        return lambda text: f"X'{text}'"
    return str if column.tp in _NUMBERS else quote
