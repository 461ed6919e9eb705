"""Joins the definitions of tables of different shapes into one for the rows of all: DM's joined schema (optimistic).

Rule: it has the columns and plain indexes of all tables, the unique keys that all tables share, and for each column a
type that can store every value of every table. If such a type does not exist, this is a conflict that names both
tables.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from binlake.dialect.defaults import format_default
from binlake.rows.schema import ColumnInfo, DbInfo, IndexInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import fold_name
from binlake.rows.schema.job import PUBLIC

_INTEGERS = (t.TINY, t.SHORT, t.INT24, t.LONG, t.LONGLONG)
_TEXTS = (t.TINYBLOB, t.BLOB, t.MEDIUMBLOB, t.LONGBLOB)
_ID_BITS = 0x7FFFFFFF
_FILLS = {"default": "origin_default", "default_bit": "origin_default_bit"}


class Conflict(Exception):
    """No definition can store the rows of all tables. The message names the tables and the difference."""


@dataclass(frozen=True)
class _Member:
    """A column of one of the joined tables."""

    table: TableDef
    column: ColumnInfo


@lru_cache(maxsize=4096)
def join_tables(tables: tuple[TableDef, ...]) -> TableDef:
    """The definition for the rows of all `tables`, with the name and id of the table with the lowest id.

    A column's id is derived from its name, so it is the same in every joined definition. Raises Conflict.
    """
    ordered = sorted(tables, key=lambda table: table.id)
    members: dict[str, list[_Member]] = {}
    for table in ordered:
        for column in table.columns:
            members.setdefault(fold_name(column.name), []).append(_Member(table, column))
    numbers: dict[str, int] = {}
    for name in sorted(members):
        numbers[name] = _free_number(zlib.crc32(name.encode()) & _ID_BITS, numbers)
    columns = [_build_raw_column(group, numbers[name], offset) for offset, (name, group) in enumerate(members.items())]
    plain = {_list_key_parts(index): index for table in ordered for index in _select_plain_indexes(table)}
    indexes = [
        _build_raw_index(n, index, list(members))
        for n, index in enumerate((*_find_shared_keys(ordered), *plain.values()))
    ]
    first = ordered[0]
    raw = {**first.raw, "cols": columns, "index_info": indexes, "pk_is_handle": False, "is_common_handle": False}
    return TableDef.from_json(raw, DbInfo(first.db_id, first.db, "", "", {}))


def _free_number(number: int, used: dict[str, int]) -> int:
    while number in used.values():
        number += 1
    return number


def _build_raw_column(members: Sequence[_Member], number: int, offset: int) -> dict[str, Any]:
    first = joined = members[0]
    for member in members[1:]:
        joined = replace(joined, column=_join_types(joined, member))
    raw = {**_find_raw_column(first), **_build_raw_fill(members)}
    column = joined.column
    kind = {
        "Tp": column.tp,
        "Flag": column.flag,
        "Flen": column.flen,
        "Decimal": column.decimal,
        "Elems": list(column.elems) or None,
    }
    return {**raw, "id": number, "offset": offset, "type": {**raw["type"], **kind}}


def _build_raw_fill(members: Sequence[_Member]) -> dict[str, Any]:
    """The value of the column for rows without it, independent of the order of tables, which may change.

    If a table's rows got the column by ADD COLUMN, it is that value; else the column's default is used.
    """
    raws = [_find_raw_column(member) for member in members]
    added = next((raw for raw in raws if any(raw.get(name) is not None for name in _FILLS.values())), None)
    if added is not None:
        return {name: added.get(name) for name in _FILLS.values()}
    if format_default(members[0].column) is None:
        return {}
    return {fill: raws[0].get(name) for name, fill in _FILLS.items()}


def _find_raw_column(member: _Member) -> dict[str, Any]:
    return next(raw for raw in member.table.raw["cols"] if raw["id"] == member.column.id)


def _join_types(one: _Member, other: _Member) -> ColumnInfo:
    """The column of `one`, widened so that it can store the values of both. Raises Conflict."""
    mine, theirs = one.column, other.column
    nullable = not (mine.not_null and theirs.not_null)
    wider = mine if _can_hold(mine, theirs) else theirs if _can_hold(theirs, mine) else None
    if wider is None:
        differences = ", ".join(f"{_format_name(m.table)} has {_describe_column(m.column)}" for m in (one, other))
        raise Conflict(f"column {mine.name}: {differences}")
    # Defaults and comments come from the first table, whichever table has the wider type.
    flag = mine.flag & ~t.FLAG_NOT_NULL if nullable else mine.flag
    return replace(mine, tp=wider.tp, flen=wider.flen, decimal=wider.decimal, elems=wider.elems, flag=flag)


def _can_hold(wide: ColumnInfo, narrow: ColumnInfo) -> bool:
    """True when `wide` can store every value of `narrow` except NULL, with the same text."""
    if (wide.unsigned, wide.charset, wide.collate, wide.generated_expr, wide.generated_stored) != (
        narrow.unsigned, narrow.charset, narrow.collate, narrow.generated_expr, narrow.generated_stored
    ):  # fmt: skip
        return False
    if (wide.tp, wide.flen, wide.decimal, wide.elems) == (narrow.tp, narrow.flen, narrow.decimal, narrow.elems):
        return True
    if wide.is_generated:
        return False
    for family in (_INTEGERS, _TEXTS):
        if wide.tp in family and narrow.tp in family:
            return family.index(wide.tp) >= family.index(narrow.tp)
    if wide.tp != narrow.tp:
        return False
    return _can_hold_lengths(wide, narrow)


def _can_hold_lengths(wide: ColumnInfo, narrow: ColumnInfo) -> bool:
    if wide.tp in (t.VARCHAR, t.VARSTRING):
        return wide.flen >= narrow.flen
    if wide.tp == t.STRING and not wide.is_binary:
        return wide.flen >= narrow.flen
    if wide.tp == t.NEWDECIMAL:
        return wide.decimal == narrow.decimal and wide.flen >= narrow.flen
    if wide.tp in (t.ENUM, t.SET):
        return wide.elems[: len(narrow.elems)] == narrow.elems
    return False


def _find_shared_keys(tables: Sequence[TableDef]) -> list[IndexInfo]:
    """The unique keys that all `tables` share. Raises Conflict if each table has one but none is shared."""
    every = [{_list_key_parts(key): key for key in table.list_unique_keys()} for table in tables]
    shared = [key for parts, key in every[0].items() if all(parts in keys for keys in every[1:])]
    if not shared and all(every):
        raise Conflict(f"the tables {', '.join(map(_format_name, tables))} have no unique key in common")
    return shared


def _select_plain_indexes(table: TableDef) -> Iterable[IndexInfo]:
    return (index for index in table.indexes if not index.unique and index.state == PUBLIC)


def _list_key_parts(index: IndexInfo) -> tuple[tuple[str, int], ...]:
    return tuple((fold_name(part.name), part.length) for part in index.columns)


def _build_raw_index(number: int, index: IndexInfo, columns: Sequence[str]) -> dict[str, Any]:
    parts = [
        {"name": {"O": part.name, "L": fold_name(part.name)}, "offset": columns.index(fold_name(part.name)),
         "length": part.length}
        for part in index.columns
    ]  # fmt: skip
    return {
        "id": number, "idx_name": {"O": index.name, "L": fold_name(index.name)}, "idx_cols": parts, "state": PUBLIC,
        "is_unique": index.unique, "is_primary": index.primary, "is_invisible": not index.visible,
    }  # fmt: skip


def _format_name(table: TableDef) -> str:
    return f"{table.db}.{table.name}"


def _describe_column(column: ColumnInfo) -> str:
    collation = f" {column.collate}" if column.collate and column.collate != "binary" else ""
    generated = f" AS ({column.generated_expr})" if column.generated_expr else ""
    return f"{column.type_text}{collation}{generated}"
