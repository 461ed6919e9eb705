"""Binlake's tables on the target, and the storage engine that they and all replicated tables need (invariant 9).

Rows, ledger and checkpoint form one transaction only if the engine has transactions. In MyISAM, Aria and MEMORY the
rows of a transaction stay when it rolls back, so a retry duplicates rows without a key. Binlake's tables are created
when a window first needs them and never read before they exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from binlake.common import sql
from binlake.errors import TargetRefused
from binlake.statements.literal import quote_name, quote_qualified_name
from binlake.target.session.session import TargetSession

_ENGINE = "InnoDB"


class _TableEngine(NamedTuple):
    table: str
    engine: str


def create_tables(session: TargetSession, schema: str) -> None:
    """Create the checkpoint schema and its tables if they are missing. Only reads if all exist.

    Raises TargetRefused, also if their engine has no transactions.
    """
    wanted = (*sql.TABLES, *sql.LATER)
    if not _list_tables(session, schema).issuperset(wanted):
        session.execute(f"CREATE DATABASE IF NOT EXISTS {quote_name(schema)}")
        for table in wanted:
            session.execute(sql.read_statement(table).replace("{schema}", quote_name(schema)))
    require_transactions(session, schema, wanted)


def has_tables(session: TargetSession, schema: str) -> bool:
    """True when any version of Binlake has created its tables there."""
    return _list_tables(session, schema).issuperset(sql.TABLES)


def require_transactions(session: TargetSession, schema: str, tables: Sequence[str]) -> None:
    """Raises TargetRefused when one of `tables` has an engine without transactions."""
    unsafe = _find_tables_without_transactions(session, schema, tables)
    if unsafe:
        changes = "; ".join(
            f"ALTER TABLE {quote_qualified_name(schema, table.table)} ENGINE={_ENGINE}" for table in unsafe
        )
        raise TargetRefused(
            f"Binlake's own tables use {unsafe[0].engine}, which has no transactions: a retry would not be exact",
            where={"target": session.place, "schema": schema, "tables": ", ".join(table.table for table in unsafe)},
            hint=f"while nothing is applied: {changes}",
        )


def _list_tables(session: TargetSession, schema: str) -> set[str]:
    return set(
        session.fetch_column("SELECT table_name FROM information_schema.tables WHERE table_schema = %s", (schema,))
    )


def _find_tables_without_transactions(session: TargetSession, schema: str, tables: Sequence[str]) -> list[_TableEngine]:
    return session.fetch_records(
        _TableEngine,
        "SELECT t.TABLE_NAME, t.ENGINE FROM information_schema.TABLES t"
        " JOIN information_schema.ENGINES e ON e.ENGINE = t.ENGINE"
        f" WHERE t.TABLE_SCHEMA = %s AND t.TABLE_NAME IN ({', '.join(['%s'] * len(tables))})"
        " AND e.TRANSACTIONS = 'NO' ORDER BY 1",
        (schema, *tables),
    )
