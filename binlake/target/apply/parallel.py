"""One segment's rows over many connections: its phases with barriers between, then presence; a transaction a batch.

Inside a phase any order gives the same, and so does running it again (invariant 6). Each batch is stored together with
its ledger row (invariant 9), so whatever breaks off is continued exactly, tables without a key too. Readers see the
segment grow, and moved rows missing for a while (hazards R-37): `consistent` is false until its end.
"""

from __future__ import annotations

from binlake.statements.batch import StatementBatch
from binlake.target.apply.delivery import Delivery
from binlake.target.apply.presence import Check, Presence, verify
from binlake.target.apply.rows import SegmentCounts, finish_segment
from binlake.target.claim.run import ApplyRun
from binlake.target.claim.segments import SegmentPlan, StatementSource
from binlake.target.claim.writer import FencedWriter

_BATCHES_A_CONNECTION = 4


def apply_rows(run: ApplyRun, source: StatementSource, plan: SegmentPlan, *, last: bool) -> SegmentCounts:
    """Apply the rows of `plan`, then move the checkpoint to its end; `last` closes the window.

    Raises what the first connection that failed raised, once all have stopped: TargetRefused, TargetBusy,
    TargetUnavailable, Fenced; Drift when a written key is missing in the end.
    """
    with Presence() as presence:
        segment = _Segment(run, plan, presence)
        most = _connections(run, plan)
        for phase in plan.phases:
            run.workers.each(source.batches(plan.number, phase), segment.deliver, most=most)
        run.workers.each(presence.groups(run.session.max_packet()), _verify, most=most)
    run.transact(lambda session: finish_segment(run, session, plan, last=last))
    run.commit_ts = plan.end_ts
    return segment.counts


class _Segment:
    """What the connections share while they apply one segment."""

    def __init__(self, run: ApplyRun, plan: SegmentPlan, presence: Presence) -> None:
        self._run = run
        self._presence = presence
        self._delivery = Delivery(run, plan.number)

    @property
    def counts(self) -> SegmentCounts:
        """What was executed and stored."""
        return self._delivery.counts

    def deliver(self, writer: FencedWriter, batch: StatementBatch) -> None:
        """One batch, unless it is there; its keys are to be there in the end either way."""
        self._run.check()
        if not self._delivery.is_done(batch):
            self._delivery.deliver(writer, batch)
        if self._delivery.part_of(batch) is batch:
            self._presence.expect(batch)


def _connections(run: ApplyRun, plan: SegmentPlan) -> int | None:
    """A connection costs more than a batch: none for less than a few of them."""
    return None if plan.rows is None else 1 + plan.rows // (_BATCHES_A_CONNECTION * run.target.batch_rows)


def _verify(writer: FencedWriter, group: list[Check]) -> None:
    verify(writer.session, group)
