"""A DDL whose names are already the target's, the definitions of the table that its text names, and why it cannot run.

`Unmappable` is the only error raised inside the mapping: `map_ddl` turns it into TargetRefused with the position of
the DDL.
"""

from __future__ import annotations

from typing import Protocol

from binlake.dialect.classify import Classified
from binlake.rows.schema import TableDef
from binlake.rows.schema.forms import fold_pair
from binlake.rows.schema.state import DdlSide


class Unmappable(Exception):
    """A clause that the target's dialect cannot express; `clause` names it for people."""

    def __init__(self, clause: str) -> None:
        self.clause = clause
        super().__init__(clause)


class RoutedDdl(Protocol):
    """A DDL whose names are the target's: its text, the database and table of its job, and the definitions."""

    @property
    def commit_ts(self) -> int:
        """The DDL's position."""

    @property
    def db(self) -> str:
        """The database of the DDL's job."""

    @property
    def table(self) -> str:
        """The table of the DDL's job."""

    @property
    def sql(self) -> str:
        """The DDL's text, with the target's names."""

    @property
    def before(self) -> DdlSide:
        """The definitions that the DDL touches, as they were before it."""

    @property
    def after(self) -> DdlSide:
        """The definitions that the DDL touches, as they are after it."""


def find_altered_table(statement: Classified, ddl: RoutedDdl) -> TableDef | None:
    """The definition, after the DDL, of the table that its text names."""
    if not statement.tables:
        return None
    return find_table(ddl.after, statement, ddl) or (ddl.after.tables[0] if len(ddl.after.tables) == 1 else None)


def find_table(side: DdlSide, statement: Classified, ddl: RoutedDdl) -> TableDef | None:
    """The definition on one `side` of the DDL of the table that its text names first."""
    db, name = statement.tables[0]
    wanted = fold_pair((db or ddl.db, name))
    return next((table for table in side.tables if fold_pair((table.db, table.name)) == wanted), None)
