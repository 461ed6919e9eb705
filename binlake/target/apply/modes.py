"""Applies a segment's rows in one of three modes: in one transaction, over many connections, or in commit order.

Sources: DESIGN 4; invariants 6 and 9; hazards R-13 (presence), R-17 (ledger), R-30 (the limit), R-44 (affected rows).

Where a segment is more than one transaction, each batch is stored together with its ledger row (invariant 9), so an
interrupted run resumes exactly where it stopped, even for tables without a key.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import groupby

from binlake.errors import CheckpointConflict
from binlake.statements.batch import Phase, StatementBatch
from binlake.target.apply.batches import (
    BatchApplier,
    PresenceCheck,
    PresenceChecks,
    SegmentCounts,
    finish_segment,
    require_present,
    run_batch,
)
from binlake.target.claim.checkpoint import select_part_to_run
from binlake.target.claim.claim import ApplyRun
from binlake.target.claim.progress import AppliedAs, TargetProgress, WindowLedger, is_recorded
from binlake.target.claim.writers import FencedWriter
from binlake.target.segments import SegmentPlan, StatementSource, require_within
from binlake.target.session.session import TargetSession

_BATCHES_A_CONNECTION = 4
CHECKPOINT_S = 3.0
"""Minimum seconds between two moves of the checkpoint inside a segment, as in the drainer."""


def apply_atomically(run: ApplyRun, source: StatementSource, plan: SegmentPlan, *, last: bool) -> SegmentCounts:
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
        for batch in (one for phase in plan.phases for one in source.read_batches(plan.number, phase)):
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


def apply_in_parallel(run: ApplyRun, source: StatementSource, plan: SegmentPlan, *, last: bool) -> SegmentCounts:
    """Apply the rows of `plan`, then move the checkpoint to its end; `last` closes the window.

    Raises what the first connection that failed raised, once all have stopped: TargetRefused, TargetBusy,
    TargetUnavailable, Fenced; Drift when a written key is missing after the last phase.
    """
    with PresenceChecks() as presence:
        segment = _ParallelSegment(run, plan, presence)
        most = _choose_connection_count(run, plan)
        for phase in plan.phases:
            run.claim.workers.run(source.read_batches(plan.number, phase), segment.apply, most=most)
        run.claim.workers.run(presence.group_checks(run.session.fetch_max_packet()), _require_present, most=most)
    run.transact(lambda session: finish_segment(run, session, plan, last=last))
    run.commit_ts = plan.end_ts
    return segment.counts


class _ParallelSegment:
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


def apply_in_order(run: ApplyRun, source: StatementSource, plan: SegmentPlan, *, last: bool) -> SegmentCounts:
    """Apply the changes of `plan`, then move the checkpoint to its end; `last` closes the window.

    Raises what the first connection that failed raised, once all have stopped: TargetRefused, TargetBusy,
    TargetUnavailable, Fenced; CheckpointConflict when the batches are not in order.
    """
    segment = _OrderedSegment(run, plan)
    batches = _require_ascending(source.read_batches(plan.number, Phase.ORDERED))
    for _, one_round in groupby(batches, key=lambda batch: batch.round):
        segment.apply_round(list(one_round))
    run.transact(lambda session: finish_segment(run, session, plan, last=last))
    run.commit_ts = plan.end_ts
    return segment.counts


class _OrderedSegment:
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
