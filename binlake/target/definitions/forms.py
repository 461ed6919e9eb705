"""The part of a table's definition that decides which rows it can store: expected from TiDB's, or read at the target.

Sources: hazards R-12, R-13, R-18. Names of columns are compared without case. Not compared: defaults, comments, display
widths, zero-fill, engine and storage options, partitions, checks and foreign keys; nullability of generated columns
(MariaDB cannot declare it); names of indexes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Any, Literal, NamedTuple

from binlake.common.sql import Dialect
from binlake.dialect import find_target_collation
from binlake.dialect.wholetexts import is_whole_text_key
from binlake.mysqlbinlog.definitions.descriptions import mask_four_byte_characters
from binlake.rows.schema import ColumnInfo, IndexInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import fold_name
from binlake.rows.schema.job import PUBLIC
from binlake.statements.generation import is_computed
from binlake.target.session.session import TargetSession

Name = tuple[str, str]
"""(database, table); an empty table means the database."""
_MOST_TABLES = 50
"""Tables of one query."""
_KINDS: dict[str, Literal["table", "view", "sequence"]] = {"VIEW": "view", "SEQUENCE": "sequence"}


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


def read_table_forms(session: TargetSession, names: Sequence[Name], dialect: Dialect) -> dict[Name, TableForm | None]:
    """The form of each table of `names`; None if it is missing. Raises TargetRefused, TargetUnavailable."""
    found: dict[Name, TableForm | None] = {}
    for first in range(0, len(names), _MOST_TABLES):
        found |= _read_some(session, names[first : first + _MOST_TABLES], dialect)
    return found


class _Table(NamedTuple):
    """A row of information_schema.TABLES."""

    type: str
    engine: str | None


class _Column(NamedTuple):
    """A row of information_schema.COLUMNS."""

    position: int
    name: str
    type: str
    is_nullable: str
    collation: str | None
    extra: str
    default: str | None

    @property
    def nullable(self) -> bool:
        return self.is_nullable == "YES"


class _IndexPart(NamedTuple):
    """A row of information_schema.STATISTICS; `column` is NULL in an index on an expression."""

    name: str
    position: int
    non_unique: int
    column: str | None
    length: int | None


def _read_some(session: TargetSession, names: Sequence[Name], dialect: Dialect) -> dict[Name, TableForm | None]:
    there = _fetch_by_table(session, _Table, "TABLE_TYPE, ENGINE FROM information_schema.TABLES", names)
    stored = [name for name in there if there[name][0].type not in _KINDS]
    columns = _fetch_by_table(
        session,
        _Column,
        "ORDINAL_POSITION, COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, COLLATION_NAME, EXTRA, COLUMN_DEFAULT"
        " FROM information_schema.COLUMNS",
        stored,
    )
    parts = _fetch_by_table(
        session,
        _IndexPart,
        "INDEX_NAME, SEQ_IN_INDEX, NON_UNIQUE, COLUMN_NAME, SUB_PART FROM information_schema.STATISTICS",
        stored,
    )
    unsafe = _list_engines_without_transactions(session) if stored else frozenset()

    def build_form(name: Name) -> TableForm | None:
        if name not in there:
            return None
        table = there[name][0]
        if table.type in _KINDS:
            return TableForm(_KINDS[table.type], (), frozenset())
        own = tuple(_build_column(column, dialect) for column in sorted(columns.get(name, ())))
        engine = table.engine if table.engine in unsafe else ""
        return TableForm("table", own, _build_indexes(parts.get(name, ())), engine=engine or "")

    return {name: build_form(name) for name in names}


def _fetch_by_table(
    session: TargetSession, kind: Callable[..., Any], select: str, names: Sequence[Name]
) -> dict[Name, list[Any]]:
    """The rows of `select` (columns and a view of information_schema) for each table that has some."""
    found: dict[Name, list[Any]] = defaultdict(list)
    if names:
        own = f"{select} WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
        sql = " UNION ALL ".join(f"SELECT {number}, {own}" for number in range(len(names)))
        for number, *values in session.fetch_rows(sql, list(chain.from_iterable(names))):
            found[names[int(number)]].append(kind(*values))
    return found


def _list_engines_without_transactions(session: TargetSession) -> frozenset[str]:
    return frozenset(session.fetch_column("SELECT ENGINE FROM information_schema.ENGINES WHERE TRANSACTIONS = 'NO'"))


def _build_column(column: _Column, dialect: Dialect) -> ColumnForm:
    return ColumnForm(
        fold_name(column.name),
        # A backslash in an ENUM element is shown doubled.
        normalize_type(column.type.replace("\\\\", "\\"), dialect),
        column.nullable,
        column.collation or "",
        _parse_generated_kind(column.extra),
        _fill_kind(column),
        "on update" in column.extra.lower(),
    )


def _parse_generated_kind(extra: str) -> Literal["", "virtual", "stored"]:
    words = extra.upper().split()
    if "GENERATED" not in words:
        return ""
    return "virtual" if "VIRTUAL" in words else "stored"


def _fill_kind(column: _Column) -> Literal["", "number", "value", "null"]:
    extra = column.extra.lower()
    if _parse_generated_kind(extra):
        return ""
    if "auto_increment" in extra or "auto_random" in extra:
        return "number"
    # MariaDB shows a default of NULL as the text NULL.
    if column.default is not None and column.default != "NULL":
        return "value"
    return "null" if column.nullable else ""


def _build_indexes(parts: Sequence[_IndexPart]) -> frozenset[IndexForm]:
    ordered = sorted(parts, key=lambda part: (part.name, part.position))
    return frozenset(
        IndexForm(not int(non_unique), tuple((fold_name(part.column or ""), int(part.length or 0)) for part in group))
        for (_, non_unique), group in groupby(ordered, key=lambda part: (part.name, part.non_unique))
    )
