"""Decides which window may be applied: one that starts at the checkpoint, or exactly the one that is open.

Sources: invariants 7 and 8; hazards R-01, R-16, R-22, R-23; MISSION S3-05.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from binlake.errors import CheckpointConflict
from binlake.statements.batch import Phase
from binlake.target.apply.position import read_exit_point
from binlake.target.claim.checkpointrow import Checkpoint, CheckpointTable
from binlake.target.claim.progress import (
    TargetProgress,
    WindowLedger,
    is_recorded,
    read_owner,
    read_progress,
    require_own_progress,
    require_owner,
    take_ownership,
    write_progress,
)
from binlake.target.claim.run import ApplyRun
from binlake.target.segments import SegmentPlan, StatementSource
from binlake.target.session.session import TargetSession
from binlake.window.manifest import ApplyManifest

_OTHER_SCHEMA = "set another target.checkpoint-schema for this replication, or run `binlake checkpoint adopt`"


def is_window_applied(session: TargetSession, schema: str, manifest: ApplyManifest) -> bool:
    """True when the checkpoint is at or past the window's hi and the window is closed (hazards R-01). Reads only.

    With a DDL at hi itself, the checkpoint reaches hi before the DDL's segment is applied: the window is still open.
    """
    checkpoint = CheckpointTable(schema, manifest.cluster_id).read(session)
    if checkpoint is None or checkpoint.commit_ts < manifest.hi:
        return False
    progress = read_progress(session, schema, manifest.replication)
    return not (progress is not None and progress.is_open and progress.open_hi == manifest.hi)


def open_or_resume(run: ApplyRun) -> bool:
    """Write consistent=false, exit_ts=hi and the manifest's digest in one transaction, or resume the open window.

    True when it was open. Raises CheckpointConflict when the window neither starts at the checkpoint nor is open.
    """
    start, resumed = run.commit_ts, False

    def open_window(session: TargetSession) -> TargetProgress:
        nonlocal start, resumed
        progress, start, resumed = _open(run, session)
        return progress

    run.transact(open_window)
    run.commit_ts = start
    run.claim.notify("opened")
    return resumed


def require_complete_ledger(run: ApplyRun, source: StatementSource, plans: Sequence[SegmentPlan]) -> None:
    """Require every batch of the applied segments in the open window's ledger (hazards R-61).

    Raises CheckpointConflict: the target is a copy that lacks some transactions but has later ones.
    """
    ledger = WindowLedger.of(run.schema, run.manifest)
    for plan in plans[: run.progress.segment]:
        recorded = ledger.read_digests(run.session, plan.number)
        phases = (Phase.ORDERED,) if plan.ordered else plan.phases
        batches = itertools.chain.from_iterable(source.read_batches(plan.number, phase) for phase in phases)
        lacking = next((batch for batch in batches if not is_recorded(batch, recorded)), None)
        if lacking is not None:
            raise CheckpointConflict(
                "the ledger lacks a batch of a segment that the target has already passed: it is a copy with gaps",
                where={"window": run.manifest.window, **lacking.where},
                hint="restore the target from a consistent copy: what else this copy lacks is unknown",
            )


def _open(run: ApplyRun, session: TargetSession) -> tuple[TargetProgress, int, bool]:
    """The window's progress, the checkpoint to continue from, and whether the window was open."""
    manifest = run.manifest
    require_owner(session, run.schema, manifest.cluster_id, manifest.replication, hint=_OTHER_SCHEMA)
    checkpoint = run.lock_checkpoint(session)
    progress = require_own_progress(session, run.schema, manifest.cluster_id, manifest.replication)
    resumed = progress is not None and progress.is_open
    if progress is not None and progress.is_open:
        _require_same(progress, manifest)
    else:
        _require_start(checkpoint, manifest)
        progress = _begin(run, session, checkpoint)
    current = checkpoint or Checkpoint(manifest.lo, False)
    run.checkpoints.write(session, current.with_consistent(consistent=False))
    return progress, current.commit_ts, resumed


def _begin(run: ApplyRun, session: TargetSession, checkpoint: Checkpoint | None) -> TargetProgress:
    manifest = run.manifest
    opened = TargetProgress.of_window(manifest, read_exit_point(session, run.target, manifest.cluster_id, checkpoint))
    WindowLedger.of(run.schema, manifest).prune(session)
    if read_owner(session, run.schema, manifest.cluster_id) is None:
        take_ownership(session, run.schema, manifest.cluster_id, manifest.replication, manifest.config_hash)
    write_progress(session, run.schema, opened)
    return opened


def _require_same(progress: TargetProgress, manifest: ApplyManifest) -> None:
    if not progress.is_for(manifest):
        raise CheckpointConflict(
            f"the window {progress.open_lo}-{progress.open_hi} is open on the target and must be finished first",
            where={
                "window": manifest.window,
                "open_manifest": progress.manifest,
                "manifest": manifest.compute_digest(),
            },
            hint="finalize the open window with the manifest that it was opened with",
        )


def _require_start(checkpoint: Checkpoint | None, manifest: ApplyManifest) -> None:
    if checkpoint is not None and checkpoint.commit_ts != manifest.lo:
        raise CheckpointConflict(
            f"the window does not start at the checkpoint {checkpoint.commit_ts}",
            where={"window": manifest.window},
            hint="derive the window again from the target's checkpoint (compact, convert)",
        )
