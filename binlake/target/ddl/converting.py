"""Whether a DDL that converts values was left half way: its last statement removes the columns that say so."""

from __future__ import annotations

from collections.abc import Sequence

from binlake.dialect.conversions import SHADOW
from binlake.target.session.session import Session


def is_half_converted(session: Session, touched: Sequence[tuple[str, str]], statements: Sequence[str]) -> bool:
    """True when a table of `touched` has a column that only statements of this DDL make and its last one removes.

    They may run again from the first: until the last one the table keeps its old column.
    """
    if not any(SHADOW in statement for statement in statements):
        return False
    found = [name for db, table in touched if table for name in _shadows(session, db, table)]
    return any(name in statement for name in found for statement in statements)


def _shadows(session: Session, db: str, table: str) -> list[str]:
    query = (
        "SELECT column_name FROM information_schema.columns"
        " WHERE table_schema = %s AND table_name = %s AND LEFT(column_name, %s) = %s"
    )
    return [str(name) for (name,) in session.rows(query, (db, table, len(SHADOW), SHADOW))]
