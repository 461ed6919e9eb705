"""Finds DDL that changes rows by itself. The lake has no row changes for it, so its tables are compared afterwards.

This is derived from the definitions before and after, whatever the statement: a changed type converts values, a new
column gets values in existing rows, and a new table id or a removed partition removes rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from binlake.ddl.definitions import LandedDdl
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema.forms import fold_name, fold_pair

Name = tuple[str, str]
STAGE = "verify-ddl"
"""Events of this stage: `due` before such a DDL, then the outcome. Each lists all tables that are still due."""
FOUND = ("equal", "different", "not-comparable")
"""The states of an outcome."""


def find_rewritten_tables(ddls: Iterable[LandedDdl]) -> dict[Name, int]:
    """By target table, the commit_ts of the last of `ddls` that changes the table's rows by itself.

    The key is the table's name after the last of `ddls`. Tables that are dropped later are left out.
    """
    last_rewrites: dict[Name, int] = {}
    for ddl in ddls:
        if ddl.decision not in ("apply", "replaced"):
            continue
        names = {table.id: (table.db, table.name) for table in ddl.before.tables}
        # A rename, even as a part of another DDL, moves the entry to the new name.
        moved = {table_id: last_rewrites.pop(name) for table_id, name in names.items() if name in last_rewrites}
        for table in ddl.after.tables:
            name = (table.db, table.name)
            if _is_rewritten(_find_former(ddl.before.tables, table), table):
                last_rewrites[name] = ddl.commit_ts
            elif table.id in moved:
                last_rewrites[name] = moved[table.id]
    return last_rewrites


def _find_former(tables: Iterable[TableDef], after: TableDef) -> TableDef | None:
    """The table before the DDL, found by its id, else by its name (TRUNCATE assigns a new id)."""
    known = list(tables)
    same = [table for table in known if table.id == after.id]
    named = [t for t in known if fold_pair((t.db, t.name)) == fold_pair((after.db, after.name))]
    return next(iter([*same, *named]), None)


def _is_rewritten(before: TableDef | None, after: TableDef) -> bool:
    if before is None or after.kind != "table":
        return False
    if before.id != after.id or set(before.partition_ids) - set(after.partition_ids):
        return True
    old = {fold_name(column.name): column for column in before.columns}
    moved = _match_renamed_columns(before, after)
    return any(
        _is_converted(old.get(fold_name(column.name)) or moved.get(column.name), column) for column in after.columns
    )


def _match_renamed_columns(before: TableDef, after: TableDef) -> Mapping[str, ColumnInfo]:
    """New columns of `after` matched in order with the removed columns of `before`, if their numbers are equal."""
    old, new = ({fold_name(column.name) for column in table.columns} for table in (before, after))
    came = [column for column in after.columns if fold_name(column.name) not in old]
    removed = [column for column in before.columns if fold_name(column.name) not in new]
    return {a.name: b for a, b in zip(came, removed, strict=True)} if len(came) == len(removed) else {}


def _is_converted(before: ColumnInfo | None, after: ColumnInfo) -> bool:
    if after.is_virtual:
        return False
    if before is None:
        return (
            after.not_null or after.is_generated or after.origin_default is not None or bool(after.origin_default_bit)
        )
    return _build_column_form(before) != _build_column_form(after)


def _build_column_form(column: ColumnInfo) -> tuple[object, ...]:
    return column.type_text, column.charset, column.collate, column.not_null, column.generated_expr
