"""What an operator does manually if a DDL cannot be expressed at the target.

A column whose default the target cannot hold is created through `ddl-replacement`. RECOVER and FLASHBACK are done from
a saved copy. A table without a key whose partitions were rearranged is copied again at the next recorded state, because
TiDB itself may then have its rows twice without logging it.

No binlog contains the rows that RECOVER and FLASHBACK bring back. The DDL's commit_ts goes into
`filter.ignore-txn-commit-ts`; windows stop before the DROP or TRUNCATE, where the table is copied, and before the DDL
itself, where the table is restored from the copy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from binlake.ddl.definitions import LandedDdl
from binlake.dialect import MappedDdl, map_ddl
from binlake.dialect.collations import find_target_collation
from binlake.dialect.defaults import is_lost_default
from binlake.errors import TargetRefused
from binlake.rows.schema import TableDef
from binlake.rows.schema.state import DdlSide
from binlake.statements.generation import list_written_columns
from binlake.statements.literal import quote, quote_name, quote_qualified_name
from binlake.testkit.captures.capture import StateAt

KEPT_IN = "tidb_binlog"
"""The database of the copies: it exists only at the target, at no source."""


@dataclass(frozen=True)
class Handwork:
    """Statements to run once everything at or below `after_ts` is applied; `about` names the DDL they are for."""

    after_ts: int
    sql: tuple[str, ...]
    about: str


@dataclass(frozen=True)
class Handworks:
    """All handwork of a capture. `ignored`: commit_ts of DDL that are done manually.

    `replaced`: statements of ddl-replacement by commit_ts, `accepted`: the entries of `target.tables` they need.
    """

    ignored: tuple[int, ...]
    works: tuple[Handwork, ...]
    replaced: Mapping[int, str] = field(default_factory=dict)
    accepted: tuple[dict[str, Any], ...] = ()

    @property
    def stops(self) -> tuple[int, ...]:
        """The commit_ts at which windows must end."""
        return tuple(sorted({work.after_ts for work in self.works}))

    def run_due(self, execute: Callable[[str], object], ts: int) -> list[str]:
        """Run the handwork that is due once `ts` is applied; returns the DDL done, as text."""
        due = [work for work in self.works if work.after_ts == ts]
        for work in due:
            for statement in work.sql:
                execute(statement)
        return [work.about for work in due if work.about]


def plan_handwork(
    planned: Iterable[LandedDdl], states: Iterable[StateAt] = (), doubted: Collection[str] = ()
) -> Handworks:
    """The handwork that the DDL of a capture need, in commit order, on MariaDB.

    `states`: the source's recorded states, `doubted`: the tables for which the binlogs are incomplete.
    """
    recorded = list(states) if doubted else []
    dropped: dict[int, tuple[int, TableDef]] = {}
    ignored: list[int] = []
    works: list[Handwork] = []
    replaced: dict[int, str] = {}
    accepted: list[dict[str, Any]] = []
    for ddl in planned:
        works += _copy_again(ddl, recorded, doubted)
        lost = _find_lost_defaults(ddl)
        if lost:
            replaced[ddl.commit_ts] = _rewrite_in_utf8mb4(ddl)
            accepted += lost
            works.append(Handwork(ddl.commit_ts - 1, (), f"{ddl.query} by ddl-replacement: {replaced[ddl.commit_ts]}"))
        if ddl.decision == "apply" and _is_brought_back(ddl):
            ignored.append(ddl.commit_ts)
            works += _copy_and_restore(ddl, dropped)
        there = {table.id for table in ddl.after.tables}
        gone = [table for table in ddl.before.tables if table.id not in there and table.kind == "table"]
        dropped |= {table.id: (ddl.commit_ts - 1, table) for table in gone}
    return Handworks(tuple(ignored), tuple(works), replaced, tuple(accepted))


def _find_lost_defaults(ddl: LandedDdl) -> list[dict[str, Any]]:
    """The differences to accept at the target if `ddl` is refused because a column cannot hold its default."""
    entries = []
    for table in ddl.after.tables:
        texts = [
            f"column {c.name} has collation utf8mb4_bin, not {find_target_collation(c.collate, 'mariadb')}"
            for c in table.columns
            if is_lost_default(c)
        ]
        entries += [{"db-name": table.db, "tbl-name": table.name, "accept": texts}] if texts else []
    return entries if ddl.decision == "apply" and entries and _is_refused(ddl, ddl.sql, ddl.after) else []


def _rewrite_in_utf8mb4(ddl: LandedDdl) -> str:
    """`ddl` for MariaDB, with utf8mb4 as the character set of the columns whose default is lost."""
    lost = {column for table in ddl.after.tables for column in table.columns if is_lost_default(column)}
    text = ddl.sql
    for charset in {column.charset for column in lost}:
        text = re.sub(rf"\b{charset}\b", "utf8mb4", text, flags=re.IGNORECASE)
    tables = tuple(
        replace(
            table,
            all_columns=tuple(
                replace(column, charset="utf8mb4", collate="utf8mb4_bin") if column in lost else column
                for column in table.all_columns
            ),
        )
        for table in ddl.after.tables
    )
    return _map_text(ddl, text, replace(ddl.after, tables=tables)).sql[-1]


def _map_text(ddl: LandedDdl, text: str, after: DdlSide) -> MappedDdl:
    return map_ddl(replace(ddl, sql=text, after=after), "mariadb")


def _is_refused(ddl: LandedDdl, text: str, after: DdlSide) -> bool:
    try:
        _map_text(ddl, text, after)
    except TargetRefused:
        return True
    return False


def _is_brought_back(ddl: LandedDdl) -> bool:
    if not ddl.query.lstrip().upper().startswith(("RECOVER", "FLASHBACK")):
        return False
    return _is_refused(ddl, ddl.sql, ddl.after)


def _copy_and_restore(ddl: LandedDdl, dropped: dict[int, tuple[int, TableDef]]) -> Iterable[Handwork]:
    made = [f"CREATE DATABASE IF NOT EXISTS {quote_name(db.name)}" for db in ddl.after.databases]
    back: list[str] = []
    for table in ddl.after.tables:
        kept_after, former = dropped[table.id]
        copy, before, after = (KEPT_IN, f"kept_{table.id}"), (former.db, former.name), (table.db, table.name)
        own = f"CREATE DATABASE IF NOT EXISTS {quote_name(KEPT_IN)}"
        yield Handwork(kept_after, (own, *_render_copy(before, copy, former)), "")
        back += _render_copy(copy, after, table)
    yield Handwork(ddl.commit_ts - 1, (*made, *back), ddl.query)


def _render_copy(source: tuple[str, str], to: tuple[str, str], table: TableDef) -> tuple[str, ...]:
    names = ", ".join(quote_name(column.name) for column in list_written_columns(table, "mariadb"))
    return (
        f"CREATE OR REPLACE TABLE {quote_qualified_name(*to)} LIKE {quote_qualified_name(*source)}",
        f"INSERT INTO {quote_qualified_name(*to)} ({names}) SELECT {names} FROM {quote_qualified_name(*source)}",
    )


def _copy_again(ddl: LandedDdl, states: Iterable[StateAt], doubted: Collection[str]) -> Iterable[Handwork]:
    """Copy the tables that `ddl` leaves in doubt again, from the first later state that has their rows."""
    marked = [f"{table.db}.{table.name}" for table in ddl.after.tables if table.reorganized is not None]
    for name in doubted if ddl.decision == "apply" else ():
        if name not in marked:
            continue
        recordings = ((state.commit_ts, one) for state in states for one in state.contents if one["table"] == name)
        ts, recorded = next((one for one in recordings if one[0] >= ddl.commit_ts), (0, {"absent": True}))
        if not recorded.get("absent"):
            yield Handwork(ts, tuple(_render_fill(recorded)), f"{name} copied again after {ddl.query}")


def _render_fill(recorded: Mapping[str, Any]) -> Iterable[str]:
    name, virtual = quote_qualified_name(recorded["schema"], recorded["name"]), set(recorded.get("virtual") or ())
    taken = [number for number, column in enumerate(recorded["columns"]) if column not in virtual]
    columns = ", ".join(quote_name(recorded["columns"][number]) for number in taken)
    rows = [f"({', '.join(_format_literal(row[number]) for number in taken)})" for row in recorded["rows"]]
    yield "SET time_zone = '+00:00'"
    yield f"DELETE FROM {name}"
    if rows:
        yield f"INSERT INTO {name} ({columns}) VALUES {', '.join(rows)}"


def _format_literal(value: str | Mapping[str, str] | None) -> str:
    if value is None:
        return "NULL"
    return quote(value) if isinstance(value, str) else f"X'{value['hex']}'"
