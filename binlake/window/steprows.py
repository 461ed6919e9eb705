"""Whether rows written after one DDL can follow a later one that runs with it (DM's pessimistic mode).

Rule: held rows are texts of the definition that they were written with. They may follow a later definition only where
it reads the same text as the same value, and where all tables filled their rows with the same value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from binlake.rows.codec.writers import filled_text
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.names import fold_name
from binlake.window.joined import Conflict
from binlake.window.optimistic import renames_column
from binlake.window.shardlocks import Hold

_CURRENT = "CURRENT_"


def rows_stay_readable(steps: Sequence[Hold], last: TableDef) -> bool:
    """Whether rows of a table's `steps` mean the same in `last`, a later definition: no column was renamed."""
    names = {column.id: fold_name(column.name) for column in last.columns}
    for hold in steps:
        # A step that was part of a table's first definition has no rows.
        if hold.until != hold.since and (
            unreadable_column(hold.after, last)
            or any(names.get(c.id, fold_name(c.name)) != fold_name(c.name) for c in hold.after.columns)
        ):
            return False
    return True


def unreadable_column(table: TableDef, last: TableDef) -> str:
    """The column of `table` whose text means another value in `last`, perhaps of another table; empty: none."""
    for column in table.row_columns:
        later = last.column(column.name)
        if later is not None and not later.is_generated and _kind_of_text(column) != _kind_of_text(later):
            return column.name
    return ""


def _kind_of_text(column: ColumnInfo) -> str:
    """The kind of a column: columns of one kind read a text as the same value, or refuse it."""
    if column.is_binary:
        return "hex"
    # A TIMESTAMP is shown in UTC; as a DOUBLE, the text of a FLOAT is another value.
    return {t.TIMESTAMP: "UTC", t.FLOAT: "float", t.DOUBLE: "double"}.get(column.tp, "")


def require_one_fill(tables: Sequence[Sequence[Hold]]) -> str:
    """Check that existing rows of all `tables` got the same values in columns that the steps add.

    Returns an alert where the value is the time of the DDL, else an empty text. Raises Conflict.
    """
    fills: dict[str, tuple[str | None, Hold]] = {}
    alert = ""
    for steps in tables:
        for name, (column, hold) in _added_columns(steps).items():
            text, first = fills.setdefault(name, (filled_text(column), hold))
            if text == filled_text(column):
                continue
            both = f"{_source_name(first)} and {_source_name(hold)}"
            if not (column.default or "").upper().startswith(_CURRENT):
                raise Conflict(
                    f"column {column.name}: rows of {_source_name(first)} were filled with {text!r}, rows of"
                    f" {_source_name(hold)} with {filled_text(column)!r}; the target would have one of them in all"
                )
            alert = f"column {column.name}: rows of {both} have the time of their own DDL in it, and one at the target"
    return alert


def _added_columns(steps: Sequence[Hold]) -> dict[str, tuple[ColumnInfo, Hold]]:
    return {fold_name(column.name): (column, hold) for hold in steps for column in _columns_added_by(hold)}


def _columns_added_by(hold: Hold) -> Iterator[ColumnInfo]:
    former = {column.id for column in hold.before.columns}
    for column in hold.after.row_columns:
        renamed = column.id in former or renames_column(hold.sql)
        if not column.is_generated and not renamed and hold.before.column(column.name) is None:
            yield column


def _source_name(hold: Hold) -> str:
    return ".".join(hold.source)
