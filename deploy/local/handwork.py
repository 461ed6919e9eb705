"""What an operator does by hand where a DDL cannot be said at the target: RECOVER and FLASHBACK, from a copy kept.

No binlog carries the rows that such a DDL brings back. Its commit_ts goes into `filter.ignore-txn-commit-ts`; windows
stop before the DROP or TRUNCATE, where the table is copied, and before the DDL itself, where the copy becomes the
table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from binlake.ddl import SourceDdl, map_ddl
from binlake.errors import TargetRefused
from binlake.schema import TableDef
from binlake.statement.literal import qualified, quote_name
from binlake.statement.written import written_columns
from binlake.window.ddls import PlannedDdl

KEPT_IN = "tidb_binlog"
"""The database of the copies: it is the target's own, and no source has it."""


@dataclass(frozen=True)
class Handwork:
    """Once everything at or below `after_ts` is applied: run `sql`. `about` says for which DDL."""

    after_ts: int
    sql: tuple[str, ...]
    about: str


@dataclass(frozen=True)
class Handworks:
    """All handwork of a capture. `ignored`: commit_ts of the DDL that is done by hand."""

    ignored: tuple[int, ...]
    works: tuple[Handwork, ...]

    @property
    def stops(self) -> tuple[int, ...]:
        """Where windows must end."""
        return tuple(sorted({work.after_ts for work in self.works}))

    def due(self, execute: Callable[[str], object], ts: int) -> list[str]:
        """Do what is due once `ts` is applied; the DDL done, for people."""
        due = [work for work in self.works if work.after_ts == ts]
        for work in due:
            for statement in work.sql:
                execute(statement)
        return [work.about for work in due if work.about]


def handworks(planned: Iterable[PlannedDdl]) -> Handworks:
    """The handwork that the DDL of a capture need, in commit order, on MariaDB."""
    dropped: dict[int, tuple[int, TableDef]] = {}
    ignored: list[int] = []
    works: list[Handwork] = []
    for ddl in planned:
        if ddl.decision == "apply" and _is_brought_back(ddl):
            ignored.append(ddl.commit_ts)
            works += _works(ddl, dropped)
        there = {table.id for table in ddl.after.tables}
        gone = [table for table in ddl.before.tables if table.id not in there and table.kind == "table"]
        dropped |= {table.id: (ddl.commit_ts - 1, table) for table in gone}
    return Handworks(tuple(ignored), tuple(works))


def _is_brought_back(ddl: PlannedDdl) -> bool:
    if not ddl.query.lstrip().upper().startswith(("RECOVER", "FLASHBACK")):
        return False
    try:
        map_ddl(SourceDdl(ddl.commit_ts, ddl.db, ddl.table, ddl.sql, ddl.before, ddl.after), "mariadb")
    except TargetRefused:
        return True
    return False


def _works(ddl: PlannedDdl, dropped: dict[int, tuple[int, TableDef]]) -> Iterable[Handwork]:
    made = [f"CREATE DATABASE IF NOT EXISTS {quote_name(db.name)}" for db in ddl.after.databases]
    back: list[str] = []
    for table in ddl.after.tables:
        kept_after, former = dropped[table.id]
        kept, was, now = (KEPT_IN, f"kept_{table.id}"), (former.db, former.name), (table.db, table.name)
        own = f"CREATE DATABASE IF NOT EXISTS {quote_name(KEPT_IN)}"
        yield Handwork(kept_after, (own, *_copied(was, kept, former)), "")
        back += _copied(kept, now, table)
    yield Handwork(ddl.commit_ts - 1, (*made, *back), ddl.query)


def _copied(source: tuple[str, str], to: tuple[str, str], table: TableDef) -> tuple[str, ...]:
    names = ", ".join(quote_name(column.name) for column in written_columns(table, "mariadb"))
    return (
        f"CREATE OR REPLACE TABLE {qualified(*to)} LIKE {qualified(*source)}",
        f"INSERT INTO {qualified(*to)} ({names}) SELECT {names} FROM {qualified(*source)}",
    )
