"""What all modes do with a segment's rows: run a batch, record and count it, and finally move the checkpoint.

The connection that runs a batch writes it and its ledger row in one transaction (invariant 9).
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field

from binlake.base.redaction import redact_condition, redact_sql
from binlake.errors import Drift, TargetRefused
from binlake.statements.batch import UNCHECKED, StatementBatch, parse_statement_table
from binlake.statements.conditions import list_deleted_keys
from binlake.target.claim.aside import select_part_to_run
from binlake.target.claim.progress import AppliedAs, TargetProgress, WindowLedger, is_recorded, write_progress
from binlake.target.claim.run import ApplyRun
from binlake.target.claim.writers import FencedWriter
from binlake.target.segments import SegmentPlan
from binlake.target.session.session import TargetSession


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


_DELETING = ("delete", "ordered")
_KEYS_A_QUERY = 200


def _count_absent(session: TargetSession, batch: StatementBatch, sql: str, touched: int) -> int:
    """The number of keys that the DELETE `sql` did not find; 0 for another statement.

    A repetition finds no rows, and so does the DELETE of a row that the same window inserted. But a server that
    compares a list of keys differently from one key finds none either. So each key is looked up alone. Raises Drift.
    """
    queries = list_deleted_keys(sql)
    if touched >= len(queries):
        return 0
    for start in range(0, len(queries), _KEYS_A_QUERY):
        found = session.fetch_column(" UNION ALL ".join(queries[start : start + _KEYS_A_QUERY]))
        if found:
            raise Drift(
                f"the target still has {len(found)} rows that a DELETE by key had to remove",
                where={**batch.where, "statement": redact_sql(sql)[:200]},
                hint="see whether a trigger of the target inserts the rows again; if not, report it with the table's"
                " SHOW CREATE TABLE and the server's version. `binlake table aside` lets the other tables continue",
            )
    return len(queries) - touched


_ROW = re.compile(
    r" WHERE (?P<row>(?:(?! WHERE ).)*?)(?: LIMIT 1)?(?: /\* commit_ts (?P<ts>[0-9to ]+) \*/)?$", re.DOTALL
)


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
