"""Applies a segment's rows over many connections: phases with barriers, then presence checks.

Each batch is one transaction. Within a phase any order gives the same result, and so does a repetition (invariant 6).
Each batch is stored together with its ledger row (invariant 9), so an interrupted run resumes exactly where it stopped,
even for tables without a key. Readers see the segment grow, and moved rows are missing for a while (hazards R-37):
`consistent` is false until the segment's end.
"""

from __future__ import annotations

from binlake.statements.batch import StatementBatch
from binlake.target.apply.batches import BatchApplier, SegmentCounts, finish_segment
from binlake.target.apply.presence import PresenceCheck, PresenceChecks, require_present
from binlake.target.claim.run import ApplyRun
from binlake.target.claim.writers import FencedWriter
from binlake.target.segments import SegmentPlan, StatementSource

_BATCHES_A_CONNECTION = 4


def apply_rows(run: ApplyRun, source: StatementSource, plan: SegmentPlan, *, last: bool) -> SegmentCounts:
    """Apply the rows of `plan`, then move the checkpoint to its end; `last` closes the window.

    Raises what the first connection that failed raised, once all have stopped: TargetRefused, TargetBusy,
    TargetUnavailable, Fenced; Drift when a written key is missing after the last phase.
    """
    with PresenceChecks() as presence:
        segment = _Segment(run, plan, presence)
        most = _choose_connection_count(run, plan)
        for phase in plan.phases:
            run.claim.workers.run(source.read_batches(plan.number, phase), segment.apply, most=most)
        run.claim.workers.run(presence.group_checks(run.session.fetch_max_packet()), _require_present, most=most)
    run.transact(lambda session: finish_segment(run, session, plan, last=last))
    run.commit_ts = plan.end_ts
    return segment.counts


class _Segment:
    """What the connections share while they apply one segment."""

    def __init__(self, run: ApplyRun, plan: SegmentPlan, presence: PresenceChecks) -> None:
        self._run = run
        self._presence = presence
        self._batches = BatchApplier(run, plan.number)

    @property
    def counts(self) -> SegmentCounts:
        """The rows and batches that were executed and stored."""
        return self._batches.counts

    def apply(self, writer: FencedWriter, batch: StatementBatch) -> None:
        """Apply a batch unless it is stored already. Either way its keys must be present after the last phase."""
        self._run.claim.check()
        if not self._batches.is_recorded(batch):
            self._batches.apply(writer, batch)
        if self._batches.select_part(batch) is batch:
            self._presence.expect(batch)


def _choose_connection_count(run: ApplyRun, plan: SegmentPlan) -> int | None:
    """The number of connections to use: opening one costs more than a batch, so each must get several batches."""
    return None if plan.rows is None else 1 + plan.rows // (_BATCHES_A_CONNECTION * run.target.batch_rows)


def _require_present(writer: FencedWriter, group: list[PresenceCheck]) -> None:
    require_present(writer.session, group)
