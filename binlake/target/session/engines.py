"""Rows, ledger and checkpoint are one transaction only where the storage engine has transactions (invariant 9).

In MyISAM, Aria and MEMORY what a transaction wrote stays when it rolls back: a retry doubles rows without a key.
"""

from __future__ import annotations

from collections.abc import Sequence

from binlake.errors import TargetRefused
from binlake.statements.literal import qualified
from binlake.target.session.session import Session

_ENGINE = "InnoDB"


def require_transactions(session: Session, schema: str, tables: Sequence[str]) -> None:
    """Raises TargetRefused when one of `tables` is of an engine without transactions."""
    rows = session.rows(
        "SELECT t.TABLE_NAME, t.ENGINE FROM information_schema.TABLES t"
        " JOIN information_schema.ENGINES e ON e.ENGINE = t.ENGINE"
        f" WHERE t.TABLE_SCHEMA = %s AND t.TABLE_NAME IN ({', '.join(['%s'] * len(tables))})"
        " AND e.TRANSACTIONS = 'NO' ORDER BY 1",
        (schema, *tables),
    )
    if rows:
        changes = "; ".join(f"ALTER TABLE {qualified(schema, str(name))} ENGINE={_ENGINE}" for name, _ in rows)
        raise TargetRefused(
            f"Binlake's own tables use {rows[0][1]}, which has no transactions: no retry would be exact",
            where={"target": session.place, "schema": schema, "tables": ", ".join(str(name) for name, _ in rows)},
            hint=f"while nothing is applied: {changes}",
        )


def engine_without_transactions(session: Session, db: str, table: str) -> str:
    """The engine of a table that has no transactions; empty for others, for views, and where there is no table."""
    rows = session.rows(
        "SELECT t.ENGINE FROM information_schema.TABLES t JOIN information_schema.ENGINES e ON e.ENGINE = t.ENGINE"
        " WHERE t.TABLE_SCHEMA = %s AND t.TABLE_NAME = %s AND e.TRANSACTIONS = 'NO'",
        (db, table),
    )
    return str(rows[0][0]) if rows else ""


def make_tables_with_transactions(session: Session) -> None:
    """A CREATE TABLE that names no engine makes one with transactions, whatever the server's default is."""
    rows = session.rows("SELECT TRANSACTIONS FROM information_schema.ENGINES WHERE ENGINE = @@default_storage_engine")
    if rows and rows[0][0] == "NO":
        session.execute(f"SET SESSION default_storage_engine = {_ENGINE}")
