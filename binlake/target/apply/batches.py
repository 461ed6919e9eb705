"""What all modes do with a segment's rows: run, record and count a batch, check its keys, move the checkpoint.

The connection that runs a batch writes it and its ledger row in one transaction (invariant 9).

After a segment's writes, Binlake checks that each key that must exist does. A REPLACE may have removed an earlier row:
a collation or a unique key that only the target has silently merges two rows (invariant 6, hazards R-13). Rows are
looked up by key, so the cost does not depend on the size of the table.
"""

from __future__ import annotations

import json
import re
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, NamedTuple

from binlake.common.redaction import redact_condition, redact_sql
from binlake.errors import Drift, TargetRefused
from binlake.rows.schema import TableDef
from binlake.statements.batch import UNCHECKED, StatementBatch, parse_statement_table
from binlake.statements.conditions import list_deleted_keys
from binlake.statements.literal import format_match, quote_name, quote_qualified_name
from binlake.target.claim.checkpoint import select_part_to_run
from binlake.target.claim.claim import ApplyRun
from binlake.target.claim.progress import AppliedAs, TargetProgress, WindowLedger, is_recorded, write_progress
from binlake.target.claim.writers import FencedWriter
from binlake.target.segments import SegmentPlan
from binlake.target.session.failures import MISSING, get_error_code
from binlake.target.session.session import TargetSession

_DELETING = ("delete", "ordered")
_COUNTS_A_QUERY = 200
_ROW = re.compile(
    r" WHERE (?P<row>(?:(?! WHERE ).)*?)(?: LIMIT 1)?(?: /\* commit_ts (?P<ts>[0-9to ]+) \*/)?$", re.DOTALL
)
_SPOOLED_BYTES = 16 << 20
_CHECKS_A_QUERY = 50
_QUERY_BYTES = 256 << 10
_KEYS_A_QUERY = 200
_UNKNOWN_COLUMN = 1054
Key = Sequence[str | None]
"""The canonical texts of an identity's columns."""


@dataclass
class SegmentCounts:
    """Rows and batches of stored transactions, the `bytes` of their text, and the batches `passed_over`.

    `absent`: keys to delete that had no row.
    """

    rows: int = 0
    batches: int = 0
    bytes: int = 0
    passed_over: int = 0
    absent: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, batch: StatementBatch, absent: int) -> None:
        """Count one more batch, from any thread."""
        with self._lock:
            self.absent += absent
            self.rows += batch.rows
            self.batches += 1
            # Characters, not bytes: this only bounds memory on the target.
            self.bytes += sum(map(len, batch.sql))

    def pass_over(self) -> None:
        """Count a batch that was skipped or run only in part because a table is set aside; from any thread."""
        with self._lock:
            self.passed_over += 1


def run_batch(session: TargetSession, batch: StatementBatch) -> int:
    """Execute a batch in the open transaction; the number of keys to delete that had no row.

    Raises TargetRefused if it touches an unexpected row count (R-44), Drift if it leaves a row that it had to delete.
    """
    absent = 0
    for sql, expected in zip(batch.sql, batch.expect, strict=True):
        try:
            absent += _run_statement(session, batch, sql, expected)
        except (TargetRefused, Drift) as error:
            error.tables = ((batch.db, batch.table) if batch.table else parse_statement_table(sql),)
            raise
    return absent


def _run_statement(session: TargetSession, batch: StatementBatch, sql: str, expected: int) -> int:
    touched = session.execute(sql)
    if expected == UNCHECKED and batch.kind in _DELETING and touched < batch.rows:
        return _count_absent(session, batch, sql, touched)
    if expected not in (UNCHECKED, touched):
        raise TargetRefused(
            f"a statement touched {touched} rows instead of {expected}",
            where={**batch.where, **_find_row_in_statement(sql), "statement": redact_sql(sql)[:200]},
            hint="the target's rows differ from those the source had: compare the table (`binlake verify`); restore the"
            " row to its state before that commit_ts and run finalize again, or rebuild the table",
        )
    return 0


def _count_absent(session: TargetSession, batch: StatementBatch, sql: str, touched: int) -> int:
    """The number of keys that the DELETE `sql` did not find; 0 for another statement.

    A repetition finds no rows, and so does the DELETE of a row that the same window inserted. But a server that
    compares a list of keys differently from one key finds none either. So each key is looked up alone. Raises Drift.
    """
    queries = list_deleted_keys(sql)
    if touched >= len(queries):
        return 0
    for start in range(0, len(queries), _COUNTS_A_QUERY):
        found = session.fetch_column(" UNION ALL ".join(queries[start : start + _COUNTS_A_QUERY]))
        if found:
            raise Drift(
                f"the target still has {len(found)} rows that a DELETE by key had to remove",
                where={**batch.where, "statement": redact_sql(sql)[:200]},
                hint="see whether a trigger of the target inserts the rows again; if not, report it with the table's"
                " SHOW CREATE TABLE and the server's version. `binlake table aside` lets the other tables continue",
            )
    return len(queries) - touched


def _find_row_in_statement(sql: str) -> dict[str, object]:
    """Table, row and commit_ts of a statement of mode ordered, as its batch may contain several tables."""
    match = _ROW.search(sql)
    if match is None or match["ts"] is None:
        return {}
    return {
        "table": ".".join(parse_statement_table(sql)),
        "row": redact_condition(match["row"])[:300],
        "commit_ts": match["ts"],
    }


class BatchApplier:
    """Applies the batches of one segment; shared by all connections. `counts`: what this run executed and stored."""

    def __init__(self, run: ApplyRun, segment: int) -> None:
        self.counts = SegmentCounts()
        self._run = run
        self._ledger = WindowLedger.of(run.schema, run.manifest)
        # Read under the claim: no transaction of an earlier holder is open any more.
        self._recorded = self._ledger.read_digests(run.session, segment)

    def is_recorded(self, batch: StatementBatch) -> bool:
        """Whether an earlier run stored `batch`. Raises CheckpointConflict if it stored another one in its place."""
        return is_recorded(batch, self._recorded)

    def apply(self, writer: FencedWriter, batch: StatementBatch) -> None:
        """Execute and store `batch`. Raises what `FencedWriter.transact` and `run_batch` raise."""
        absent = 0

        def run(session: TargetSession) -> StatementBatch:
            nonlocal absent
            absent = self._run_and_record(batch, session)
            return batch

        writer.transact(run, self._is_stored)
        part = self.select_part(batch)
        if part is not None:
            self.counts.add(part, absent)
        if part is not batch:
            self.counts.pass_over()

    def select_part(self, batch: StatementBatch) -> StatementBatch | None:
        """The part of `batch` to run; None when its table is set aside."""
        return select_part_to_run(batch, self._run.aside)

    def _run_and_record(self, batch: StatementBatch, session: TargetSession) -> int:
        part = self.select_part(batch)
        absent = 0 if part is None else run_batch(session, part)
        self._ledger.write(session, [(batch, AppliedAs.ALONE if part is batch else AppliedAs.ASIDE)])
        self._run.claim.notify("batch")
        return absent

    def _is_stored(self, session: TargetSession, batch: StatementBatch) -> bool:
        digests = self._ledger.read_digests(session, batch.segment, (batch.phase, batch.batch))
        return is_recorded(batch, digests)


def finish_segment(run: ApplyRun, session: TargetSession, plan: SegmentPlan, *, last: bool) -> TargetProgress:
    """Move progress and checkpoint past `plan`, in the open transaction; `last` closes the window.

    `consistent` stays false below exit_ts, because rows up to exit_ts may be on the target already. It also stays false
    while a table is set aside: the target then equals the source at no commit_ts (invariant 8).
    """
    moved = run.progress.with_window_closed() if last else run.progress.with_segment_applied()
    write_progress(session, run.schema, moved)
    consistent = last and moved.exit_ts <= plan.end_ts and not run.aside
    checkpoint = run.lock_unmoved_checkpoint(session)
    run.checkpoints.write(session, checkpoint.move_to(plan.end_ts, plan.schema_version, consistent=consistent))
    return moved


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
