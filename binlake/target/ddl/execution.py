"""Runs the statements of one DDL, whose effect the target may already have.

Exactly the errors of the drainer's list mean this (tidb-binlog 5.10). The drainer then simply continues. Our caller
first checks that the target matches the DDL's result, because a table of another shape gives the same errors.
"""

from __future__ import annotations

from collections.abc import Sequence

from binlake.dialect.conversions import RESTORES, SHADOW
from binlake.errors import TargetRefused
from binlake.statements.ddlsteps import CastStep, RefusedStatement, RequireNoRows
from binlake.statements.literal import quote_name, quote_qualified_name
from binlake.target.ddl.castvalues import run_cast_step
from binlake.target.session.failures import get_error_code
from binlake.target.session.session import TargetSession

IGNORABLE = {
    1007: "database exists",
    1008: "no such database to drop",
    1049: "unknown database",
    1050: "table exists",
    1051: "unknown table to drop",
    1054: "unknown column",
    1060: "column exists",
    1061: "key name exists",
    1091: "no such column or key to drop",
    1146: "no such table",
    1176: "no such key",
    1831: "an equal index exists",
}


def execute_ddl(session: TargetSession, statements: Sequence[str]) -> list[TargetRefused]:
    """Run the statements of one DDL; return the errors in IGNORABLE. Raises TargetRefused for any other error.

    Statements that reset session settings made for the DDL are run even after an error.
    """
    try:
        return _execute_all(session, statements)
    except TargetRefused:
        for statement in statements:
            if statement.startswith(RESTORES):
                session.execute(statement)
        raise


def _execute_all(session: TargetSession, statements: Sequence[str]) -> list[TargetRefused]:
    ignored: list[TargetRefused] = []
    for statement in statements:
        try:
            execute_step(session, statement)
        except TargetRefused as error:
            if get_error_code(error) not in IGNORABLE:
                raise
            ignored.append(error)
            if statement.startswith("USE "):
                # Otherwise the other statements would run in another database.
                break
    return ignored


def execute_step(session: TargetSession, statement: str) -> None:
    """Run a statement of a DDL, or a step that Binlake itself makes. Raises TargetRefused."""
    step, required = CastStep.find_in(statement), RequireNoRows.find_in(statement)
    refusal = RefusedStatement.find_in(statement)
    if refusal is not None:
        raise TargetRefused(refusal.why, where={"target": session.place})
    if step is not None:
        run_cast_step(session, step)
    elif required is not None:
        _require_no_rows(session, required)
    else:
        session.execute(statement)


def _require_no_rows(session: TargetSession, required: RequireNoRows) -> None:
    if session.fetch_value(f"SELECT 1 FROM {required.table} WHERE {required.where} LIMIT 1") is not None:
        raise TargetRefused(
            f"the values of old rows are not known: {required.why}",
            where={"table": required.table, "target": session.place},
        )


def is_half_converted(session: TargetSession, touched: Sequence[tuple[str, str]], statements: Sequence[str]) -> bool:
    """Whether a DDL that converts values was interrupted halfway.

    Then a table of `touched` has a column that only these statements create and the last one removes. They may run
    again from the first statement, because the table keeps its old column until the last one.
    """
    return bool(_find_own_shadows(session, touched, statements))


def drop_shadow_columns(session: TargetSession, touched: Sequence[tuple[str, str]], statements: Sequence[str]) -> None:
    """Remove what a refused conversion left: the table is as it was before the DDL. Raises TargetRefused."""
    for db, table, name in _find_own_shadows(session, touched, statements):
        session.execute(f"ALTER TABLE {quote_qualified_name(db, table)} DROP COLUMN {quote_name(name)}")


def _find_own_shadows(
    session: TargetSession, touched: Sequence[tuple[str, str]], statements: Sequence[str]
) -> list[tuple[str, str, str]]:
    """(db, table, column) of the shadow columns that exist and that `statements` make."""
    if not any(SHADOW in statement for statement in statements):
        return []
    columns = [(db, table, name) for db, table in touched if table for name in _list_shadow_columns(session, db, table)]
    return [place for place in columns if any(place[2] in statement for statement in statements)]


def _list_shadow_columns(session: TargetSession, db: str, table: str) -> list[str]:
    query = (
        "SELECT column_name FROM information_schema.columns"
        " WHERE table_schema = %s AND table_name = %s AND LEFT(column_name, %s) = %s"
    )
    return list(map(str, session.fetch_column(query, (db, table, len(SHADOW), SHADOW))))
