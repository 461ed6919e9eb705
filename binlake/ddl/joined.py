"""The joined definition of tables of different shapes, for the rows of all, and the ALTER TABLE from one to the next.

Rule: it has the columns and plain indexes of all tables, the unique keys that all tables share, and for each column a
type that can store every value of every table. If such a type does not exist, this is a conflict that names both
tables. (DM's joined schema, optimistic.) The ALTER TABLE is used only if the source's statement does not fit: if it
adds something that the target already has, or uses a type other than the joined one.

A table may join a shared target when it is created, such as a shard that is loaded later. It has no earlier rows, so
any of its columns that the target lacks is added for the other tables' rows alone, and any that it lacks itself is
filled in its rows. Both get the value that the DDL of such a column gives: the column's default. The definitions of
several tables are compared by column names, as each table numbers its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from binlake.dialect.defaults import format_default
from binlake.errors import SchemaError
from binlake.rows.schema import ColumnInfo, DbInfo, IndexInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import fold_name
from binlake.rows.schema.job import PUBLIC
from binlake.statements.literal import quote, quote_name, quote_qualified_name

_INTEGERS = (t.TINY, t.SHORT, t.INT24, t.LONG, t.LONGLONG)
_TEXTS = (t.TINYBLOB, t.BLOB, t.MEDIUMBLOB, t.LONGBLOB)
_ID_BITS = 0x7FFFFFFF
_FILLS = {"default": "origin_default", "default_bit": "origin_default_bit"}
_CURRENT = "CURRENT_TIMESTAMP"
_CHARACTER_TYPES = t.STRINGS | {t.ENUM, t.SET}


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


def list_lacking_columns(table: TableDef, other: TableDef) -> list[str]:
    """The columns of `other` that `table` does not have."""
    return [column.name for column in other.row_columns if table.find_column(column.name) is None]


def fill_with_defaults(table: TableDef, names: Collection[str]) -> TableDef:
    """`table` where rows without one of the columns `names` have its default, as after an ADD COLUMN.

    A column that was added by a DDL keeps the value of that DDL. A default that is an expression or a time fills
    nothing: it has no one value.
    """
    folded = {fold_name(name) for name in names}
    columns = {column.id: column for column in table.columns}
    cols = [
        {**raw, **{fill: raw.get(name) for name, fill in _FILLS.items()}}
        if fold_name(raw["name"]["O"]) in folded and _is_unfilled(columns.get(raw["id"]))
        else raw
        for raw in table.raw["cols"]
    ]
    return table if cols == table.raw["cols"] else _replace_columns(table, cols)


def _is_unfilled(column: ColumnInfo | None) -> bool:
    return (
        column is not None
        and column.origin_default is None
        and column.origin_default_bit is None
        and not column.defaults_to_time
        and format_default(column) is not None
    )


@lru_cache(maxsize=4096)
def fill_for_others(widest: TableDef, tables: tuple[TableDef, ...]) -> TableDef:
    """`widest` with the values that rows of those of `tables` get that lack one of its columns."""
    lacking = {name for table in tables if table is not widest for name in list_lacking_columns(table, widest)}
    return fill_with_defaults(widest, lacking) if lacking else widest


def number_columns_as(table: TableDef, known: TableDef) -> TableDef:
    """`table` where a column has the id of the column of its name in `known`; other columns get unused ids."""
    ids = {fold_name(column.name): column.id for column in known.all_columns}
    top = max((*ids.values(), *(column.id for column in table.all_columns)), default=0)
    cols: list[dict[str, Any]] = []
    for raw in table.raw["cols"]:
        number = ids.get(fold_name(raw["name"]["O"]))
        top += number is None
        cols.append({**raw, "id": top if number is None else number})
    return _replace_columns(table, cols)


def extend_known(known: TableDef, new: TableDef) -> TableDef:
    """The target of `known` after it was altered to the definition `new`: the same table, with its ids of columns."""
    numbered = number_columns_as(fill_with_defaults(new, list_lacking_columns(known, new)), known)
    return replace(numbered, id=known.id, raw={**numbered.raw, "id": known.id})


def describe_other_shape(known: TableDef, new: TableDef) -> str:
    """Why `new`, such as a shard loaded after its ALTER, cannot join `known`: which columns differ."""
    names, others = ({fold_name(column.name): column.name for column in table.columns} for table in (new, known))
    more = [name for key, name in names.items() if key not in others]
    less = [name for key, name in others.items() if key not in names]
    found = [f"it also has {', '.join(more)}"] if more else []
    found += [f"it lacks {', '.join(less)}"] if less else []
    what = " and ".join(found) or "its columns' types or its keys differ"
    return f"a table joins {known.db}.{known.name} at the target but has another shape: {what}"


def _replace_columns(table: TableDef, cols: Sequence[dict[str, Any]]) -> TableDef:
    return TableDef.from_json({**table.raw, "cols": list(cols)}, DbInfo(table.db_id, table.db, "", "", {}))


def write_alter(was: TableDef, now: TableDef) -> str:
    """The ALTER TABLE for `now.db`.`now.name`; empty = no change. Raises SchemaError if it is impossible."""
    specs = [*_render_dropped_indexes(was, now), *_alter_columns(was, now), *_render_added_indexes(was, now)]
    return f"ALTER TABLE {quote_qualified_name(now.db, now.name)} {', '.join(specs)}" if specs else ""


def _alter_columns(was: TableDef, now: TableDef) -> Iterator[str]:
    for column in was.columns:
        if now.find_column(column.name) is None:
            yield f"DROP COLUMN {quote_name(column.name)}"
    for column in now.columns:
        former = was.find_column(column.name)
        if former is None:
            yield f"ADD COLUMN {render_column(column)}"
        elif _build_column_form(former) != _build_column_form(column):
            yield f"MODIFY COLUMN {render_column(column)}"


def _build_column_form(column: ColumnInfo) -> tuple[object, ...]:
    return column.type_text, column.not_null, column.collate, column.generated_expr


def render_column(column: ColumnInfo) -> str:
    """The column's text as in CREATE TABLE. Raises SchemaError if its value is an expression."""
    if column.is_generated or column.default_is_expr:
        raise SchemaError(f"the column {column.name} has an expression")
    words = [quote_name(column.name), column.type_text]
    if column.tp in _CHARACTER_TYPES and not column.is_binary:
        words.append(f"CHARACTER SET {column.charset} COLLATE {column.collate}")
    words.append("NOT NULL" if column.not_null else "NULL")
    words += _render_default(column)
    if column.flag & t.FLAG_AUTO_INCREMENT:
        words.append("AUTO_INCREMENT")
    if column.comment:
        words.append(f"COMMENT {quote(column.comment)}")
    return " ".join(words)


def _render_default(column: ColumnInfo) -> Iterator[str]:
    fraction = f"({column.fsp})" if column.fsp else ""
    if column.defaults_to_time:
        yield f"DEFAULT {_CURRENT}{fraction}"
    elif (literal := format_default(column)) is not None:
        yield f"DEFAULT {literal}"
    if column.flag & t.FLAG_ON_UPDATE_NOW:
        yield f"ON UPDATE {_CURRENT}{fraction}"


def _render_dropped_indexes(was: TableDef, now: TableDef) -> Iterator[str]:
    left = {_list_index_parts(index) for index in _list_indexes(now)}
    for index in _list_indexes(was):
        if _list_index_parts(index) not in left:
            yield "DROP PRIMARY KEY" if index.primary else f"DROP INDEX {quote_name(index.name)}"


def _render_added_indexes(was: TableDef, now: TableDef) -> Iterator[str]:
    existing = {_list_index_parts(index) for index in _list_indexes(was)}
    for index in _list_indexes(now):
        if _list_index_parts(index) in existing:
            continue
        columns = ", ".join(
            quote_name(part.name) + (f"({part.length})" if part.length >= 0 else "") for part in index.columns
        )
        kind = "PRIMARY KEY" if index.primary else f"{'UNIQUE ' * index.unique}INDEX {quote_name(index.name)}"
        yield f"ADD {kind} ({columns})"


def _list_indexes(table: TableDef) -> Sequence[IndexInfo]:
    return [*table.list_unique_keys(), *_select_plain_indexes(table)]


def _list_index_parts(index: IndexInfo) -> tuple[bool, tuple[tuple[str, int], ...]]:
    return index.unique, tuple((fold_name(part.name), part.length) for part in index.columns)
