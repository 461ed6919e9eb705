"""What every mode does with a segment's rows: run a batch, count, and move the checkpoint when all are applied."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field

from binlake.base.redaction import condition_in_log, sql_in_log
from binlake.errors import TargetRefused
from binlake.statements.batch import UNCHECKED, StatementBatch
from binlake.statements.tableof import table_of
from binlake.target.apply.presence import place_of
from binlake.target.claim.progress import Progress, write_progress
from binlake.target.claim.run import ApplyRun
from binlake.target.claim.segments import SegmentPlan
from binlake.target.session.session import Session


@dataclass
class SegmentCounts:
    """Rows and batches executed in transactions that were stored; `bytes` of their text; those `passed_over`."""

    rows: int = 0
    batches: int = 0
    bytes: int = 0
    passed_over: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, batch: StatementBatch) -> None:
        """One more batch, from any thread."""
        with self._lock:
            self.rows += batch.rows
            self.batches += 1
            # Characters, not bytes: a bound of memory on the target, not an account.
            self.bytes += sum(map(len, batch.sql))

    def pass_over(self) -> None:
        """A batch that was not run, or in parts, since a table is set aside; from any thread."""
        with self._lock:
            self.passed_over += 1


def run_batch(session: Session, batch: StatementBatch) -> None:
    """Execute a batch in the open transaction. Raises TargetRefused when it touches other rows than it must (R-44)."""
    for sql, expected in zip(batch.sql, batch.expect, strict=True):
        try:
            _run_statement(session, batch, sql, expected)
        except TargetRefused as error:
            error.tables = ((batch.db, batch.table) if batch.table else table_of(sql),)
            raise


def _run_statement(session: Session, batch: StatementBatch, sql: str, expected: int) -> None:
    touched = session.execute(sql)
    if expected not in (UNCHECKED, touched):
        raise TargetRefused(
            f"a statement touched {touched} rows instead of {expected}",
            where={**place_of(batch), **_told_by(sql), "statement": sql_in_log(sql)[:200]},
            hint="the target's rows differ from what the source had: compare the table (`binlake verify`); put the row"
            " there as it was before that commit_ts and run finalize again, or rebuild the table",
        )


_TOLD = re.compile(
    r" WHERE (?P<row>(?:(?! WHERE ).)*?)(?: LIMIT 1)?(?: /\* commit_ts (?P<ts>[0-9to ]+) \*/)?$", re.DOTALL
)


def _told_by(sql: str) -> dict[str, object]:
    """Which table, row and commit_ts a statement of mode ordered is about; its batch may hold several."""
    found = _TOLD.search(sql)
    if found is None or found["ts"] is None:
        return {}
    return {"table": ".".join(table_of(sql)), "row": condition_in_log(found["row"])[:300], "commit_ts": found["ts"]}


def finish_segment(run: ApplyRun, session: Session, plan: SegmentPlan, *, last: bool) -> Progress:
    """Move progress and checkpoint behind `plan`, in the open transaction; `last` closes the window.

    `consistent` stays false below exit_ts, as rows up to there may be on the target already, and while a table is set
    aside: the target then equals the source at no commit_ts (invariant 8).
    """
    moved = run.progress.closed() if last else run.progress.next_segment()
    write_progress(session, run.schema, moved)
    consistent = last and moved.exit_ts <= plan.end_ts and not run.aside
    run.checkpoints.write(
        session, run.require_unmoved(session).moved(plan.end_ts, plan.schema_version, consistent=consistent)
    )
    return moved
