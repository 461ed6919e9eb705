"""Refuses fixes and undos for tables with columns of their own, because these write whole rows (hazards R-12)."""

from __future__ import annotations

from collections.abc import Iterable

from binlake.base.sql import Dialect
from binlake.errors import Drift
from binlake.rows.schema import TableDef
from binlake.rows.schema.forms import fold_name
from binlake.target.definitions.definitions import read_definitions
from binlake.target.session.session import TargetSession


def require_no_own_columns(session: TargetSession, tables: Iterable[TableDef], dialect: Dialect) -> None:
    """Raises Drift for a table with columns that are not in `tables`: whole rows would reset them to defaults."""
    known = {(table.db, table.name): {fold_name(column.name) for column in table.columns} for table in tables}
    actual = read_definitions(session, known, dialect)
    for name, definition in actual.tables.items():
        own = sorted(
            {column.name for column in definition.columns if fold_name(column.name) not in known[name]}
            if definition
            else ()
        )
        if own:
            raise Drift(
                f"the table has columns of its own, whose values whole rows would overwrite: {', '.join(own)}",
                where={"table": ".".join(name), "target": session.place},
                hint="repair its rows by hand, column by column; name the other tables to repair those",
            )
