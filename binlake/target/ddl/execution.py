"""Runs the statements of one DDL, whose effect the target may already have.

Exactly the errors of the drainer's list mean this (tidb-binlog 5.10). The drainer then simply continues. Our caller
first checks that the target matches the DDL's result, because a table of another shape gives the same errors.

A step in which Binlake converts the values of a column (`statements.ddlsteps`) runs in small transactions. A row is
done when its shadow column is not NULL, so a run that dies continues where it stopped. Every value that is read must be
written: an UPDATE that finds fewer rows is an error, never a silent difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from binlake.dialect.conversions import RESTORES, SHADOW
from binlake.errors import TargetRefused
from binlake.rows.codec.casts import CastMoment, UnknownCast, cast_text
from binlake.rows.schema import ColumnInfo
from binlake.statements.conditions import format_image_condition
from binlake.statements.ddlsteps import CastStep, RefusedStatement, RequireNoRows
from binlake.statements.literal import (
    build_text_reader,
    choose_literal_kind,
    format_match,
    format_value_literal,
    quote_name,
    quote_qualified_name,
    render_column_sql,
)
from binlake.target.session.failures import get_error_code
from binlake.target.session.session import TargetSession

_READ_ROWS = 2000
_WRITE_ROWS, _WRITE_LETTERS = 100, 1 << 19

Found = tuple[str, str]
"""(the condition that finds a row or the rows of a value, the literal of its new value)."""
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


def run_cast_step(session: TargetSession, step: CastStep) -> None:
    """Fill the shadow column. Raises TargetRefused, also for a value whose conversion is not known."""
    while rows := _read_rows(session, step):
        for batch in _split(rows):
            matched = session.execute(_render_update(step, batch))
            if matched < len(batch):
                raise TargetRefused(
                    "rows that were read are not found by their key, so their converted values cannot be written",
                    where={"column": step.source.name, "read": len(batch), "found": matched, "target": session.place},
                    hint="compare the table with the source: `binlake verify`",
                )


def _read_rows(session: TargetSession, step: CastStep) -> list[Found]:
    """Some of the values that are not converted yet; of a table without a key each value once."""
    columns = (*step.key, step.source)
    shown = ",".join(render_column_sql(column) for column in columns)
    where = f"{quote_name(step.shadow)} IS NULL AND {quote_name(step.source.name)} IS NOT NULL"
    once = "" if step.key else "DISTINCT "
    found = session.fetch_rows(f"SELECT {once}{shown} FROM {step.table} WHERE {where} LIMIT {_READ_ROWS}")
    readers = [build_text_reader(column) for column in columns]
    rows = [[read(value) for read, value in zip(readers, row, strict=True)] for row in found]
    kind = choose_literal_kind(step.target)
    return [(_find_by(step, row), format_value_literal(_convert(session, step, row[-1]), kind)) for row in rows]


def _find_by(step: CastStep, row: Sequence[str | None]) -> str:
    if not step.key:
        return f"({format_image_condition(row[-1], step.source, step.dialect)})"
    pairs = zip(step.key, row[:-1], strict=True)
    return f"({' AND '.join(_match(column, text) for column, text in pairs)})"


def _match(column: ColumnInfo, text: str | None) -> str:
    return f"{quote_name(column.name)} = {format_match(text, column)}"


def _convert(session: TargetSession, step: CastStep, text: str | None) -> str | None:
    now = step.session
    try:
        return cast_text(step.source, step.target, text, CastMoment(now.tz, now.date, now.guessed))
    except UnknownCast as error:
        raise TargetRefused(
            f"a stored value cannot be converted as the source converted it: {error}",
            where={"column": step.source.name, "target": session.place},
        ) from error


def _split(rows: Sequence[Found]) -> Iterator[list[Found]]:
    batch: list[Found] = []
    letters = 0
    for row in rows:
        if batch and (len(batch) >= _WRITE_ROWS or letters > _WRITE_LETTERS):
            yield batch
            batch, letters = [], 0
        batch.append(row)
        letters += 2 * len(row[0]) + len(row[1])
    if batch:
        yield batch


def _render_update(step: CastStep, batch: Sequence[Found]) -> str:
    cases = " ".join(f"WHEN {condition} THEN {literal}" for condition, literal in batch)
    kept = "".join(f", {name} = {name}" for name in map(quote_name, step.kept))
    where = " OR ".join(condition for condition, _ in batch)
    return f"UPDATE {step.table} SET {quote_name(step.shadow)} = CASE {cases} END{kept} WHERE {where}"
