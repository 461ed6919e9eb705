"""Applies a segment's rows in one transaction: phases, checks, ledger, checkpoint; all or nothing (DESIGN 4).

Sources: invariants 6 and 9; hazards R-13 (presence), R-17 (ledger), R-30 (the limit), R-44 (affected rows).
"""

from __future__ import annotations

from collections.abc import Iterator

from binlake.statements.batch import StatementBatch
from binlake.target.apply.batches import SegmentCounts, finish_segment, run_batch
from binlake.target.apply.presence import PresenceChecks, require_present
from binlake.target.claim.aside import select_part_to_run
from binlake.target.claim.progress import AppliedAs, TargetProgress, WindowLedger, is_recorded
from binlake.target.claim.run import ApplyRun
from binlake.target.segments import SegmentPlan, StatementSource, require_within
from binlake.target.session.session import TargetSession


def apply_rows(run: ApplyRun, source: StatementSource, plan: SegmentPlan, *, last: bool) -> SegmentCounts:
    """Apply the rows of `plan` and move the checkpoint to its end; `last` closes the window.

    Raises TargetRefused (a statement fails or touches an unexpected number of rows), Drift (a key that must be present
    is missing), Permanent (more rows or bytes than the target's limits).
    """
    counts = SegmentCounts()

    def execute_segment(session: TargetSession) -> TargetProgress:
        nonlocal counts
        counts = _execute(run, session, source, plan)
        return finish_segment(run, session, plan, last=last)

    run.transact(execute_segment)
    run.commit_ts = plan.end_ts
    return counts


def _execute(run: ApplyRun, session: TargetSession, source: StatementSource, plan: SegmentPlan) -> SegmentCounts:
    counts = SegmentCounts()
    ledger = WindowLedger.of(run.schema, run.manifest)
    recorded = ledger.read_digests(session, plan.number)
    require_within(run.target, run.manifest.window, plan.number, plan.rows or 0, plan.bytes or 0)
    with PresenceChecks() as presence:
        for batch in _read_batches(source, plan):
            run.claim.check()
            part = select_part_to_run(batch, run.aside)
            if not is_recorded(batch, recorded):
                if part is not None:
                    counts.add(part, run_batch(session, part))
                # If an attempt in another mode stored some batches, the segment does not become visible all at once.
                applied_as = AppliedAs.ALONE if recorded else AppliedAs.WHOLE_SEGMENT
                ledger.add(session, batch, applied_as if part is batch else AppliedAs.ASIDE)
                require_within(run.target, run.manifest.window, plan.number, counts.rows, counts.bytes)
                run.claim.notify("batch")
            if part is batch:
                presence.expect(batch)
            else:
                counts.pass_over()
        for group in presence.group_checks(session.fetch_max_packet()):
            require_present(session, group)
    ledger.flush(session)
    return counts


def _read_batches(source: StatementSource, plan: SegmentPlan) -> Iterator[StatementBatch]:
    for phase in plan.phases:
        yield from source.read_batches(plan.number, phase)
