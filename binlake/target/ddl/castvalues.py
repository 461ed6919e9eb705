"""Runs a step in which Binlake converts the values of a column (`statements.castvalues`), in small transactions.

A row is done when its shadow column is not NULL, so a run that dies continues where it stopped. Every value that is
read must be written: an UPDATE that finds fewer rows is an error, never a silent difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from binlake.errors import TargetRefused
from binlake.rows.codec.casts import CastMoment, UnknownCast, cast_text
from binlake.rows.schema import ColumnInfo
from binlake.statements.conditions import format_image_condition
from binlake.statements.ddlsteps import CastStep
from binlake.statements.literal import (
    build_text_reader,
    choose_literal_kind,
    format_match,
    format_value_literal,
    quote_name,
    render_column_sql,
)
from binlake.target.session.session import TargetSession

_READ_ROWS = 2000
_WRITE_ROWS, _WRITE_LETTERS = 100, 1 << 19

Found = tuple[str, str]
"""(the condition that finds a row or the rows of a value, the literal of its new value)."""


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
