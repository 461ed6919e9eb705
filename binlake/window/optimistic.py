"""What a DDL of one of several tables that share a target does there, when the target has their joined definition.

Rule (`shard-mode = "optimistic"`): the target is always what holds the rows of all tables at that place of the log. A
DDL that changes the joined definition runs at once; one that does not is skipped; where the joined definition cannot be
had, or rows already there would have other values than at the source, it is a conflict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from binlake.dialect import tokenize_restored
from binlake.rows.codec.writers import filled_text
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema.delta import Definitions
from binlake.rows.schema.names import fold_name
from binlake.window.joined import Conflict, join_tables
from binlake.window.targets import RowLayout
from binlake.window.widening import write_alter


@dataclass(frozen=True)
class SharedChange:
    """A DDL of one table: `old` and `new` are its definitions (None: not there), `was` and `now` those of all tables
    that share its target, by the target's names."""

    old: TableDef | None
    new: TableDef | None
    was: Sequence[TableDef]
    now: Sequence[TableDef]


@dataclass(frozen=True)
class JoinedChange:
    """`sides`: the target before and after; `sql`: what runs, empty = nothing, None = the source's own statement."""

    sides: tuple[Definitions, Definitions]
    sql: str | None


def join_change(change: SharedChange, query: str) -> JoinedChange:
    """What the DDL `query` does to the joined definition. Raises SchemaError or Conflict: there is no way for it."""
    was, now = join_tables(tuple(change.was)), join_tables(tuple(change.now))
    if change.old is not None and change.new is not None:
        _require_same_names(change.old, change.new, query)
    for column in _added(change):
        _require_same_fill(column, was)
    # One table before and after: what the mirror alters, and what rows are converted by.
    now = replace(now, id=was.id, raw={**now.raw, "id": was.id})
    sides = Definitions((), (was,)), Definitions((), (now,))
    if RowLayout(was) == RowLayout(now):
        return JoinedChange(sides, "")
    if change.old is not None and change.new is not None and _delta(change.old, change.new) == _delta(was, now):
        return JoinedChange(sides, None)
    return JoinedChange(sides, write_alter(was, now))


def _added(change: SharedChange) -> Iterator[ColumnInfo]:
    """The columns that an ALTER gives to the rows of a table."""
    if change.old is not None and change.new is not None:
        yield from (column for column in change.new.row_columns if change.old.column(column.name) is None)


def _require_same_fill(column: ColumnInfo, was: TableDef) -> None:
    """Rows of the table have in the target's column what the first table's ADD COLUMN gave them. Raises Conflict."""
    there = was.column(column.name)
    if there is not None and filled_text(there) != filled_text(column):
        raise Conflict(
            f"column {column.name}: the table's rows have {filled_text(there)!r} at the target, and the DDL gives them"
            f" {filled_text(column)!r}"
        )


def _require_same_names(old: TableDef, new: TableDef, query: str) -> None:
    """No column is renamed: rows of the other tables keep its old name, and both are columns then. Raises Conflict."""
    former = {column.id: column.name for column in old.columns}
    renamed = [
        (former[column.id], column.name)
        for column in new.columns
        if column.id in former and fold_name(former[column.id]) != fold_name(column.name)
    ]
    if renamed or _names_change(query):
        raise Conflict(f"a column is renamed: {', '.join(map(' to '.join, renamed)) or query[:100]}")


def _names_change(query: str) -> bool:
    """True for `CHANGE [COLUMN] former new ...`: with another type, the column has another number too."""
    tokens = tokenize_restored(query)
    for at in range(len(tokens) - 3):
        if tokens[at].is_word("CHANGE"):
            at += 1 + tokens[at + 1].is_word("COLUMN")
            if fold_name(tokens[at].value) != fold_name(tokens[at + 1].value):
                return True
    return False


def _delta(before: TableDef, after: TableDef) -> tuple[object, ...]:
    one, other = RowLayout(before), RowLayout(after)
    return (
        frozenset(one.columns - other.columns), frozenset(other.columns - one.columns),
        frozenset(one.unique ^ other.unique), frozenset(one.plain ^ other.plain),
    )  # fmt: skip
