"""Checks for rows that a DDL should have left none of: a table that it created or truncated is empty (R-04, R-28).

Definitions do not show this. With the check, an error of such a DDL is ignored only if the target proves the result,
and a `CREATE TABLE IF NOT EXISTS` that found an old table is noticed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from binlake.errors import TargetRefused
from binlake.rows.schema import Action, TableDef
from binlake.rows.schema.state import DdlSide
from binlake.statements.literal import quote_name, quote_qualified_name
from binlake.target.definitions.forms import Name
from binlake.target.session.failures import MISSING, get_error_code
from binlake.target.session.session import TargetSession

Emptied = Mapping[Name, tuple[str, ...]]
"""Tables without rows: (db, table) -> the partitions that have none; () = the whole table."""

_MAKES = frozenset({Action.CREATE_TABLE, Action.CREATE_TABLES, Action.TRUNCATE_TABLE})
_MOVES = frozenset({Action.TRUNCATE_TABLE, Action.TRUNCATE_PARTITION, Action.DROP_PARTITION, Action.EXCHANGE_PARTITION})
_NO_PARTITION = frozenset({1505, 1735, 1747})
"""Errors for a table without partitions or without a partition of that name."""


def moves_rows(action: int) -> bool:
    """True for a DDL that removes or moves rows while definitions may stay the same. Its errors are never ignored."""
    return action in _MOVES


def find_emptied_tables(action: int, before: DdlSide, after: DdlSide) -> dict[Name, tuple[str, ...]]:
    """The tables or partitions that a DDL of kind `action` leaves without rows."""
    had = {table.id: table for table in before.tables}
    tables = [table for table in after.tables if table.kind == "table" and not table.raw.get("temp_table_type")]
    if action in _MAKES:
        return {(table.db, table.name): () for table in tables if table.id not in had}
    if action == Action.TRUNCATE_PARTITION:
        changed = ((table, tuple(_find_new_partitions(had[table.id], table))) for table in tables if table.id in had)
        return {(table.db, table.name): names for table, names in changed if names}
    return {}


def _find_new_partitions(before: TableDef, after: TableDef) -> Iterator[str]:
    """The names of truncated partitions: they have new ids under the same names."""
    for definition in (after.raw.get("partition") or {}).get("definitions") or ():
        if definition["id"] not in before.partition_ids:
            yield definition["name"]["O"]


def find_remaining_rows(session: TargetSession, emptied: Emptied) -> list[str]:
    """Which of `emptied` have rows at the target, for people. A missing table has no rows."""
    return [text for name, partitions in emptied.items() for text in _find_rows(session, name, partitions)]


def _find_rows(session: TargetSession, name: Name, partitions: tuple[str, ...]) -> Iterator[str]:
    only = f" PARTITION ({', '.join(map(quote_name, partitions))})" if partitions else ""
    where = f" in the partitions {', '.join(partitions)}" if partitions else ""
    try:
        if session.fetch_rows(f"SELECT 1 FROM {quote_qualified_name(*name)}{only} LIMIT 1"):
            yield f"{name[0]}.{name[1]} has rows{where}, but should have none"
    except TargetRefused as error:
        if get_error_code(error) in _NO_PARTITION:
            yield f"{name[0]}.{name[1]}: no such partition{where}"
        elif get_error_code(error) not in MISSING:
            raise
