"""A batch of SQL as in the lake's table `statement`: its limits, and digests of exactly what runs (R-62)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any, Final, Literal, cast

import numpy as np
import pyarrow.compute as pc

from binlake.common.lakecolumns import Statement
from binlake.errors import ImmutableWindow, Permanent

UNCHECKED = -1
"""In `expect`: the number of affected rows is not checked (REPLACE counts removed rows too)."""
REPLACED: Final = "replaced"
"""The kind of a DDL with which an operator replaced the source's."""
INJECTED: Final = "injected"
"""The kind of a DDL that an operator inserted between changes of the source."""
# The beginnings that `changes.ordered.forms` and `render` give to statements on rows.
_NAME = r"`((?:[^`]|``)+)`"
_LENIENT = r"(?:SET STATEMENT sql_mode = '[A-Z_,]*' FOR )?"
_HINT = r"(?: /\*\+ SET_VAR\(sql_mode = '[A-Z_,]*'\) \*/)?"
_BEGINNING = re.compile(rf"{_LENIENT}(?:(?:INSERT|REPLACE){_HINT} INTO|DELETE FROM|UPDATE{_HINT}) {_NAME}\.{_NAME}[ (]")
INDEX = (
    Statement.SEGMENT,
    Statement.PHASE,
    Statement.BATCH,
    Statement.DB,
    Statement.TABLE,
    Statement.ROWS,
    Statement.DIGEST,
    Statement.ROUND,
    Statement.QUEUE,
    Statement.WHOLE_TS,
)
"""The columns of a batch that the digest of a window covers."""
MAX_STATEMENT_BYTES = 4 << 20
"""Limit of one statement's text: a quarter of MariaDB's default max_allowed_packet."""
PACKET_MARGIN = 1 << 10
"""A generous allowance for the bytes of a packet besides the statement's text."""


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


def compute_digest_of_index(rows: Iterable[Mapping[str, Any]]) -> str:
    """SHA-256 (hex) of batches by their columns of INDEX, sorted by position: `statement` of an ApplyManifest."""
    digest = hashlib.sha256()
    for row in sorted(rows, key=lambda row: tuple(row[name] for name in INDEX[:3])):
        digest.update("\0".join(str(row[name]) for name in INDEX).encode())
        digest.update(b"\n")
    return digest.hexdigest()


def convert_batch_to_row(batch: StatementBatch) -> dict[str, Any]:
    """The fields of `batch` as plain values; the inverse of `restore_checked_batch`."""
    return {**asdict(batch), "phase": int(batch.phase)}


def restore_checked_batch(row: Mapping[str, Any]) -> StatementBatch:
    """Restore the batch that `convert_batch_to_row` wrote. Raises ImmutableWindow if its text does not have the stored
    digest."""
    sql = cast(Sequence[str], row[Statement.SQL])
    if compute_statement_digest(sql) != row[Statement.DIGEST]:
        raise ImmutableWindow(
            "a statement differs from the one that was derived",
            where={name: row[name] for name in INDEX[:5]},
            hint="the stored statements were changed: restore them (a Delta table by time travel), or run convert"
            " again",
        )
    phase, expect = Phase(row[Statement.PHASE]), tuple(row[Statement.EXPECT])
    return StatementBatch(**{**row, "phase": phase, "sql": tuple(sql), "expect": expect})


@dataclass(frozen=True)
class BatchLimits:
    """Most `rows` per batch; most `bytes` of its text, unless a single row has more; `packet`: the bytes that no
    statement may exceed (the server's max_allowed_packet; None = unknown).
    """

    rows: int = 100
    bytes: int = MAX_STATEMENT_BYTES
    packet: int | None = None

    @classmethod
    def of(cls, rows: int, packet: int) -> BatchLimits:
        """The limits for a server that accepts packets of `packet` bytes; half a packet is left for a statement's
        head."""
        return cls(rows, min(MAX_STATEMENT_BYTES, packet // 2), packet)

    def takes(self, statement: str) -> bool:
        """True if the server accepts `statement`."""
        # A character has at most four bytes, so most statements need not be encoded for this check.
        return self.takes_bytes(4 * len(statement)) or self.takes_bytes(len(statement.encode()))

    def takes_bytes(self, size: int) -> bool:
        """True if the server accepts a statement of `size` bytes."""
        return self.packet is None or size + PACKET_MARGIN <= self.packet

    def cut_by_texts(self, *texts: Any) -> Iterator[tuple[int, int]]:
        """(start, stop) of batches of rows; a row counts with the longest of its `texts` (Arrow columns) and a
        comma."""
        return self.cut_by_sizes([np.asarray(pc.binary_length(text)) + 1 for text in texts])

    def cut_by_sizes(self, sizes: Sequence[Any]) -> Iterator[tuple[int, int]]:
        """(start, stop) of batches of rows; a row counts with the greatest of its `sizes` (numpy columns of bytes)."""
        ends = np.cumsum(np.max(sizes, axis=0))
        start, total = 0, len(ends)
        while start < total:
            before = int(ends[start - 1]) if start else 0
            fits = int(np.searchsorted(ends, before + self.bytes, side="right"))
            stop = min(start + self.rows, max(fits, start + 1), total)
            yield start, stop
            start = stop
