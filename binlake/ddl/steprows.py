"""Decides whether rows written after one DDL can follow a later DDL that runs with it (DM's pessimistic mode).

Rule: held rows are texts in the definition with which they were written. They may follow a later definition only if it
reads the same text as the same value, and if all tables filled an added column with the same value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from binlake.ddl.joined import Conflict
from binlake.ddl.optimistic import renames_column
from binlake.ddl.shardlocks import Hold
from binlake.rows.codec.encode import derive_filled_text
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import fold_name


def keeps_rows_readable(steps: Sequence[Hold], last: TableDef) -> bool:
    """Whether the later definition `last` reads rows of a table's `steps` as the same values: no renamed column."""
    names = {column.id: fold_name(column.name) for column in last.columns}
    for hold in steps:
        # A step that is part of a table's first definition has no rows.
        if hold.until != hold.since and (
            find_unreadable_column(hold.after, last)
            or any(names.get(c.id, fold_name(c.name)) != fold_name(c.name) for c in hold.after.columns)
        ):
            return False
    return True


def find_unreadable_column(table: TableDef, last: TableDef) -> str:
    """A column of `table` whose text `last`, perhaps of another table, would read as another value; "" if none."""
    for column in table.row_columns:
        later = last.find_column(column.name)
        if later is not None and not later.is_generated and _classify_text(column) != _classify_text(later):
            return column.name
    return ""


def _classify_text(column: ColumnInfo) -> str:
    """The kind of a column. Columns of the same kind read a text as the same value or refuse it."""
    if column.is_binary:
        return "hex"
    # A TIMESTAMP's text is in UTC. The text of a FLOAT is another value as a DOUBLE.
    return {t.TIMESTAMP: "UTC", t.FLOAT: "float", t.DOUBLE: "double"}.get(column.tp, "")


def require_one_fill(tables: Sequence[Sequence[Hold]]) -> str:
    """Require that existing rows of all `tables` got the same values in columns that the steps add.

    Returns an alert if the value is the time of the DDL, else an empty text. Raises Conflict.
    """
    fills: dict[str, tuple[str | None, Hold]] = {}
    alert = ""
    for steps in tables:
        for name, (column, hold) in _collect_added_columns(steps).items():
            text, first = fills.setdefault(name, (derive_filled_text(column), hold))
            if text == derive_filled_text(column):
                continue
            both = f"{_format_source_name(first)} and {_format_source_name(hold)}"
            if not column.defaults_to_time:
                raise Conflict(
                    f"column {column.name}: rows of {_format_source_name(first)} were filled with {text!r}, rows of"
                    f" {_format_source_name(hold)} with {derive_filled_text(column)!r}; the target would use one value"
                    " for all"
                )
            alert = f"column {column.name}: rows of {both} have the time of their own DDL, but one time at the target"
    return alert


def _collect_added_columns(steps: Sequence[Hold]) -> dict[str, tuple[ColumnInfo, Hold]]:
    # A table that was created with a step's result has no rows that the step filled.
    real = [hold for hold in steps if not hold.created]
    return {fold_name(column.name): (column, hold) for hold in real for column in _find_added_columns(hold)}


def _find_added_columns(hold: Hold) -> Iterator[ColumnInfo]:
    former = {column.id for column in hold.before.columns}
    for column in hold.after.row_columns:
        renamed = column.id in former or renames_column(hold.sql)
        if not column.is_generated and not renamed and hold.before.find_column(column.name) is None:
            yield column


def _format_source_name(hold: Hold) -> str:
    return ".".join(hold.source)
