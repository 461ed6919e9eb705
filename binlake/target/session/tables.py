"""Binlake's own tables on the target: created when a window first needs them, never read before they exist."""

from __future__ import annotations

import sql
from binlake.statements.literal import quote_name
from binlake.target.session.engines import require_transactions
from binlake.target.session.session import Session


def create_tables(session: Session, schema: str) -> None:
    """Make the checkpoint schema and its tables where they are missing; only reads when they are all there.

    Raises TargetRefused, also where they are of an engine without transactions.
    """
    wanted = (*sql.TABLES, *sql.LATER)
    if not _those_there(session, schema).issuperset(wanted):
        session.execute(f"CREATE DATABASE IF NOT EXISTS {quote_name(schema)}")
        for table in wanted:
            session.execute(sql.statement(table).replace("{schema}", quote_name(schema)))
    require_transactions(session, schema, wanted)


def tables_exist(session: Session, schema: str) -> bool:
    """True when Binlake has been at work there, in whatever version."""
    return _those_there(session, schema).issuperset(sql.TABLES)


def _those_there(session: Session, schema: str) -> set[str]:
    rows = session.rows("SELECT table_name FROM information_schema.tables WHERE table_schema = %s", (schema,))
    return {str(name) for (name,) in rows}
