"""The effect of one table's DDL on the joined definition of a target that several tables share.

Rule (`shard-mode = "optimistic"`): the target can always store the rows of all tables at that commit_ts. A DDL that
changes the joined definition runs at once; other DDL is skipped. It is a conflict if a joined definition does not
exist, or if rows already at the target would have other values than at the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from binlake.ddl.joined import Conflict, join_tables, write_alter
from binlake.ddl.targets import RowLayout
from binlake.dialect import tokenize_restored
from binlake.dialect.classify import find_alter_clauses, find_changed_columns
from binlake.rows.codec.encode import derive_filled_text
from binlake.rows.schema import TableDef
from binlake.rows.schema.forms import fold_name
from binlake.rows.schema.state import DdlSide


@dataclass(frozen=True)
class SharedChange:
    """A DDL of one table, with the target's names.

    `old` and `new`: its definitions (None: absent); `was` and `now`: those of all tables that share its target.
    """

    old: TableDef | None
    new: TableDef | None
    was: Sequence[TableDef]
    now: Sequence[TableDef]


@dataclass(frozen=True)
class JoinedChange:
    """`sides`: the target before and after. `sql`: the statement to run; "" = none, None = the source's statement."""

    sides: tuple[DdlSide, DdlSide]
    sql: str | None


def join_change(change: SharedChange, query: str) -> JoinedChange:
    """The effect of the DDL `query` on the joined definition. Raises SchemaError or Conflict."""
    was, now = join_tables(tuple(change.was)), join_tables(tuple(change.now))
    if change.old is not None and change.new is not None:
        _require_same_names(change.old, change.new, query)
    if change.old is not None and change.new is not None:
        require_same_fill(change.old, change.new, was)
    _require_unchanged_fill(change, was, now)
    # It stays the same table with the same id, as the mirror alters it and converts its rows.
    now = replace(now, id=was.id, raw={**now.raw, "id": was.id})
    sides = DdlSide((), (was,)), DdlSide((), (now,))
    if RowLayout(was) == RowLayout(now):
        return JoinedChange(sides, "")
    if (
        change.old is not None
        and change.new is not None
        and _compute_layout_change(change.old, change.new) == _compute_layout_change(was, now)
    ):
        return JoinedChange(sides, None)
    return JoinedChange(sides, write_alter(was, now))


def require_same_fill(old: TableDef, new: TableDef, was: TableDef) -> None:
    """Require that rows of a table that adds a column get the value they have at the target `was`. Raises Conflict."""
    for column in new.row_columns:
        at_target = was.find_column(column.name)
        if (
            old.find_column(column.name) is None
            and at_target is not None
            and derive_filled_text(at_target) != derive_filled_text(column)
        ):
            raise Conflict(
                f"column {column.name}: the table's rows have {derive_filled_text(at_target)!r} at the target, but the"
                f" DDL gives them {derive_filled_text(column)!r}"
            )


def _require_unchanged_fill(change: SharedChange, was: TableDef, now: TableDef) -> None:
    """Require that rows of tables without a column keep that column's value at the target. Raises Conflict."""
    for column in now.row_columns:
        at_target = was.find_column(column.name)
        if at_target is None or column.is_generated or derive_filled_text(at_target) == derive_filled_text(column):
            continue
        if any(table.find_column(column.name) is None for table in change.now):
            raise Conflict(
                f"column {column.name}: rows of tables without it have {derive_filled_text(at_target)!r} at the target,"
                f" and would have {derive_filled_text(column)!r}"
            )


def _require_same_names(old: TableDef, new: TableDef, query: str) -> None:
    """Raises Conflict if a column is renamed: rows of other tables keep the old name, so both columns would exist."""
    former = {column.id: column.name for column in old.columns}
    renamed = [
        (former[column.id], column.name)
        for column in new.columns
        if column.id in former and fold_name(former[column.id]) != fold_name(column.name)
    ]
    if renamed or renames_column(query):
        raise Conflict(f"a column is renamed: {', '.join(map(' to '.join, renamed)) or query[:100]}")


def renames_column(query: str) -> bool:
    """True for `CHANGE [COLUMN] former new ...`. With another type the column has a new id, so compare the names."""
    changed = find_changed_columns(find_alter_clauses(tokenize_restored(query)))
    return any(new != former for new, former in changed.items())


def _compute_layout_change(before: TableDef, after: TableDef) -> tuple[object, ...]:
    old, new = RowLayout(before), RowLayout(after)
    return (
        frozenset(old.columns - new.columns), frozenset(new.columns - old.columns),
        frozenset(old.unique ^ new.unique), frozenset(old.plain ^ new.plain),
    )  # fmt: skip
