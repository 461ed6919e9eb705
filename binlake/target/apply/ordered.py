"""Applies a segment's changes in commit order: round by round, with a round's queues spread over many connections.

What may run concurrently was decided when the statements were derived (`binlake.changes.ordered`), so any timing gives
the same rows as serial execution. Each batch is stored together with its ledger row (invariant 9), so an interrupted
run resumes exactly where it stopped. Between two rounds the checkpoint may move to the last transaction that is
completely downstream (invariant 8).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import groupby

from binlake.errors import CheckpointConflict
from binlake.statements.batch import Phase, StatementBatch
from binlake.target.apply.batches import BatchApplier, SegmentCounts, finish_segment
from binlake.target.claim.run import ApplyRun
from binlake.target.claim.writers import FencedWriter
from binlake.target.segments import SegmentPlan, StatementSource
from binlake.target.session.session import TargetSession

CHECKPOINT_S = 3.0
"""Minimum seconds between two moves of the checkpoint inside a segment, as in the drainer."""


def apply_rows(run: ApplyRun, source: StatementSource, plan: SegmentPlan, *, last: bool) -> SegmentCounts:
    """Apply the changes of `plan`, then move the checkpoint to its end; `last` closes the window.

    Raises what the first connection that failed raised, once all have stopped: TargetRefused, TargetBusy,
    TargetUnavailable, Fenced; CheckpointConflict when the batches are not in order.
    """
    segment = _Segment(run, plan)
    batches = _require_ascending(source.read_batches(plan.number, Phase.ORDERED))
    for _, one_round in groupby(batches, key=lambda batch: batch.round):
        segment.apply_round(list(one_round))
    run.transact(lambda session: finish_segment(run, session, plan, last=last))
    run.commit_ts = plan.end_ts
    return segment.counts


class _Segment:
    """What the connections share while they apply one segment."""

    def __init__(self, run: ApplyRun, plan: SegmentPlan) -> None:
        self._run = run
        self._plan = plan
        self._batches = BatchApplier(run, plan.number)
        self._moved_at = time.monotonic()

    @property
    def counts(self) -> SegmentCounts:
        """The rows and batches that were executed and stored."""
        return self._batches.counts

    def apply_round(self, batches: list[StatementBatch]) -> None:
        """Apply the batches of one round that are not stored yet. All earlier rounds are downstream."""
        self._move_checkpoint(batches[0].whole_ts)
        queues: dict[int, list[StatementBatch]] = {}
        for batch in batches:
            if not self._batches.is_recorded(batch):
                queues.setdefault(batch.queue, []).append(batch)
        if len(queues) == 1:
            # A round between two conflicts is often a single change: not worth a thread.
            self._apply_queue(self._run.claim.writer, next(iter(queues.values())))
        elif queues:
            self._run.claim.workers.run(iter(queues.values()), self._apply_queue)

    def _apply_queue(self, writer: FencedWriter, queue: list[StatementBatch]) -> None:
        for batch in queue:
            self._run.claim.check()
            self._batches.apply(writer, batch)

    def _move_checkpoint(self, whole_ts: int) -> None:
        """Move the checkpoint every few seconds. `consistent` stays false, as later rows are on the target too."""
        if whole_ts <= self._run.commit_ts or time.monotonic() - self._moved_at < CHECKPOINT_S:
            return

        def write_checkpoint(session: TargetSession) -> int:
            checkpoint = self._run.lock_unmoved_checkpoint(session)
            version = self._plan.schema_version
            self._run.checkpoints.write(session, checkpoint.move_to(whole_ts, version, consistent=False))
            return whole_ts

        self._run.claim.transact(write_checkpoint, self._is_moved)
        self._run.commit_ts = whole_ts
        self._moved_at = time.monotonic()
        self._run.claim.notify("checkpoint")

    def _is_moved(self, session: TargetSession, whole_ts: int) -> bool:
        checkpoint = self._run.checkpoints.read(session)
        return checkpoint is not None and checkpoint.commit_ts == whole_ts


def _require_ascending(batches: Iterable[StatementBatch]) -> Iterator[StatementBatch]:
    last = -1
    for batch in batches:
        if batch.batch <= last:
            raise CheckpointConflict(
                "batches of mode ordered are out of order",
                where={"segment": batch.segment, "batch": batch.batch, "behind": last},
                hint="restore the lake's statement table, or run convert again",
            )
        last = batch.batch
        yield batch
