"""A batch of SQL as in the lake's table `statement`; finalize executes exactly this text (hazards R-62)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal

from binlake.errors import Permanent

UNCHECKED = -1
"""In `expect`: the number of affected rows is not checked (REPLACE counts removed rows too)."""


REPLACED: Final = "replaced"
"""The kind of a DDL with which an operator replaced the source's."""
INJECTED: Final = "injected"
"""The kind of a DDL that an operator inserted between changes of the source."""


class Phase(IntEnum):
    """The phase of a batch in its segment (invariant 6): the DDL, then PHASES; in mode ordered, the changes.

    KEEP copies the values of target-only columns of rows that are rewritten; RESTORE puts them back (hazards R-12).
    """

    DDL = 0
    DELETE = 1
    WRITE = 2
    ORDERED = 3
    KEEP = 4
    RESTORE = 5


PHASES = (Phase.KEEP, Phase.DELETE, Phase.WRITE, Phase.RESTORE)
"""The order in which the batches of a segment are applied, with a barrier between the phases."""


@dataclass(frozen=True)
class StatementBatch:
    """One batch: the statements `sql` run in order; each must report its `expect` of affected rows (-1 = unchecked).

    After phase 2 of the segment, `verify_sql` (empty = none) must return `verify_rows`. `rows` counts row changes.

    Mode ordered only: rounds run one after the other, and so do the batches of one `queue` of a round, in order of
    `batch`. `db` and `table` are empty if a batch has several tables. Once all rounds before `round` are applied, every
    transaction up to `whole_ts` is applied (0 = none).
    """

    segment: int
    phase: Phase
    batch: int
    db: str
    table: str
    kind: Literal["ddl", "replaced", "injected", "delete", "replace", "upsert", "insert", "ordered", "keep", "restore"]
    sql: tuple[str, ...]
    expect: tuple[int, ...]
    verify_sql: str
    verify_rows: int
    rows: int
    digest: str
    round: int = 0
    queue: int = 0
    whole_ts: int = 0

    @property
    def where(self) -> dict[str, object]:
        """Identifies the batch in an error's `where`."""
        return {
            "table": f"{self.db}.{self.table}",
            "segment": self.segment,
            "phase": self.phase,
            "batch": self.batch,
        }


def compute_statement_digest(sql: Sequence[str | bytes]) -> str:
    """SHA-256 (hex) of statements (text, or its UTF-8) in order, separated by NUL bytes."""
    digest = hashlib.sha256()
    for statement in sql:
        digest.update(statement if isinstance(statement, bytes) else statement.encode())
        digest.update(b"\0")
    return digest.hexdigest()


# The beginnings that `changes.ordered.forms` and `lenient` give to statements on rows.
_NAME = r"`((?:[^`]|``)+)`"
_LENIENT = r"(?:SET STATEMENT sql_mode = '[A-Z_,]*' FOR )?"
_HINT = r"(?: /\*\+ SET_VAR\(sql_mode = '[A-Z_,]*'\) \*/)?"
_BEGINNING = re.compile(rf"{_LENIENT}(?:(?:INSERT|REPLACE){_HINT} INTO|DELETE FROM|UPDATE{_HINT}) {_NAME}\.{_NAME}[ (]")


def parse_statement_table(sql: str) -> tuple[str, str]:
    """(database, table) that `sql` inserts into, replaces in, deletes from or updates. Raises Permanent for others."""
    found = find_statement_table(sql)
    if found is None:
        raise Permanent("a statement does not begin with the table that it writes", where={"statement": sql[:200]})
    return found


def find_statement_table(sql: str) -> tuple[str, str] | None:
    """As `parse_statement_table`; None for other statements."""
    match = _BEGINNING.match(sql)
    if match is None:
        return None
    db, table = (name.replace("``", "`") for name in match.groups())
    return db, table
