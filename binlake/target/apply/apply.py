"""Applies one pinned window: guarded, exactly once, and never with a checkpoint that lies.

The order: claim, open, then per segment its DDL and its rows, and at last consistent=true. Whatever is interrupted
continues from what the target itself stores. Sources: DESIGN 4, invariants 7 to 11; hazards R-01 to R-61.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import structlog

from binlake.config.model import Target
from binlake.errors import BinlakeError, CheckpointConflict
from binlake.statements.batch import INJECTED, REPLACED
from binlake.target.apply.copies import drop_copies, make_copies
from binlake.target.apply.modes import mode_of, rows_applier
from binlake.target.apply.opening import is_applied, open_or_resume, require_complete
from binlake.target.claim.aside import is_aside
from binlake.target.claim.marks import Marks
from binlake.target.claim.passing import put_aside_for
from binlake.target.claim.progress import Progress
from binlake.target.claim.run import ApplyRun
from binlake.target.claim.segments import ApplyResult, Hook, SegmentPlan, StatementSource, WriteAhead
from binlake.target.ddl.intents import apply_ddl
from binlake.target.definitions.definitions import Expected, drift, losing_tables, losses, read
from binlake.target.session.session import Session
from binlake.target.session.stopping import StopFlag
from binlake.window.manifest import ApplyManifest

log = structlog.get_logger()


def apply_window(
    target: Target,
    manifest: ApplyManifest,
    source: StatementSource,
    *,
    hook: Hook | None = None,
    stop: StopFlag | None = None,
    marks: Marks | None = None,
    relay: WriteAhead | None = None,
) -> ApplyResult:
    """Bring the window of `manifest` downstream; call it again until it returns. `marks`: with loopback control.

    `relay` is given the window before the first write of it, and notified when it is downstream.

    Raises LeaseHeld, TargetUnavailable, TargetBusy, Transient (asked to stop): try again. Raises CheckpointConflict,
    Fenced, Drift, TargetRefused, Permanent: an operator must act. The checkpoint has moved only over whole segments.
    """
    started = time.monotonic()
    plans = source.segments()
    _require_tiled(plans, manifest)
    with stop or StopFlag() as flag:
        run = ApplyRun(target, manifest, flag, hook, marks)
        try:
            result = _apply(run, source, plans, relay)
        finally:
            run.end()
    result.seconds = time.monotonic() - started
    log.info("window_applied", window=manifest.window, state=result.state, rows=result.rows, seconds=result.seconds)
    return result


def _apply(run: ApplyRun, source: StatementSource, plans: list[SegmentPlan], relay: WriteAhead | None) -> ApplyResult:
    manifest = run.manifest
    run.prepare()
    if not is_applied(run):
        run.claim()
    # Again behind the claim: another process may have finished the window in between.
    if is_applied(run):
        return ApplyResult("already", manifest.lo, manifest.hi)
    if relay is not None:
        relay.write_ahead(manifest, source, run.check)
    if open_or_resume(run):
        require_complete(run, source, plans)
    else:
        # What a window before left when its end was cut off; of an open window they are needed.
        drop_copies(run)
    result = ApplyResult("applied", manifest.lo, manifest.hi)
    for plan in plans[run.progress.segment :]:
        while not _try_segment(run, source, plan, result, last=plan is plans[-1]):
            log.warning("segment_repeated", window=manifest.window, segment=plan.number, aside=len(run.aside))
    result.aside = [table.to_dict() for table in run.aside.values()]
    result.put_aside = [table.to_dict() for table in run.put_aside]
    if any(plan.copies for plan in plans):
        drop_copies(run)
    if run.target.db_type == "tidb":
        _note_secondary_ts(run)
    run.passed("closed")
    if relay is not None:
        relay.applied(manifest.hi)
    return result


def _try_segment(run: ApplyRun, source: StatementSource, plan: SegmentPlan, result: ApplyResult, *, last: bool) -> bool:
    """False when a table stood in the way and was set aside: what is stored of the segment is known, so try again."""
    try:
        _apply_segment(run, source, plan, result, last=last)
    except BinlakeError as error:
        if not put_aside_for(run, error):
            raise
        return False
    return True


def _apply_segment(
    run: ApplyRun, source: StatementSource, plan: SegmentPlan, result: ApplyResult, *, last: bool
) -> None:
    if plan.ddl is not None:
        outcome = apply_ddl(run, plan, plan.ddl)
        result.ddls += outcome.executed
        result.replaced += outcome.executed and plan.ddl.kind == REPLACED
        result.injected += outcome.executed and plan.ddl.kind == INJECTED
        result.ignored += outcome.ignored
        result.passed_over += outcome.passed_over
    _require_expected(run, plan)
    make_copies(run, plan)
    mode = mode_of(run.target, plan)
    counts = rows_applier(mode)(run, source, plan, last=last)
    result.modes[mode] = result.modes.get(mode, 0) + 1
    result.segments += 1
    result.tables |= {name for name in plan.tables if not is_aside(run.aside, name)}
    result.passed_over += counts.passed_over
    result.rows += counts.rows
    result.batches += counts.batches


def _require_expected(run: ApplyRun, plan: SegmentPlan) -> None:
    """Tables that get rows, and those a DDL has just changed, are as the plan supposes (R-13, R-18). Raises Drift."""
    after = plan.expected_after.tables if plan.ddl is not None and plan.expected_after is not None else {}
    getting = plan.expected.tables if plan.expected is not None else {}
    tables = {name: form for name, form in after.items() if form is not None} | {**getting}
    expected = Expected(tables={name: form for name, form in tables.items() if not is_aside(run.aside, name)})
    actual = read(run.session, expected.names, run.target.db_type)
    found = losses(run.target, expected, actual)
    if found:
        error = drift(found, {"window": run.manifest.window, "segment": plan.number})
        error.tables = tuple(losing_tables(run.target, expected, actual))
        raise error


def _require_tiled(plans: list[SegmentPlan], manifest: ApplyManifest) -> None:
    """Segments are numbered from 0, end ascending between lo and hi, and the last one ends at hi."""
    numbers = [plan.number for plan in plans]
    ends = [manifest.lo, *(plan.end_ts for plan in plans)]
    rising = all(a <= b for a, b in itertools.pairwise(ends))
    if numbers != list(range(manifest.segments)) or not rising or ends[-1] != manifest.hi:
        raise CheckpointConflict(
            "the segments that were read are not those of the manifest",
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
