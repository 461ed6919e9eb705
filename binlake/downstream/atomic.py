"""One segment's rows in one transaction: deletes, writes, checks, ledger, checkpoint; all of it or nothing (DESIGN 4).

Sources: invariants 6 and 9; hazards R-13 (presence), R-17 (ledger), R-30 (the limit), R-44 (affected rows).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from binlake.downstream.ledger import Ledger, is_done
from binlake.downstream.progress import Progress, write_progress
from binlake.downstream.run import ApplyRun
from binlake.downstream.segments import SegmentPlan, StatementSource, too_many_rows
from binlake.downstream.session import Session
from binlake.errors import Drift, TargetRefused
from binlake.statement.batch import UNCHECKED, StatementBatch

_SPOOLED_BYTES = 16 << 20
_CHECKS_A_QUERY = 50
_QUERY_BYTES = 256 << 10


@dataclass
class SegmentCounts:
    """Executed in the transaction that was stored."""

    rows: int = 0
    batches: int = 0


def apply_rows(run: ApplyRun, source: StatementSource, plan: SegmentPlan, *, last: bool) -> SegmentCounts:
    """Apply the rows of `plan` and move the checkpoint to its end; `last` closes the window.

    Raises TargetRefused (a statement fails, or touches another number of rows than it must), Drift (a key that must be
    there is not), Permanent (more rows than target.max-segment-rows).
    """
    counts = SegmentCounts()

    def body(session: Session) -> Progress:
        counts.rows = counts.batches = 0
        _execute(run, session, source, plan, counts)
        return _finish(run, session, plan, last=last)

    run.transact(body)
    run.commit_ts = plan.end_ts
    return counts


def _execute(
    run: ApplyRun, session: Session, source: StatementSource, plan: SegmentPlan, counts: SegmentCounts
) -> None:
    manifest = run.manifest
    ledger = Ledger(run.schema, manifest.replication, manifest.lo, manifest.hi)
    done = ledger.done(session, plan.number)
    _require_within(run, plan, plan.rows or 0)
    with tempfile.SpooledTemporaryFile(_SPOOLED_BYTES, "w+", encoding="utf-8") as checks:
        for batch in _batches(source, plan):
            run.check()
            if not is_done(batch, done):
                _run_batch(session, batch)
                ledger.add(session, batch)
                counts.rows += batch.rows
                counts.batches += 1
                _require_within(run, plan, counts.rows)
                run.passed("batch")
            _note_check(checks, batch)
        _verify(session, checks)
    ledger.flush(session)


def _batches(source: StatementSource, plan: SegmentPlan) -> Iterator[StatementBatch]:
    for phase in (1, 2):
        yield from source.batches(plan.number, phase)


def _run_batch(session: Session, batch: StatementBatch) -> None:
    for sql, expected in zip(batch.sql, batch.expect, strict=True):
        affected = session.execute(sql)
        if expected not in (UNCHECKED, affected):
            raise TargetRefused(
                f"a statement touched {affected} rows instead of {expected}",
                where={**_place(batch), "statement": sql[:200]},
                hint="the target's rows are not what the source's were: compare the table, then rebuild it",
            )


def _require_within(run: ApplyRun, plan: SegmentPlan, rows: int) -> None:
    limit = run.target.max_segment_rows
    if rows > limit:
        raise too_many_rows(run.manifest.window, plan.number, rows, limit)


def _note_check(checks: IO[str], batch: StatementBatch) -> None:
    if batch.verify_sql:
        json.dump([batch.verify_sql, batch.verify_rows, _place(batch)], checks)
        checks.write("\n")


def _verify(session: Session, checks: IO[str]) -> None:
    """Every key that must be there is there, after all writes: a later REPLACE may have removed an earlier row."""
    checks.seek(0)
    for group in _groups(checks, min(_QUERY_BYTES, session.max_packet() // 2)):
        # One round trip for many: each check is a query of one number.
        found = session.rows("SELECT " + ", ".join(f"({sql})" for sql, _, _ in group))[0]
        for (sql, expected, place), there in zip(group, found, strict=True):
            _require_all(sql, expected, place, int(there))


def _require_all(sql: str, expected: int, place: dict[str, object], found: int) -> None:
    if found != expected:
        raise Drift(
            f"{found} of {expected} written rows are there: two rows of the source are one on the target",
            where={**place, "check": sql[:200]},
            hint="compare unique keys and collations of the table with the source's",
        )


def _groups(checks: IO[str], most: int) -> Iterator[list[tuple[str, int, dict[str, object]]]]:
    """Checks in groups of `most` bytes of text together, unless one alone has more."""
    group: list[tuple[str, int, dict[str, object]]] = []
    size = 0
    for line in checks:
        added = len(line.encode())
        if group and (len(group) >= _CHECKS_A_QUERY or size + added > most):
            yield group
            group, size = [], 0
        group.append(tuple(json.loads(line)))
        size += added
    if group:
        yield group


def _place(batch: StatementBatch) -> dict[str, object]:
    return {
        "table": f"{batch.db}.{batch.table}",
        "segment": batch.segment,
        "phase": batch.phase,
        "batch": batch.batch,
    }


def _finish(run: ApplyRun, session: Session, plan: SegmentPlan, *, last: bool) -> Progress:
    moved = run.progress.closed() if last else run.progress.next_segment()
    write_progress(session, run.schema, moved)
    checkpoint = run.require_unmoved(session).moved(plan.end_ts, plan.schema_version, consistent=last)
    run.checkpoints.write(session, checkpoint)
    return moved
