"""Checks whether rows with given keys are on the target.

After a segment's writes, Binlake checks that each key that must exist does. A REPLACE may have removed an earlier row:
a collation or a unique key that only the target has silently merges two rows (invariant 6, hazards R-13). Rows are
looked up by key, so the cost does not depend on the size of the table.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import IO, NamedTuple

from binlake.base.redaction import redact_sql
from binlake.errors import Drift, TargetRefused
from binlake.rows.schema import TableDef
from binlake.statements.batch import StatementBatch
from binlake.statements.literal import format_match, quote_name, quote_qualified_name
from binlake.target.session.failures import MISSING, get_error_code
from binlake.target.session.session import TargetSession

_SPOOLED_BYTES = 16 << 20
_CHECKS_A_QUERY = 50
_QUERY_BYTES = 256 << 10

_KEYS_A_QUERY = 200
_UNKNOWN_COLUMN = 1054

Key = Sequence[str | None]
"""The canonical texts of an identity's columns."""


class PresenceCheck(NamedTuple):
    """`sql` counts keys of one batch of the table `name` and must give `rows`; `where` says which batch."""

    sql: str
    rows: int
    where: dict[str, object]
    name: tuple[str, str]


class PresenceChecks:
    """The checks of a segment, collected from any thread while its batches run; spooled to disk when there are many."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: IO[str] = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - closed by __exit__
            _SPOOLED_BYTES, "w+", encoding="utf-8"
        )

    def __enter__(self) -> PresenceChecks:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def expect(self, batch: StatementBatch) -> None:
        """Add the check of `batch`, whether its rows are written now or were written by an earlier run."""
        if batch.verify_sql:
            text = json.dumps([batch.verify_sql, batch.verify_rows, batch.where, (batch.db, batch.table)])
            with self._lock:
                self._file.write(text + "\n")

    def group_checks(self, max_packet: int) -> Iterator[list[PresenceCheck]]:
        """Group the checks for `require_present`: less than `max_packet` bytes of text, unless one check has more."""
        self._file.seek(0)
        group: list[PresenceCheck] = []
        size, most = 0, min(_QUERY_BYTES, max_packet // 2)
        for line in self._file:
            added = len(line.encode())
            if group and (len(group) >= _CHECKS_A_QUERY or size + added > most):
                yield group
                group, size = [], 0
            group.append(PresenceCheck(*json.loads(line)))
            size += added
        if group:
            yield group


def require_present(session: TargetSession, group: list[PresenceCheck]) -> None:
    """Run the checks in one round trip; each is a subquery that counts keys. Raises Drift."""
    (counts,) = session.fetch_rows("SELECT " + ", ".join(f"({check.sql})" for check in group))
    for check, present in zip(group, counts, strict=True):
        if int(present) != check.rows:
            error = Drift(
                f"{present} of {check.rows} written rows are on the target: two rows of the source have become one",
                where={**check.where, "check": redact_sql(check.sql)[:200]},
                hint="compare unique keys and collations of the table with the source's; `binlake table aside` lets "
                "the other tables continue without it",
            )
            error.tables = ((check.name[0], check.name[1]),)
            raise error


def find_present_keys(session: TargetSession, table: TableDef, keys: Sequence[Key]) -> list[int]:
    """The indexes of the `keys` that have a row in the target's `table`; empty if it or a key column does not exist.

    Raises TargetRefused, TargetUnavailable.
    """
    starts = range(0, len(keys), _KEYS_A_QUERY)
    return [number for start in starts for number in _find_from(session, table, keys, start)]


def _find_from(session: TargetSession, table: TableDef, keys: Sequence[Key], start: int) -> Iterator[int]:
    name = quote_qualified_name(table.db, table.name)
    queries = (
        f"SELECT {number} FROM {name} WHERE {_format_condition(table, keys[number])}"
        for number in range(start, min(start + _KEYS_A_QUERY, len(keys)))
    )
    try:
        yield from map(int, session.fetch_column(" UNION ALL ".join(queries)))
    except TargetRefused as error:
        # A DDL of the window creates the table, or the column that identifies its rows.
        if get_error_code(error) not in (*MISSING, _UNKNOWN_COLUMN):
            raise


def _format_condition(table: TableDef, key: Key) -> str:
    columns = [table.find_column(name) for name in table.find_identity().columns]
    parts = [
        f"{quote_name(column.name)} = {format_match(text, column)}"
        for column, text in zip(columns, key, strict=True)
        if column is not None
    ]
    return " AND ".join(parts)
