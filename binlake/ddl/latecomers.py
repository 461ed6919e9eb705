"""Definitions for a table that joins a shared target when it is created, such as a shard that is loaded later.

Rule: a new table has no earlier rows, so any of its columns that the target lacks is added for the other tables' rows
alone, and any that it lacks itself is filled in its rows. Both get the value that the DDL of such a column gives: the
column's default. The definitions of several tables are compared by column names, as each table numbers its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from binlake.dialect.defaults import format_default
from binlake.rows.schema import ColumnInfo, DbInfo, TableDef
from binlake.rows.schema.forms import fold_name

_FILLS = {"default": "origin_default", "default_bit": "origin_default_bit"}


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
