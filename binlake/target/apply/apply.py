"""Applies one pinned window under the claim, exactly once, with a checkpoint that is correct at every moment.

The order: claim the target; open the window, which starts at the checkpoint or is exactly the one that is open; apply
each segment's DDL and then its rows; and finally set consistent=true. An interrupted apply resumes from the state
stored in the target. Sources: DESIGN 4, invariants 7 to 11; hazards R-01 to R-61; MISSION S3-05.

Copies of rows are tables next to the ledger, whose rows are written by ordinary batches with ledger rows (R-12); they
are made and dropped outside a transaction, and both may be repeated.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Protocol

import structlog

from binlake.config.servers import TargetSection
from binlake.errors import BinlakeError, CheckpointConflict, ConfigError
from binlake.statements.batch import INJECTED, REPLACED, Phase
from binlake.statements.literal import quote_qualified_name
from binlake.statements.render import format_copy_prefix
from binlake.target.apply import modes
from binlake.target.apply.batches import SegmentCounts
from binlake.target.apply.position import read_exit_point
from binlake.target.claim.checkpoint import Checkpoint, CheckpointTable, is_aside
from binlake.target.claim.claim import ApplyRun, TargetClaim
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
from binlake.target.claim.writers import LoopbackMarks
from binlake.target.ddl.intents import apply_ddl
from binlake.target.definitions.definitions import (
    ExpectedState,
    build_drift_error,
    find_losing_tables,
    find_losses,
    read_definitions,
)
from binlake.target.segments import ApplyResult, Hook, SegmentPlan, StatementSource, WriteAhead, is_within
from binlake.target.session.session import StatementKiller, StopFlag, TargetSession
from binlake.target.session.tables import create_tables
from binlake.window.manifest import ApplyManifest

_OTHER_SCHEMA = "set another target.checkpoint-schema for this replication, or run `binlake checkpoint adopt`"
log = structlog.get_logger()
_APPLIERS: dict[str, _RowsApplier] = {
    "atomic": modes.apply_atomically,
    "parallel": modes.apply_in_parallel,
    "ordered": modes.apply_in_order,
}


def build_copies(run: ApplyRun, plan: SegmentPlan) -> None:
    """Create an empty copy of each table whose rows `plan` keeps, unless it exists already or is set aside."""
    without = {quote_qualified_name(db, table) for db, table in plan.tables if is_aside(run.aside, (db, table))}
    for copy, table in plan.copies:
        if table not in without:
            run.claim.prove()
            run.session.execute(f"CREATE TABLE IF NOT EXISTS {copy} LIKE {table}")


def drop_copies(run: ApplyRun) -> None:
    """Drop every copy of this replication. Call it only when no copy is needed any more."""
    prefix = format_copy_prefix(run.manifest.replication)
    sql = "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND LEFT(TABLE_NAME, %s) = %s"
    for name in run.session.fetch_column(sql, (run.schema, len(prefix), prefix)):
        run.claim.prove()
        run.session.execute(f"DROP TABLE IF EXISTS {quote_qualified_name(run.schema, name)}")


class _RowsApplier(Protocol):
    """Applies a segment's rows and moves the checkpoint to its end; `last` closes the window."""

    def __call__(self, run: ApplyRun, source: StatementSource, plan: SegmentPlan, *, last: bool) -> SegmentCounts:
        """The rows and batches that this call applied."""


def apply_window(
    target: TargetSection,
    manifest: ApplyManifest,
    source: StatementSource,
    *,
    hook: Hook | None = None,
    stop: StopFlag | None = None,
    marks: LoopbackMarks | None = None,
    relay: WriteAhead | None = None,
) -> ApplyResult:
    """Apply the window of `manifest`; retry until it returns. `marks`: given with loopback control.

    `relay` stores the window before its first write, and deletes it once the window is downstream.

    Raises LeaseHeld, TargetUnavailable, TargetBusy, Transient (asked to stop): try again. Raises CheckpointConflict,
    Fenced, Drift, TargetRefused, Permanent: an operator must act. On an error the checkpoint has moved only over whole
    segments.
    """
    started = time.monotonic()
    plans = source.list_segments()
    _require_tiled(plans, manifest)
    result = ApplyResult("already", manifest.lo, manifest.hi)
    with stop or StopFlag() as flag, closing(TargetSession(target)) as session:
        create_tables(session, target.checkpoint_schema)
        if marks is not None:
            marks.create_table(session)
        if not is_window_applied(session, target.checkpoint_schema, manifest):
            claim = TargetClaim(session, target, manifest.replication, stop=flag, hook=hook, marks=marks)
            with claim, StatementKiller(target, flag, claim.list_connections):
                # Checked again under the claim: another process may have finished the window in between.
                if not is_window_applied(claim.session, target.checkpoint_schema, manifest):
                    result = _apply(ApplyRun(claim, manifest), source, plans, relay)
    result.seconds = time.monotonic() - started
    counted = {"rows": result.rows, "absent": result.absent, "seconds": result.seconds}
    log.info("window_applied", window=manifest.window, state=result.state, **counted)
    return result


def _apply(run: ApplyRun, source: StatementSource, plans: list[SegmentPlan], relay: WriteAhead | None) -> ApplyResult:
    manifest = run.manifest
    if relay is not None:
        relay.write_ahead(manifest, source, run.claim.check)
    if open_or_resume(run):
        require_complete_ledger(run, source, plans)
    else:
        # Copies left by an earlier window that was interrupted at its end. A resumed window still needs its copies.
        drop_copies(run)
    result = ApplyResult("applied", manifest.lo, manifest.hi)
    for plan in plans[run.progress.segment :]:
        while not _try_segment(run, source, plan, result, last=plan is plans[-1]):
            log.warning("segment_repeated", window=manifest.window, segment=plan.number, aside=len(run.aside))
    result.aside = [table.to_dict() for table in run.aside.values()]
    result.newly_aside = [table.to_dict() for table in run.newly_aside]
    if any(plan.copies for plan in plans):
        drop_copies(run)
    if run.target.db_type == "tidb":
        _note_secondary_ts(run)
    run.claim.notify("closed")
    if relay is not None:
        relay.delete_applied(manifest.hi)
    return result


def _try_segment(run: ApplyRun, source: StatementSource, plan: SegmentPlan, result: ApplyResult, *, last: bool) -> bool:
    """Apply a segment. False if a failing table was set aside: repeat it; the ledger knows what is stored already."""
    try:
        _apply_segment(run, source, plan, result, last=last)
    except BinlakeError as error:
        if not run.set_aside_after(error):
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
    build_copies(run, plan)
    mode = choose_mode(run.target, plan)
    counts = _choose_rows_applier(mode)(run, source, plan, last=last)
    result.modes[mode] = result.modes.get(mode, 0) + 1
    result.segments += 1
    result.tables |= {name for name in plan.tables if not is_aside(run.aside, name)}
    result.passed_over += counts.passed_over
    result.rows += counts.rows
    result.absent += counts.absent
    result.batches += counts.batches


def choose_mode(target: TargetSection, plan: SegmentPlan) -> str:
    """The mode for the rows of `plan`: `auto` is atomic within the limits and parallel above them (hazards R-30).

    Only statements derived for mode ordered are applied in that mode, whatever the configuration says now.
    """
    if plan.ordered:
        return "ordered"
    if target.mode not in ("auto", "ordered"):
        return target.mode
    return "atomic" if is_within(target, plan.rows or 0, plan.bytes or 0) else "parallel"


def _choose_rows_applier(mode: str) -> _RowsApplier:
    """The function that applies rows in `mode`. Raises ConfigError for a mode that this build does not have."""
    applier = _APPLIERS.get(mode)
    if applier is None:
        raise ConfigError(f'target.mode = "{mode}" is not in this build', hint=f"one of: {', '.join(_APPLIERS)}, auto")
    return applier


def _require_expected(run: ApplyRun, plan: SegmentPlan) -> None:
    """Require the planned definition of each table that gets rows or had a DDL (R-13, R-18). Raises Drift."""
    after = plan.expected_after.tables if plan.expected_after is not None else {}
    getting = plan.expected.tables if plan.expected is not None else {}
    tables = {name: form for name, form in after.items() if form is not None} | {**getting}
    expected = ExpectedState(tables={name: form for name, form in tables.items() if not is_aside(run.aside, name)})
    actual = read_definitions(run.session, expected.names, run.target.db_type)
    losses = find_losses(run.target, expected, actual)
    if losses:
        error = build_drift_error(losses, {"window": run.manifest.window, "segment": plan.number})
        error.tables = tuple(find_losing_tables(run.target, expected, actual))
        raise error


def _require_tiled(plans: list[SegmentPlan], manifest: ApplyManifest) -> None:
    """Require segments numbered from 0, with ascending ends between lo and hi, the last one at hi."""
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
    """Write ts-map: the target's own timestamp after the window's last row is committed (MISSION S3-07)."""
    # The first two columns are File and Position.
    status = next(iter(run.session.fetch_rows("SHOW MASTER STATUS")), None)
    if status is None:
        return
    ts_map = {"primary-ts": run.manifest.hi, "secondary-ts": int(status[1])}

    def write_ts_map(session: TargetSession) -> Mapping[str, int]:
        run.checkpoints.write(session, replace(run.lock_unmoved_checkpoint(session), ts_map=ts_map))
        return ts_map

    # The progress row does not change: only the checkpoint shows whether a COMMIT with a lost answer is stored.
    run.claim.transact(write_ts_map, lambda session, noted: run.lock_unmoved_checkpoint(session).ts_map == noted)


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
