"""The row events that statements leave in a server's log, and the definitions of their tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from support.mariadb import MariaDb
from support.sourcelog import end_of, transactions_until_now
from support.tableinfo import table_info_of
from support.windows import target_of

from binlake.mysqlbinlog.model import RowsEvent
from binlake.rows.schema import DbInfo, TableDef
from binlake.target.session.session import TargetSession


def events_of(server: MariaDb, statements: Sequence[str]) -> list[RowsEvent]:
    """Run `statements` in one session, and return the row events that they logged; nobody else may write meanwhile."""
    before = end_of(server)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00', sql_mode = 'ALLOW_INVALID_DATES'")
        for statement in statements:
            cursor.execute(statement)
    return [event for one in transactions_until_now(server, before) for event in one.changes]


def definition_of(server: MariaDb, db: str, table: str, **changed: Any) -> TableDef:
    """The definition of a table on a server; `changed`: fields of its TableInfo to replace."""
    session = TargetSession(target_of(server))
    try:
        info = table_info_of(session, (db, table), "mysql" if server.name == "mysql" else "mariadb")
    finally:
        session.close()
    assert info is not None
    return TableDef.from_json({**info, "id": 7, **changed}, DbInfo(2, db, "utf8mb4", "utf8mb4_bin", {}))
