"""The values on which two row changes can collide: unique keys of both images, or the whole row if it has none.

Sources: data-migration 1.4, 6.3 (DM), tidb-binlog 5.10 (drainer), S0-70, S0-71. DM lower-cases values and joins them by
dots; Binlake's keys are tuples folded by collation. They include the target table, so that two shards routed into one
table collide. A key that cannot be computed (on an expression, or on a virtual column, which is not in the images) is
the same key for all rows of its table, so these rows run one after another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from binlake.base.sql import Dialect
from binlake.changes.net import RowEvent
from binlake.changes.net.event import Row
from binlake.changes.ordered.collation import fold
from binlake.rows.codec.encode import derive_filled_text
from binlake.rows.schema import ColumnInfo, IndexInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import fold_name

UNKNOWN = "\0unknown"
"""Replaces a value whose equals are unknown (`collation`); a change with such a value runs alone."""

_TEXTS = t.STRINGS | {t.ENUM, t.SET}


class ConflictKey(NamedTuple):
    """Values of a unique key. Changes that share one must keep their order. Its text is DM's: `1.a.123.b.db.tb1`."""

    table: str
    columns: tuple[str, ...]
    values: tuple[str, ...]

    def __str__(self) -> str:
        parts = [f"{value}.{column}" for column, value in zip(self.columns, self.values, strict=True)]
        return ".".join([*parts, self.table])


@dataclass(frozen=True)
class _KeyPart:
    """A column of a unique index; `length`: its characters or bytes in the index (-1 = all)."""

    column: ColumnInfo
    length: int
    name: str

    def read_value(self, row: Row) -> str | None:
        text = read_image_text(row, self.column)
        return None if text is None else self._derive_comparable(text)

    def _derive_comparable(self, text: str) -> str:
        column = self.column
        if column.is_binary:
            return text if self.length < 0 else text[: 2 * self.length]
        if column.tp in (t.FLOAT, t.DOUBLE):
            return format_plain_float(text)
        if column.tp in _TEXTS:
            folded = fold(text if self.length < 0 else text[: self.length], column.collate.lower())
            return UNKNOWN if folded is None else folded
        return text


class ChangeKeys:
    """The conflict keys of changes of `table`, its definition at the target."""

    def __init__(self, table: TableDef, dialect: Dialect) -> None:
        self._name = f"{table.db}.{table.name}"
        indexes = [index for index in _sort_indexes(table) if dialect != "mariadb" or _is_visible(index, table)]
        self._indexes = [parts for index in indexes if (parts := _list_parts(index, table)) is not None]
        # MariaDB has no index on an expression, so nothing can collide there.
        self._serial = tuple(
            ConflictKey(self._name, (f"index {index.name}",), ("any",))
            for index in indexes
            if _list_parts(index, table) is None
        )
        # JSON is left out, because equal documents can have different texts.
        self._row = [_KeyPart(c, -1, fold_name(c.name)) for c in table.row_columns if c.tp != t.JSON]

    def list_keys(self, event: RowEvent) -> tuple[ConflictKey, ...]:
        """The keys of the image before, then of the image after; never empty. Raises SchemaError for wrong images."""
        return tuple(
            key for image in event.require_images() if image is not None for key in self._list_image_keys(image)
        )

    def _list_image_keys(self, row: Row) -> Iterator[ConflictKey]:
        keys = [key for parts in self._indexes if (key := self._build_key(parts, row)) is not None]
        if not keys and not self._serial:
            yield self._build_whole_row_key(row)
        yield from keys
        yield from self._serial

    def _build_key(self, parts: list[_KeyPart], row: Row) -> ConflictKey | None:
        # NULL collides with nothing; only the other columns of a composite index count, as in DM.
        present = [(part.name, value) for part in parts if (value := part.read_value(row)) is not None]
        if not present:
            return None
        names, values = zip(*present, strict=True)
        return ConflictKey(self._name, names, values)

    def _build_whole_row_key(self, row: Row) -> ConflictKey:
        values = [(part.name, _format_exactly(read_image_text(row, part.column), part.column)) for part in self._row]
        return ConflictKey(self._name, tuple(name for name, _ in values), tuple(value for _, value in values))


def read_image_text(row: Row, column: ColumnInfo) -> str | None:
    """The value of `column`; if a deleted row was written before ADD COLUMN and lacks it, the origin default."""
    return row[column.name] if column.name in row else derive_filled_text(column)


def format_plain_float(text: str) -> str:
    """A number without an exponent; -0 becomes 0, because they compare as equal."""
    return format(Decimal(repr(float(text) + 0.0)), "f").removesuffix(".0")


def _format_exactly(text: str | None, column: ColumnInfo) -> str:
    if text is None:
        return "NULL"
    return format_plain_float(text) if column.tp in (t.FLOAT, t.DOUBLE) else text


def _sort_indexes(table: TableDef) -> list[IndexInfo]:
    """Unique indexes in order of definition; an integer primary key comes last, as in DM."""
    order = {id(index): number for number, index in enumerate(table.indexes)}
    return sorted(table.list_unique_keys(), key=lambda index: order.get(id(index), len(order)))


def _is_visible(index: IndexInfo, table: TableDef) -> bool:
    return all(table.find_column(part.name) is not None for part in index.columns)


def _list_parts(index: IndexInfo, table: TableDef) -> list[_KeyPart] | None:
    """The parts of an index; None if its values are not in the images."""
    parts = []
    for part in index.columns:
        column = table.find_column(part.name)
        if column is None or column.is_virtual:
            return None
        parts.append(_KeyPart(column, part.length, fold_name(column.name)))
    return parts
