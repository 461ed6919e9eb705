"""After all writes of a segment every key that must exist does: a REPLACE may have removed an earlier row.

Sources: invariant 6, hazards R-13. A collation or a unique key that only the target has makes two rows one, silently.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Iterator
from typing import IO, NamedTuple

from binlake.base.redaction import sql_in_log
from binlake.errors import Drift
from binlake.statements.batch import StatementBatch
from binlake.target.session.session import Session

_SPOOLED_BYTES = 16 << 20
_CHECKS_A_QUERY = 50
_QUERY_BYTES = 256 << 10


class Check(NamedTuple):
    """`sql` counts keys of one batch of the table `name` and must give `rows`; `place` says which batch."""

    sql: str
    rows: int
    place: dict[str, object]
    name: tuple[str, str]


class Presence:
    """The checks of a segment, gathered while its batches run, from any thread; on disk when there are many."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: IO[str] = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - closed by __exit__
            _SPOOLED_BYTES, "w+", encoding="utf-8"
        )

    def __enter__(self) -> Presence:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def expect(self, batch: StatementBatch) -> None:
        """Remember what must be there once the segment's rows are written, done now or before."""
        if batch.verify_sql:
            text = json.dumps([batch.verify_sql, batch.verify_rows, place_of(batch), (batch.db, batch.table)])
            with self._lock:
                self._file.write(text + "\n")

    def groups(self, max_packet: int) -> Iterator[list[Check]]:
        """The checks in groups for `verify`, well below `max_packet` bytes of text, unless one alone has more."""
        self._file.seek(0)
        group: list[Check] = []
        size, most = 0, min(_QUERY_BYTES, max_packet // 2)
        for line in self._file:
            added = len(line.encode())
            if group and (len(group) >= _CHECKS_A_QUERY or size + added > most):
                yield group
                group, size = [], 0
            group.append(Check(*json.loads(line)))
            size += added
        if group:
            yield group


def verify(session: Session, group: list[Check]) -> None:
    """One round trip for many checks: each is a query of one number. Raises Drift."""
    found = session.rows("SELECT " + ", ".join(f"({check.sql})" for check in group))[0]
    for check, there in zip(group, found, strict=True):
        if int(there) != check.rows:
            error = Drift(
                f"{there} of {check.rows} written rows are on the target: two rows of the source have become one",
                where={**check.place, "check": sql_in_log(check.sql)[:200]},
                hint="compare unique keys and collations of the table with the source's; `binlake table aside` lets "
                "the other tables continue without it",
            )
            error.tables = ((check.name[0], check.name[1]),)
            raise error


def place_of(batch: StatementBatch) -> dict[str, object]:
    """Which batch, for an error's `where`."""
    return {
        "table": f"{batch.db}.{batch.table}",
        "segment": batch.segment,
        "phase": batch.phase,
        "batch": batch.batch,
    }
