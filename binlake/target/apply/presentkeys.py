"""Which of some keys the target has: asked by the key, so that it costs what as many rows cost, whatever the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from binlake.errors import TargetRefused
from binlake.rows.schema import TableDef
from binlake.statements.literal import literal_kind, match_literal, qualified, quote_name
from binlake.target.session.failures import MISSING, code_of
from binlake.target.session.session import Session

_KEYS_A_QUERY = 200
_UNKNOWN_COLUMN = 1054

Key = Sequence[str | None]
"""The canonical texts of an identity's columns."""


def present_keys(session: Session, table: TableDef, keys: Sequence[Key]) -> list[int]:
    """The numbers of those `keys` of the target's `table` that have a row; none where it lacks these columns.

    Raises TargetRefused, TargetUnavailable.
    """
    return [number for start in range(0, len(keys), _KEYS_A_QUERY) for number in _found(session, table, keys, start)]


def _found(session: Session, table: TableDef, keys: Sequence[Key], start: int) -> Iterator[int]:
    name = qualified(table.db, table.name)
    asked = (
        f"SELECT {number} FROM {name} WHERE {_condition(table, keys[number])}"
        for number in range(start, min(start + _KEYS_A_QUERY, len(keys)))
    )
    try:
        yield from (int(number) for (number,) in session.rows(" UNION ALL ".join(asked)))
    except TargetRefused as error:
        # A DDL of the window makes the table, or the column that identifies its rows.
        if code_of(error) not in (*MISSING, _UNKNOWN_COLUMN):
            raise


def _condition(table: TableDef, key: Key) -> str:
    columns = [table.column(name) for name in table.identity().columns]
    parts = [
        f"{quote_name(column.name)} = {match_literal(text, literal_kind(column))}"
        for column, text in zip(columns, key, strict=True)
        if column is not None
    ]
    return " AND ".join(parts)
