"""Preserve the values of columns that only the target has: copy them before a segment's first write, restore them last.

Rule: hazards R-12. The copy is a table with the target table's column types, in the ledger's database, so values keep
their types and never leave the server. docs/understand/apply-shapes.md proves that this is exact.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from binlake.base.sql import Dialect
from binlake.rows.schema import TableDef
from binlake.statements.batch import UNCHECKED, Phase, StatementBatch, compute_statement_digest
from binlake.statements.keyconditions import KeyConditions
from binlake.statements.limits import BatchLimits
from binlake.statements.literal import quote_name, quote_qualified_name
from binlake.statements.render import Images
from binlake.statements.writtencolumns import list_key_columns, list_written_columns


def format_copy_prefix(replication: str) -> str:
    """The prefix of the names of all copies of a replication."""
    return f"binlake_kept_{_hash_text(replication)[:8]}_"


def format_copy_name(replication: str, window: str, segment: int, db: str, table: str) -> str:
    """The name of the copy for a table in a segment of a window, in the checkpoint's database."""
    return format_copy_prefix(replication) + _hash_text("\0".join((window, str(segment), db, table)))[:16]


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class PreserveStatements:
    """Batches of `table` that copy rows into `copy` (quoted) and restore their target-only columns.

    Batch numbers count from `first_batch` on, in call order.
    """

    def __init__(
        self,
        table: TableDef,
        segment: int,
        copy: str,
        *,
        dialect: Dialect = "mariadb",
        limits: BatchLimits | None = None,
        first_batch: int = 0,
    ) -> None:
        self._table = table
        self._segment = segment
        self._copy = copy
        self._dialect: Dialect = dialect
        self._limits = limits or BatchLimits()
        self._next = first_batch
        self._name = quote_qualified_name(table.db, table.name)
        self._keys = list_key_columns(table)
        self._written = [column.name for column in list_written_columns(table, dialect)]
        self._copied = [*self._written, *table.kept]

    @property
    def next_batch(self) -> int:
        """The number that the next batch will get."""
        return self._next

    def keeps(self, keys: Images) -> Iterator[StatementBatch]:
        """Copy the rows with `keys`; they stay locked until the transaction ends."""
        names = ",".join(map(quote_name, self._copied))
        head = f"INSERT INTO {self._copy} ({names}) SELECT {names} FROM {self._name} WHERE "
        yield from self._cut_batches(Phase.KEEP, "keep", head, self._find_keys(keys), " FOR UPDATE")

    def build_restores(self, keys: Images) -> Iterator[StatementBatch]:
        """Restore the values of rows whose key did not change."""
        pairs = " AND ".join(f"t.{quote_name(c.name)}=k.{quote_name(c.name)}" for c in self._keys)
        head = f"UPDATE {self._name} t JOIN {self._copy} k ON {pairs} SET {self._format_sets()} WHERE "
        yield from self._cut_batches(Phase.RESTORE, "restore", head, self._find_keys(keys, "t."))

    def build_moved_restores(self, keys: Images, origins: Images) -> Iterator[StatementBatch]:
        """Give each row of `keys` the values of the row that had its key in `origins`; one statement per row."""
        head = f"UPDATE {self._name} t JOIN {self._copy} k SET {self._format_sets()} WHERE "
        to, origin = self._find_keys(keys, "t."), self._find_keys(origins, "k.")
        count = len(keys[self._keys[0].name])
        statements = [f"{head}{to.format_single(row)} AND {origin.format_single(row)}" for row in range(count)]
        for start in range(0, count, self._limits.rows):
            yield self._build_batch(Phase.RESTORE, "restore", statements[start : start + self._limits.rows])

    def _cut_batches(
        self, phase: Phase, kind: Any, head: str, keys: KeyConditions, tail: str = ""
    ) -> Iterator[StatementBatch]:
        for start, stop in self._limits.cut_by_sizes([keys.sizes]):
            conditions = keys.format_conditions(start, stop)
            yield self._build_batch(phase, kind, [f"{head}({condition}){tail}" for condition, _ in conditions])

    def _find_keys(self, keys: Images, prefix: str = "") -> KeyConditions:
        return KeyConditions(self._keys, [keys[c.name] for c in self._keys], self._dialect, prefix=prefix)

    def _format_sets(self) -> str:
        sets = [f"t.{quote_name(name)}=k.{quote_name(name)}" for name in self._table.kept]
        # Naming a column keeps its value; otherwise ON UPDATE CURRENT_TIMESTAMP would change the source's value.
        same = [f"t.{name}=t.{name}" for name in map(quote_name, self._written)]
        return ",".join([*sets, *same])

    def _build_batch(self, phase: Phase, kind: Any, sql: Sequence[str]) -> StatementBatch:
        # These are not row changes of the source, so the batch counts no rows.
        number, self._next = self._next, self._next + 1
        identity = (self._segment, phase, number, self._table.db, self._table.name, kind)
        return StatementBatch(*identity, tuple(sql), (UNCHECKED,) * len(sql), "", 0, 0, compute_statement_digest(sql))
