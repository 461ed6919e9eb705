"""Applies one pinned window in atomic mode: guarded, exactly once, and never with a checkpoint that lies.

The order: claim, open, then per segment its DDL and its rows, and at last consistent=true. Whatever is interrupted
continues from what the target itself stores. Sources: DESIGN 4, invariants 7 to 11; hazards R-01 to R-61.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import structlog

from binlake.config.model import Target
from binlake.downstream.atomic import apply_rows
from binlake.downstream.definitions import compare, read
from binlake.downstream.intents import apply_ddl
from binlake.downstream.opening import is_applied, open_or_resume
from binlake.downstream.progress import Progress
from binlake.downstream.run import ApplyRun
from binlake.downstream.segments import ApplyResult, Hook, SegmentPlan, StatementSource
from binlake.downstream.session import Session
from binlake.downstream.stopping import StopFlag
from binlake.downstream.tables import create_tables
from binlake.errors import CheckpointConflict, Drift
from binlake.window.manifest import ApplyManifest

log = structlog.get_logger()


def apply_window(
    target: Target,
    manifest: ApplyManifest,
    source: StatementSource,
    *,
    hook: Hook | None = None,
    stop: StopFlag | None = None,
) -> ApplyResult:
    """Bring the window of `manifest` downstream; call it again until it returns.

    Raises LeaseHeld, TargetUnavailable, TargetBusy, Transient (asked to stop): try again. Raises CheckpointConflict,
    Fenced, Drift, TargetRefused, Permanent: somebody must look. The checkpoint has moved only over whole segments.
    """
    started = time.monotonic()
    plans = source.segments()
    _require_tiled(plans, manifest)
    with stop or StopFlag() as flag:
        run = ApplyRun(target, manifest, flag, hook)
        try:
            result = _apply(run, source, plans)
        finally:
            run.end()
    result.seconds = time.monotonic() - started
    log.info("window_applied", window=manifest.window, state=result.state, rows=result.rows, seconds=result.seconds)
    return result


def _apply(run: ApplyRun, source: StatementSource, plans: list[SegmentPlan]) -> ApplyResult:
    manifest = run.manifest
    create_tables(run.session, run.schema)
    if not is_applied(run):
        run.claim()
    # Again behind the claim: another process may have finished the window in between.
    if is_applied(run):
        return ApplyResult("already", manifest.lo, manifest.hi)
    open_or_resume(run)
    result = ApplyResult("applied", manifest.lo, manifest.hi)
    for plan in plans[run.progress.segment :]:
        _apply_segment(run, source, plan, result, last=plan is plans[-1])
    if run.target.db_type == "tidb":
        _note_secondary_ts(run)
    run.passed("closed")
    return result


def _apply_segment(
    run: ApplyRun, source: StatementSource, plan: SegmentPlan, result: ApplyResult, *, last: bool
) -> None:
    if plan.ddl is not None:
        result.ddls += apply_ddl(run, plan, plan.ddl)
    _require_expected(run, plan)
    counts = apply_rows(run, source, plan, last=last)
    result.segments += 1
    result.rows += counts.rows
    result.batches += counts.batches


def _require_expected(run: ApplyRun, plan: SegmentPlan) -> None:
    """The tables that get rows are defined as the plan supposes (hazards R-13, R-18). Raises Drift."""
    if plan.expected is None:
        return
    found = compare(plan.expected, read(run.session, plan.expected.names, run.target.db_type))
    if found:
        raise Drift(
            f"the target's definitions are not those of the source: {'; '.join(found)}",
            where={"window": run.manifest.window, "segment": plan.number},
            hint="mend the target's definitions, then run finalize again",
        )


def _require_tiled(plans: list[SegmentPlan], manifest: ApplyManifest) -> None:
    """Segments are numbered from 0, end ascending between lo and hi, and the last one ends at hi."""
    numbers = [plan.number for plan in plans]
    ends = [manifest.lo, *(plan.end_ts for plan in plans)]
    rising = all(a <= b for a, b in itertools.pairwise(ends))
    if numbers != list(range(manifest.segments)) or not rising or ends[-1] != manifest.hi:
        raise CheckpointConflict(
            "the segments at hand are not those of the manifest",
            where={"window": manifest.window, "segments": manifest.segments, "found": numbers, "ends": ends},
            hint="run convert again",
        )


def _note_secondary_ts(run: ApplyRun) -> None:
    """ts-map: the target's own timestamp once the last row of the window is committed (MISSION S3-07)."""
    position = run.session.rows("SHOW MASTER STATUS")
    if not position:
        return
    ts_map = {"primary-ts": run.manifest.hi, "secondary-ts": int(position[0][1])}

    def body(session: Session) -> Progress:
        run.checkpoints.write(session, replace(run.require_unmoved(session), ts_map=ts_map))
        return run.progress

    run.transact(body)
