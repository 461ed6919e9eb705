"""convert: turns net changes and DDL into SQL for the target, by segment, phase and batch; seals the apply manifest.

The rows are a pure function of `change` (in mode ordered of `mutation`), `ddl` and the definitions of each segment. The
manifest pins their digests and the target's definitions. It is written only for the window at the checkpoint, the only
one that may be applied (R-16, R-18, R-62).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import astuple, replace

import structlog

from binlake.common import rowhash
from binlake.config.servers import TargetSection
from binlake.errors import CheckpointConflict, ImmutableWindow, TargetRefused
from binlake.lake.opentable import open_known
from binlake.lake.tables import CHANGE, STATEMENT
from binlake.lake.windowlog import WindowEvent
from binlake.pipeline import BY_NAME
from binlake.spark_jobs.engine.engine import HELD_BYTES, Keeper
from binlake.spark_jobs.job.context import Bounds, StageContext, StageResult
from binlake.spark_jobs.job.lake import replace_window
from binlake.spark_jobs.shared.batches import render_net_statements, render_ordered_statements
from binlake.spark_jobs.shared.nextwindow import find_next_start, is_next, read_cluster_id, read_target_position
from binlake.spark_jobs.shared.rendered import Rendered, derive_net_again, render_again, write_statements
from binlake.spark_jobs.shared.sinks import SinkWindow, commit_note
from binlake.spark_jobs.shared.sqlwindow import NO_ROWS, Compacted, Converted, read_compacted, require_pinned
from binlake.spark_jobs.shared.statements import LakeStatements, RenderedBatch, read_statements
from binlake.statements import BatchLimits, StatementBatch
from binlake.statements.batch import compute_digest_of_index
from binlake.target import TargetSession
from binlake.target.apply.preflight import build_reports, find_stopping_reports, list_tables, require_fit
from binlake.target.claim.checkpoint import is_aside, may_pass_refused
from binlake.target.definitions.definitions import digest_definitions, require_definitions
from binlake.target.definitions.forms import Name
from binlake.window.cuts import (
    build_ddl_batch,
    build_refusing_batch,
    find_columns_from_log,
    name_merge_commands,
    require_pinned_cuts,
    require_pinned_texts,
)
from binlake.window.derived import CompactManifest
from binlake.window.manifest import ApplyManifest, format_window_name

log = structlog.get_logger(__name__)


def run(ctx: StageContext, bounds: Bounds, given: Compacted | Converted | None = None) -> StageResult:
    """Derive `statement` of the sink's window and, if the window is next, seal its manifest. Raises BinlakeError.

    `given`: from compact in this process, which has asked the target where it is.
    """
    began = time.monotonic()
    ctx.replication.require_sql_target(hint="add a section [target], or do not run convert")
    position = read_target_position(ctx, bounds) if given is None else given.position
    with ctx.hold_lock(BY_NAME["convert"].lock):
        given = read_compacted(ctx, bounds, position) if given is None else given
        derived = _use_given(ctx, given)
        manifest, is_new = _seal(ctx, derived)
    seconds = time.monotonic() - began + derived.seconds_ahead
    state, statements = "done" if is_new else "already", derived.statements
    detail: dict[str, object] = {"batches": statements.count, "ddl": derived.ddls, "ddl_skipped": derived.skipped}
    detail |= ctx.describe_work(derived.cpu_ahead_s)
    event = WindowEvent("convert", bounds.lo, bounds.hi, state, statements.rows, seconds, ctx.run_id, "sql")
    ctx.windows.record(replace(event, detail=detail, manifest=manifest.to_json() if manifest and is_new else ""))
    # finalize needs no rows but the statements, and the next window is derived while it runs.
    compacted = replace(derived.compacted, net=None, merged=None, ahead=None)
    derived = replace(derived, compacted=compacted, manifest=manifest)
    return StageResult("convert", state, bounds.lo, bounds.hi, statements.rows, seconds, "", detail, derived)


def derive_ahead(ctx: StageContext, compacted: Compacted) -> Converted:
    """Derive `statement` for a target that will be where `compacted` says; `run` seals it. Raises as `run`."""
    began = time.monotonic()
    with ctx.hold_lock(BY_NAME["convert"].lock):
        derived = _derive(ctx, compacted)
        versions = _read_versions(ctx, derived)
    spent = 0.0 if ctx.cpu is None else ctx.cpu.take_s()
    return replace(derived, versions=versions, seconds_ahead=time.monotonic() - began, cpu_ahead_s=spent)


def _use_given(ctx: StageContext, given: Compacted | Converted) -> Converted:
    """What was derived ahead, unless another process has written to its tables since; else derive it."""
    if isinstance(given, Converted):
        return given if given.versions == _read_versions(ctx, given) else _derive(ctx, given.compacted)
    return _derive(ctx, given)


def _read_versions(ctx: StageContext, derived: Converted) -> tuple[int, ...]:
    """The newest versions of the tables that have the rows of `derived`, which another process may replace."""
    in_lake = ((CHANGE, not derived.compacted.manifest.change), (STATEMENT, not derived.limits))
    return tuple(open_known(ctx.paths.locate_table(table.name)).version() for table, is_there in in_lake if is_there)


def _derive(ctx: StageContext, given: Compacted) -> Converted:
    """Write the statements to the lake. Those of an open window are there already, or must come out the same."""
    window, pinned, target = given.window, given.pinned, ctx.replication.require_sql_target()
    if pinned is None:
        _require_compacted(given.manifest, window, target)
    else:
        require_pinned_cuts(pinned, window.segments.starts)
        if pinned.limits:
            net = given.net or derive_net_again(ctx, window, given.manifest, pinned.change)
            again = read_statements(ctx, window, target, render_again(ctx, window, target, pinned, net).held)
            return Converted(given, "", again, pinned.safe_mode, 0, 0, limits=pinned.limits)
    ddls, skipped = _build_ddl_batches(ctx, window, target, given.position.aside)
    if pinned is not None:
        statements = read_statements(ctx, window, target)
        if statements.compute_digest() == pinned.statement:
            require_pinned_texts(window.cuts, ddls, statements.list_ddls())
            return Converted(given, "", statements, pinned.safe_mode, len(ddls), skipped)
    forms = _choose_forms(ctx, given)
    change, held, limits = _write(ctx, given, ddls, target, plain=forms == "plain")
    statements = read_statements(ctx, window, target, held)
    return Converted(given, change, statements, forms, len(ddls), skipped, limits=limits)


def _choose_forms(ctx: StageContext, given: Compacted) -> str:
    """`safe` or `plain`: as sealed for a window that is open or applied, else as the target needs it now."""
    if given.pinned is not None:
        return given.pinned.safe_mode
    bounds, position = given.window.bounds, given.position
    written = ctx.windows.read_apply_manifests(bounds.lo, bounds.hi)
    passed = position.commit_ts is not None and bounds.hi <= position.commit_ts
    return written[-1].safe_mode if passed and written else position.forms


def _write(
    ctx: StageContext, given: Compacted, ddls: list[StatementBatch], target: TargetSection, *, plain: bool
) -> tuple[str, Sequence[RenderedBatch] | None, tuple[int, ...]]:
    """Write the rows (which must match the pinned ones, if any), unless only this process needs them.

    Returns the digest of `change`, the batches if this process has them, and the limits of `ApplyManifest`.
    """
    window, pinned = given.window, given.pinned
    bounds, folder = window.bounds, ctx.paths.locate_table(STATEMENT.name)
    engine = ctx.choose_engine_for(bounds)
    limits = BatchLimits.of(target.batch_rows, given.position.max_packet)
    leaves_out = not ddls and _may_leave_out(ctx, given)
    if target.mode == "ordered":
        # This mode applies every change, so `change` has no rows of this window.
        rendered = render_ordered_statements(ctx, engine, given, target, limits, safe=not plain)
        change = NO_ROWS
    else:
        rendered = render_net_statements(ctx, engine, given, target, limits, plain=plain, leaves_out=leaves_out)
        _require_rows(given.manifest, rendered.change.count)
        change = rowhash.compute_digest(rendered.change)
    if leaves_out and not rendered.parts:
        if ctx.windows.read_apply_manifests(bounds.lo, bounds.hi):
            replace_window(ctx.paths, STATEMENT, bounds.window, (), commit_note(ctx, "convert", bounds))
        return change, rendered.held, astuple(limits)
    made = Rendered.join([rendered, write_statements(bounds.window, [ddls], folder, Keeper(HELD_BYTES))])
    if pinned is not None:
        require_pinned(STATEMENT.name, bounds, pinned.statement, compute_digest_of_index(made.index.to_pylist()))
    replace_window(ctx.paths, STATEMENT, bounds.window, made.parts, commit_note(ctx, "convert", bounds))
    return change, made.held, ()


def _may_leave_out(ctx: StageContext, given: Compacted) -> bool:
    """Whether the statements need not be in the lake: this process has the rows, and applies them next."""
    held = given.net is not None and given.net.is_held
    wanted = held and given.pinned is None and STATEMENT.name not in ctx.replication.lake.keep
    return wanted and is_next(ctx, given.window.bounds, given.position)


def _build_ddl_batches(
    ctx: StageContext, window: SinkWindow, target: TargetSection, aside: Collection[Name]
) -> tuple[list[StatementBatch], int]:
    """(the DDL of each segment that has one, how many are left out: by the dialect, or for the operator to run)."""
    batches, skipped = [], 0
    for segment, ddl in enumerate(window.cuts, 1):
        try:
            batch, reason = build_ddl_batch(segment, ddl, target.db_type)
        except TargetRefused as error:
            if not may_pass_refused(ddl.tables, target.on_table_error, aside):
                again = name_merge_commands(ctx.windows.list_landed((ddl.commit_ts - 1, ddl.commit_ts)))
                error.hint += (
                    f"; after each of these, also to change the choice, run {again}, which decides about it again, and"
                    " then `binlake window run`; or let the other tables continue: `binlake table aside`, then"
                    " `binlake window run`"
                )
                raise
            log.warning("ddl_has_no_statement", commit_ts=str(ddl.commit_ts), error=str(error))
            batch, reason = build_refusing_batch(segment, ddl, error.message), ""
        if batch is None:
            skipped += 1
            log.info("ddl_skipped", commit_ts=str(ddl.commit_ts), reason=reason, query=ddl.query[:200])
            continue
        batches.append(batch)
        for table, names in find_columns_from_log(ddl, target.db_type).items():
            log.info("generated_columns_from_log", commit_ts=str(ddl.commit_ts), table=table, columns=names)
    return batches, skipped


def _seal(ctx: StageContext, derived: Converted) -> tuple[ApplyManifest | None, bool]:
    """(the manifest that pins the statements, whether it must be written); None for a window that is passed."""
    given = derived.compacted
    if given.pinned is not None:
        return given.pinned, False
    bounds, position = given.window.bounds, given.position
    opened = position.window
    start = find_next_start(ctx, position)
    if bounds.hi <= (start if opened is None else opened[0]):
        return None, False
    if opened is not None or start != bounds.lo:
        state = f"holds the window {format_window_name(*opened)} open" if opened else f"is at {start}"
        raise CheckpointConflict(
            f"the window is not the next one: the target {state}",
            where={"window": bounds.window},
            hint="run compact again: it starts the window at the checkpoint",
        )
    if position.commit_ts is None:
        _check_before_first(ctx, given, ctx.replication.require_sql_target())
    manifest = _build_manifest(ctx, derived)
    written = ctx.windows.read_apply_manifests(bounds.lo, bounds.hi)
    return manifest, not written or manifest != written[-1]


def _check_before_first(ctx: StageContext, given: Compacted, target: TargetSection) -> None:
    """Before a replication's first window, check all its tables, not only those that get rows. Raises Drift."""
    reports = build_reports(target, list_tables(ctx.replication, given.window.base))
    for report in reports:
        for warning in report.warnings:
            log.warning("preflight", table=f"{report.db}.{report.table}", warning=warning)
    # The differences of tables that are set aside stop nothing.
    require_fit(find_stopping_reports(target, reports, given.position.aside), {"window": given.window.bounds.window})


def _require_compacted(compacted: CompactManifest, window: SinkWindow, target: TargetSection) -> None:
    """Check that compact derived this window for this mode and these segments. Raises CheckpointConflict."""
    # Without this check an empty `change` would look like a window without changes.
    is_mode, is_cut = compacted.ordered == (target.mode == "ordered"), compacted.cuts == window.segments.starts
    if not (is_mode and is_cut):
        what = "for this target.mode" if not is_mode else "with the segments that `ddl` now gives it"
        raise CheckpointConflict(
            f"compact has not derived this window {what}",
            where={"window": compacted.window, "mode": target.mode},
            hint="run compact again, then convert",
        )


def _require_rows(compacted: CompactManifest, rows: int) -> None:
    """Check that `change` has as many rows as compact wrote. Raises ImmutableWindow."""
    if rows != compacted.rows:
        raise ImmutableWindow(
            "`change` does not have the rows that compact wrote",
            where={"window": compacted.window, "sealed": compacted.rows, "there": rows},
            hint="run compact again for this window, then convert; or restore `change` by Delta time travel",
        )


def _build_manifest(ctx: StageContext, derived: Converted) -> ApplyManifest:
    given, statements = derived.compacted, derived.statements
    window = given.window
    bounds = window.bounds
    return ApplyManifest(
        replication=ctx.replication.name,
        sink="sql",
        cluster_id=read_cluster_id(ctx, bounds),
        lo=bounds.lo,
        hi=bounds.hi,
        config_hash=ctx.replication.compute_data_hash(),
        safe_mode=derived.forms,
        definitions=_digest_target_definitions(given, statements, ctx.replication.require_sql_target()),
        change=derived.change,
        statement=statements.compute_digest(),
        segments=len(window.segments.starts) + 1,
        rows=statements.rows,
        schema_version=statements.list_segments()[-1].schema_version,
        cuts=window.segments.starts,
        windows=given.manifest.merged.windows,
        compact=given.manifest.compute_digest(),
        limits=derived.limits,
    )


def _digest_target_definitions(given: Compacted, statements: LakeStatements, target: TargetSection) -> str:
    """Check the tables that get rows before the first DDL, and digest all tables that the window touches (R-13, R-18).

    Tables that are set aside are not checked; none is if finalize sets differing tables aside itself.
    """
    window, plans = given.window, statements.list_segments()
    names = {name for plan in plans for name in (*plan.touched, *(plan.expected.names if plan.expected else ()))}
    first = plans[0].expected
    checked = [] if target.on_table_error == "set-aside" or first is None else first.names
    with_rows = [
        window.definitions.find_at(*name, window.bounds.lo)
        for name in checked
        if not is_aside(given.position.aside, name)
    ]
    with closing(TargetSession(target)) as session:
        require_definitions(session, target, [table for table in with_rows if table is not None])
        return digest_definitions(session, names)
