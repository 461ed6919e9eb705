"""Reads the forms of many of the target's tables with few queries.

A server looks up single tables only for a condition on one name, so the queries for single tables are joined by UNION.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import chain, groupby
from typing import Any, Literal, NamedTuple

from binlake.base.sql import Dialect
from binlake.rows.schema.forms import fold_name
from binlake.target.definitions.forms import ColumnForm, IndexForm, Name, TableForm, normalize_type
from binlake.target.session.session import TargetSession

_MOST_TABLES = 50
"""Tables of one query."""


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


_KINDS: dict[str, Literal["table", "view", "sequence"]] = {"VIEW": "view", "SEQUENCE": "sequence"}


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
