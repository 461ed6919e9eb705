"""The SQL of one row change: plain, as the source made it, or safe, so that a repetition does no harm.

Sources: data-migration 1.6, 6.5, tidb-binlog 5.10, S0-22; hazards R-44. A row is found by the primary key or a unique
key that is NOT NULL, else by the first unique key without a NULL value, else by all its columns, compared exactly;
always with LIMIT 1, so that only one of several equal rows without a key is removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from binlake.changes.net.net import Row
from binlake.changes.ordered.keys import read_image_text
from binlake.common.sql import Dialect
from binlake.errors import SchemaError
from binlake.rows.codec.values import name_error_value
from binlake.rows.schema import ColumnInfo, IndexInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import fold_name
from binlake.statements.batch import UNCHECKED
from binlake.statements.conditions import format_image_condition
from binlake.statements.generation import list_written_columns
from binlake.statements.literal import (
    LiteralKind,
    choose_literal_kind,
    format_match,
    format_value_literal,
    quote_name,
    quote_qualified_name,
)
from binlake.statements.render import has_error_value, render_lenient


@dataclass(frozen=True)
class OrderedStatement:
    """One statement and the rows that it must find or write (-1 = unchecked); `place`: the commit_ts of its changes."""

    sql: str
    expect: int = UNCHECKED
    place: str = ""

    @property
    def text(self) -> str:
        """The text sent to the target. A statement that must match its row names its commit_ts, for error messages."""
        names_commit = self.place and self.expect != UNCHECKED and not self.sql.startswith("INSERT")
        return f"{self.sql} /* commit_ts {self.place} */" if names_commit else self.sql


@dataclass(frozen=True)
class RowForms:
    """Statements for rows of `table`, its definition at the target. Raises SchemaError for an image without a column.

    If a row was written before ADD COLUMN and lacks the column, it has the origin default.
    """

    table: TableDef
    dialect: Dialect

    def insert(self, after: Row) -> OrderedStatement:
        """INSERT INTO … VALUES (…)."""
        return OrderedStatement(
            self.render_lenient_if_needed(f"INSERT {self.into} {self.render_values(after)}", after), 1
        )

    def replace(self, after: Row) -> OrderedStatement:
        """REPLACE INTO … VALUES (…): the safe form of an insert."""
        return OrderedStatement(
            self.render_lenient_if_needed(f"REPLACE {self.into} {self.render_values(after)}", after)
        )

    def delete(self, before: Row, *, safe: bool = False) -> OrderedStatement:
        """DELETE FROM … WHERE … LIMIT 1. The row must exist, unless `safe` is set and the row has a key."""
        unchecked = safe and self.is_keyed(before)
        sql = f"DELETE FROM {self.name} WHERE {self.render_condition(before)} LIMIT 1"
        return OrderedStatement(sql, UNCHECKED if unchecked else 1)

    def update(self, before: Row, after: Row) -> OrderedStatement:
        """UPDATE … SET all columns WHERE … LIMIT 1; the row must exist (Binlake's sessions count matched rows)."""
        values = zip(self.columns, self.render_literals(after), strict=True)
        sets = ", ".join(f"{quote_name(column.name)} = {literal}" for column, literal in values)
        sql = f"UPDATE {self.name} SET {sets} WHERE {self.render_condition(before)} LIMIT 1"
        return OrderedStatement(self.render_lenient_if_needed(sql, after), 1)

    def update_safely(self, before: Row, after: Row) -> list[OrderedStatement]:
        """DELETE the old row if one of its keys changes, then REPLACE with the new one."""
        deletes = [self.delete(before, safe=True)] if self.moves(before, after) else []
        return [*deletes, self.replace(after)]

    def render_lenient_if_needed(self, sql: str, after: Row) -> str:
        """`sql`, which writes `after`; in lenient mode if a strict session would refuse the row."""
        return render_lenient(sql, self.dialect) if self.has_error_values(after) else sql

    def has_error_values(self, after: Row) -> bool:
        """True if the row contains the error value of an ENUM."""
        return any(read_image_text(after, column) == name_error_value(column.elems) for column in self._error_columns)

    def moves(self, before: Row, after: Row) -> bool:
        """True if the value of any unique key changes; in a table without a key, always True."""
        if self.table.find_identity().kind == "row" or self._has_hidden_key:
            return True
        columns = (column for column in self._key_columns if column is not None)
        return any(read_image_text(before, column) != read_image_text(after, column) for column in columns)

    def render_condition(self, before: Row) -> str:
        """A condition that matches only the row `before`, or equal rows in a table without a key."""
        key = self._choose_key(before)
        if key is None:
            parts = [format_image_condition(read_image_text(before, c), c, self.dialect) for c in self.columns]
        else:
            parts = [f"{quote_name(c.name)} = {format_match(read_image_text(before, c), c)}" for c in key]
        return " AND ".join(parts)

    def is_keyed(self, before: Row) -> bool:
        """True if a key identifies the row."""
        return self._choose_key(before) is not None

    def render_values(self, after: Row) -> str:
        """The tuple of literals, for example `(1,'a')`."""
        return f"({','.join(self.render_literals(after))})"

    @cached_property
    def name(self) -> str:
        """`db`.`table`, quoted."""
        return quote_qualified_name(self.table.db, self.table.name)

    @cached_property
    def columns(self) -> tuple[ColumnInfo, ...]:
        """The columns that are written."""
        return tuple(list_written_columns(self.table, self.dialect))

    @cached_property
    def into(self) -> str:
        """INTO `db`.`table` (columns) VALUES: the part of an INSERT or REPLACE between the verb and the rows."""
        names = ",".join(quote_name(column.name) for column in self.columns)
        return f"INTO {self.name} ({names}) VALUES"

    @cached_property
    def _error_columns(self) -> list[ColumnInfo]:
        return [column for column in self.columns if has_error_value(column)]

    @cached_property
    def _identity(self) -> tuple[ColumnInfo, ...] | None:
        identity = self.table.find_identity()
        return None if identity.kind == "row" else tuple(self._require_column(name) for name in identity.columns)

    @cached_property
    def _keys(self) -> list[tuple[ColumnInfo, ...]]:
        """Unique keys that identify a row if its key values are not NULL."""
        keys = [self._find_whole_columns(index) for index in self.table.list_unique_keys()]
        return [columns for columns in keys if columns is not None]

    @cached_property
    def _key_columns(self) -> list[ColumnInfo | None]:
        """The columns of all unique keys; None for a column that is not visible."""
        names = dict.fromkeys(fold_name(part.name) for index in self.table.list_unique_keys() for part in index.columns)
        return [self.table.find_column(name) for name in names]

    @cached_property
    def _has_hidden_key(self) -> bool:
        """Whether a unique key has values that are not in the images, so that their changes are invisible."""
        return any(column is None or column.is_virtual for column in self._key_columns)

    def _choose_key(self, before: Row) -> tuple[ColumnInfo, ...] | None:
        if self._identity is not None:
            return self._identity
        full = (key for key in self._keys if all(read_image_text(before, column) is not None for column in key))
        return next(full, None)

    def _find_whole_columns(self, index: IndexInfo) -> tuple[ColumnInfo, ...] | None:
        columns = [self.table.find_column(part.name) for part in index.columns]
        is_whole = all(part.length == t.UNSPECIFIED_LENGTH for part in index.columns)
        named = [column for column in columns if column is not None and not column.is_virtual]
        return tuple(named) if is_whole and len(named) == len(columns) else None

    def render_literals(self, row: Row) -> list[str]:
        """The values of `row` in the order of `columns`."""
        return [format_value_literal(read_image_text(row, column), kind) for column, kind in self._kinds]

    @cached_property
    def _kinds(self) -> list[tuple[ColumnInfo, LiteralKind]]:
        return [(column, choose_literal_kind(column)) for column in self.columns]

    def _require_column(self, name: str) -> ColumnInfo:
        column = self.table.find_column(name)
        if column is None:
            where = {"table": f"{self.table.db}.{self.table.name}", "column": name}
            raise SchemaError("a key names a column that its table lacks", where=where)
        return column
