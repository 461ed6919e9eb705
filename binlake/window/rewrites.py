"""Which DDL changes rows by itself: no row change of the lake says what it left, so its tables are looked at behind it.

Derived from the definitions before and after, whatever the statement: a type that changes converts values, a new column
fills them, a new table id or a partition that is gone takes rows away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema.names import fold_name, fold_pair
from binlake.window.definitions import LandedDdl

Name = tuple[str, str]
STAGE = "verify-ddl"
"""Events of this stage: `due` before such a DDL, then the outcome; each holds all that is still due."""
FOUND = ("equal", "different", "not-comparable")
"""The states of an outcome."""


def tables_rewritten_by(ddls: Iterable[LandedDdl]) -> dict[Name, int]:
    """The target's tables whose rows one of `ddls` changes by itself at the target: the commit_ts of the last one.

    By the name that the table has behind the last of `ddls`; those that are dropped later are left out.
    """
    found: dict[Name, int] = {}
    for ddl in ddls:
        if ddl.decision not in ("apply", "replaced"):
            continue
        names = {table.id: (table.db, table.name) for table in ddl.before.tables}
        # A rename, and what it is part of, takes the mark along.
        marks = {table_id: found.pop(name) for table_id, name in names.items() if name in found}
        for table in ddl.after.tables:
            name = (table.db, table.name)
            if _is_rewritten(_find_former(ddl.before.tables, table), table):
                found[name] = ddl.commit_ts
            elif table.id in marks:
                found[name] = marks[table.id]
    return found


def _find_former(tables: Iterable[TableDef], after: TableDef) -> TableDef | None:
    """The table as it was: by its id, else (TRUNCATE gives a new one) by its name."""
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
    """Columns of `after` under a name that `before` has not, where as many are gone: the one at the same place."""
    old, new = ({fold_name(column.name) for column in table.columns} for table in (before, after))
    came = [column for column in after.columns if fold_name(column.name) not in old]
    gone = [column for column in before.columns if fold_name(column.name) not in new]
    return {a.name: b for a, b in zip(came, gone, strict=True)} if len(came) == len(gone) else {}


def _is_converted(before: ColumnInfo | None, after: ColumnInfo) -> bool:
    if after.is_virtual:
        return False
    if before is None:
        return (
            after.not_null or after.is_generated or after.origin_default is not None or bool(after.origin_default_bit)
        )
    return _form(before) != _form(after)


def _form(column: ColumnInfo) -> tuple[object, ...]:
    return column.type_text, column.charset, column.collate, column.not_null, column.generated_expr
