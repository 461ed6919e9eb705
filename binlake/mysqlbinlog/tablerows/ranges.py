"""The ranges of a table's key, in order: those that are read, with the number of their snapshot, and the rest.

A range is identified by the literals of its bounds, which are never compared: the order of the list is their order.
This lets another process read the rest of a table, and tells for each row whether it was read.

`Chunks` splits a table into ranges of its primary key, one after the other, as readers request them. The bound of a
range is looked up in the reader's own snapshot: ranges leave no gaps and do not overlap, whatever is written meanwhile.
A table whose key has no exact order in SQL is one range.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from binlake.mysqlbinlog.tablerows.link import Link, Name, ask
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.statements.literal import quote, quote_name, quote_qualified_name

_UNREAD, _BEING_READ = -1, -2

Stored = list[tuple[str, str, int]]
"""(low, high, snapshot) of each range, as in JSON; snapshot -1: not read."""
_NUMBERS = t.INTEGERS | {t.NEWDECIMAL, t.YEAR}
_ORDERED = _NUMBERS | t.MOMENTS | t.DATES | {t.DURATION, t.VARCHAR, t.VARSTRING, t.STRING}


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keys above `low` up to `high`, as literals; "" = no bound. `snapshot`: in which they were read."""

    low: str
    high: str
    snapshot: int = _UNREAD


class KeyRanges:
    """The ranges of one table; thread-safe."""

    def __init__(self, ranges: Sequence[KeyRange] = (KeyRange("", ""),)) -> None:
        self._all = list(ranges)
        self._lock = threading.Lock()

    @classmethod
    def of(cls, stored: Sequence[Sequence[str | int]]) -> KeyRanges:
        """Ranges from the result of `store`."""
        return cls([KeyRange(str(low), str(high), int(snapshot)) for low, high, snapshot in stored])

    def find_next(self) -> KeyRange | None:
        """The first range that nobody has claimed or read; None if there is none."""
        with self._lock:
            return next((part for part in self._all if part.snapshot == _UNREAD), None)

    def claim(self, of: KeyRange, high: str) -> KeyRange:
        """Claim `of` up to `high` for reading; the part above it stays unread. Returns the claimed range."""
        part, rest = KeyRange(of.low, high, _BEING_READ), KeyRange(high, of.high)
        with self._lock:
            index = self._all.index(of)
            self._all[index : index + 1] = [part] if high == of.high else [part, rest]
        return part

    def finish(self, low: str, high: str, snapshot: int) -> None:
        """Mark the claimed range with these bounds as read."""
        with self._lock:
            index = self._all.index(KeyRange(low, high, _BEING_READ))
            self._all[index] = replace(self._all[index], snapshot=snapshot)
            self._all = _join_neighbours(self._all)

    def store(self) -> Stored:
        """The ranges for JSON: claimed ranges count as unread."""
        with self._lock:
            todo = [part if part.snapshot >= 0 else replace(part, snapshot=_UNREAD) for part in self._all]
        return [(part.low, part.high, part.snapshot) for part in _join_neighbours(todo)]

    def count_as_one(self) -> None:
        """Count every range that is read as read in the first snapshot."""
        with self._lock:
            self._all = _join_neighbours([replace(part, snapshot=min(part.snapshot, 0)) for part in self._all])

    @property
    def snapshots(self) -> list[int]:
        """The snapshots in which parts of the table were read, in order."""
        return sorted({snapshot for _, _, snapshot in self.store() if snapshot >= 0})

    @property
    def is_complete(self) -> bool:
        """Whether the whole table is read."""
        return all(snapshot >= 0 for _, _, snapshot in self.store())


def _join_neighbours(ranges: Sequence[KeyRange]) -> list[KeyRange]:
    """Merge neighbours that were read in the same snapshot, or are both unread."""
    joined: list[KeyRange] = []
    for part in ranges:
        if joined and joined[-1].snapshot == part.snapshot != _BEING_READ:
            joined[-1] = replace(joined[-1], high=part.high)
        else:
            joined.append(part)
    return joined


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
