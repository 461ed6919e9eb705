"""The part of a table's definition that decides which rows it can store: expected from TiDB's, or read at the target.

Sources: hazards R-12, R-13, R-18. Names of columns are compared without case. Not compared: defaults, comments, display
widths, zero-fill, engine and storage options, partitions, checks and foreign keys; nullability of generated columns
(MariaDB cannot declare it); names of indexes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from binlake.base.sql import Dialect
from binlake.dialect import find_target_collation
from binlake.dialect.wholetexts import is_whole_text_key
from binlake.mysqlbinlog.definitions.descriptions import mask_four_byte_characters
from binlake.rows.schema import ColumnInfo, IndexInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import fold_name
from binlake.rows.schema.job import PUBLIC
from binlake.statements.writtencolumns import is_computed

Name = tuple[str, str]
"""(database, table); an empty table means the database."""


@dataclass(frozen=True)
class ColumnForm:
    """A column: `type` normalised, `collation` empty for types without one, `generated`: `virtual` or `stored`.

    For the target's columns only: `filled`: what an INSERT that omits the column stores (`number`: AUTO_INCREMENT or
    AUTO_RANDOM, `value`: a default, `null`; empty: an error); `renewed`: ON UPDATE CURRENT_TIMESTAMP.
    """

    name: str
    type: str
    nullable: bool
    collation: str
    generated: Literal["", "virtual", "stored"]
    filled: Literal["", "number", "value", "null"] = ""
    renewed: bool = False


@dataclass(frozen=True)
class IndexForm:
    """An index: its (column, prefix length or 0) parts in order."""

    unique: bool
    parts: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        parts = ", ".join(name + (f"({length})" if length else "") for name, length in self.parts)
        return f"{'unique key' if self.unique else 'index'} ({parts})"


def keeps_apart(key: Iterable[tuple[str, int]], own: Mapping[str, str]) -> bool:
    """Whether two rows can never share a unique key of the target, whatever the source writes.

    So it is if the key contains a number assigned by the server, or if it has only columns that the source lacks and
    one of them is NULL in a new row. `own`: name -> `filled` of the columns that the source lacks.
    """
    names = [name for name, _ in key]
    if any(own.get(name) == "number" for name in names):
        return True
    return all(name in own for name in names) and any(own[name] == "null" for name in names)


@dataclass(frozen=True)
class TableForm:
    """A table, view or sequence, as far as it matters for rows. Views and sequences have no columns here.

    `own`: additional columns that an expected table may have at the target (S4-26). `engine`: set for the target's
    tables only, and only for a storage engine without transactions.
    """

    kind: Literal["table", "view", "sequence"]
    columns: tuple[ColumnForm, ...]
    indexes: frozenset[IndexForm]
    own: frozenset[str] = frozenset()
    engine: str = ""

    def without(self, own: frozenset[str]) -> TableForm:
        """The form without the columns `own`, and without their unique keys that two rows can never share."""
        filled = {column.name: column.filled for column in self.columns if column.name in own}
        columns = tuple(column for column in self.columns if column.name not in own)
        indexes = (i for i in self.indexes if not (i.unique and keeps_apart(i.parts, filled)))
        return replace(self, columns=columns, indexes=frozenset(indexes))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; columns with their expected properties only."""
        columns = [[c.name, c.type, c.nullable, c.collation, c.generated] for c in self.columns]
        indexes = sorted([index.unique, [list(part) for part in index.parts]] for index in self.indexes)
        return {"kind": self.kind, "columns": columns, "indexes": indexes, "own": sorted(self.own)}

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> TableForm:
        """Parse what `to_dict` wrote."""
        columns = tuple(ColumnForm(*column) for column in raw["columns"])
        parts = ((unique, tuple((name, length) for name, length in index)) for unique, index in raw["indexes"])
        indexes = frozenset(IndexForm(unique, index) for unique, index in parts)
        return cls(raw["kind"], columns, indexes, frozenset(raw.get("own", ())))

    @property
    def unique_keys(self) -> frozenset[frozenset[tuple[str, int]]]:
        """The unique keys as sets: the order of columns does not matter for uniqueness."""
        return frozenset(frozenset(index.parts) for index in self.indexes if index.unique)


def build_expected_form(table: TableDef, dialect: Dialect) -> TableForm:
    """The form that the target must have for TiDB's `table`."""
    if table.kind != "table":
        return TableForm(table.kind, (), frozenset())
    columns = tuple(_build_column_form(column, table, dialect) for column in table.columns)
    plain = [index for index in table.indexes if index.state == PUBLIC and not index.unique]
    # An index on an expression has a hidden column, which no target shows; MariaDB has no such index.
    named = [i for i in (*table.list_unique_keys(), *plain) if dialect != "mariadb" or not _is_on_expression(i, table)]
    if dialect == "mysql":
        named = [index for index in named if not is_whole_text_key(index, table)]
    indexes = frozenset(_build_index_form(index, table) for index in named)
    return TableForm("table", columns, indexes, frozenset(fold_name(name) for name in table.own))


def normalize_type(text: str, dialect: Dialect) -> str:
    """`text` of information_schema's COLUMN_TYPE without the parts that do not affect values."""
    text = re.sub(r"\s+zerofill|\s*/\*.*?\*/", "", text)
    if dialect != "tidb":
        text = mask_four_byte_characters(text)
    # Not for FLOAT and DOUBLE: their (M,D) rounds values.
    text = re.sub(r"^((?:tiny|small|medium|big)?int|year)\([\d,]+\)", r"\1", text)
    text = re.sub(r"^(?:tiny|medium|long)?(text|blob)(?:\(\d+\))?$", r"\1", text)
    return "text" if text == "json" and dialect == "mariadb" else text


def list_missing_indexes(expected: TableForm, actual: TableForm) -> list[str]:
    """Indexes that `actual` lacks. They only affect speed, but show whether a DDL has run."""
    return sorted(f"{index} is missing" for index in expected.indexes - actual.indexes)


def _build_column_form(column: ColumnInfo, table: TableDef, dialect: Dialect) -> ColumnForm:
    text = (column.tp in t.STRINGS and not column.is_binary) or column.tp in (t.ENUM, t.SET)
    generated: Literal["", "virtual", "stored"] = ""
    if is_computed(column, table, dialect):
        generated = "stored" if column.generated_stored else "virtual"
    # MariaDB's JSON is a text that always has this collation.
    collation = "utf8mb4_bin" if column.tp == t.JSON and dialect == "mariadb" else ""
    collation = find_target_collation(column.collate, dialect) if text else collation
    return ColumnForm(
        fold_name(column.name), normalize_type(_format_type(column), dialect), not column.not_null, collation, generated
    )


def _format_type(column: ColumnInfo) -> str:
    text = column.type_text
    if column.tp not in (t.FLOAT, t.DOUBLE) or column.decimal < 0:
        return text
    name, space, unsigned = text.partition(" ")
    return f"{name}({column.flen},{column.decimal}){space}{unsigned}"


def _build_index_form(index: IndexInfo, table: TableDef) -> IndexForm:
    columns = [(part, table.find_column(part.name)) for part in index.columns]
    parts = (
        (fold_name(part.name), _normalize_prefix_length(part.length, column)) if column else ("", 0)
        for part, column in columns
    )
    return IndexForm(index.unique, tuple(parts))


def _is_on_expression(index: IndexInfo, table: TableDef) -> bool:
    return any(table.find_column(part.name) is None for part in index.columns)


def _normalize_prefix_length(length: int, column: ColumnInfo) -> int:
    is_whole = length < 0 or (column.tp not in t.BLOBS and length == column.flen)
    return 0 if is_whole else length
