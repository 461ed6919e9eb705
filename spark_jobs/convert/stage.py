"""convert: turns net changes and DDL into SQL for the target, by segment, phase and batch; seals the apply manifest.

The rows are a pure function of `change` (in mode ordered of `mutation`), `ddl` and the definitions of each segment. The
manifest pins their digests and the target's definitions. It is written only for the window at the checkpoint, the only
one that may be applied (R-16, R-18, R-62).
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass, replace

import pyarrow as pa
import structlog

from binlake.base import rowhash
from binlake.config.model import Target
from binlake.errors import CheckpointConflict, ImmutableWindow, TargetRefused
from binlake.lake.opentable import open_table
from binlake.lake.tables import CHANGE, STATEMENT
from binlake.lake.windowlog import WindowEvent
from binlake.pipeline import BY_NAME
from binlake.statements import BatchLimits, StatementBatch
from binlake.statements.digests import compute_digest_of_index
from binlake.target import Position, Session
from binlake.target.claim.aside import is_aside, may_pass_refused
from binlake.target.definitions.definitions import digest_definitions, require_definitions
from binlake.target.definitions.forms import Name
from binlake.window.cuts import (
    find_columns_from_log,
    make_ddl_batch,
    make_refusing_batch,
    name_merge_commands,
    require_pinned_cuts,
    require_pinned_texts,
)
from binlake.window.derived import CompactManifest
from binlake.window.manifest import ApplyManifest, format_window_name
from spark_jobs.commands.preflight import check_before_first
from spark_jobs.convert.netstatements import Rendered, render_net_statements, write_statements
from spark_jobs.convert.ordered import render_ordered_statements
from spark_jobs.convert.render import Renderer
from spark_jobs.engine.engine import HELD_BYTES, Keeper
from spark_jobs.job.context import Bounds, StageContext, StageResult
from spark_jobs.job.lake import replace_window
from spark_jobs.tables.compacted import read_current, read_pinned
from spark_jobs.tables.pinned import (
    NO_ROWS,
    find_next_start,
    open_manifest,
    read_cluster_id,
    read_target_position,
    require_pinned,
)
from spark_jobs.tables.sinks import SinkWindow, commit_note, read_sql_window
from spark_jobs.tables.statements import LakeStatements, build_statement_table, read_statements

log = structlog.get_logger(__name__)


def run(ctx: StageContext, bounds: Bounds) -> StageResult:
    """Derive `statement` of the sink's window and, if the window is next, seal its manifest. Raises BinlakeError."""
    began = time.monotonic()
    target = ctx.replication.require_sql_target(hint="add a section [target], or do not run convert")
    position = read_target_position(ctx, bounds)
    with ctx.hold_lock(BY_NAME["convert"].lock):
        derived = _take_ahead(ctx, bounds, position) or _derive(ctx, bounds, target, position)
        sealed = _seal(ctx, derived) if derived.given.pinned is None else None
    seconds = time.monotonic() - began + derived.seconds_ahead
    state, statements = "done" if sealed else "already", derived.statements
    detail: dict[str, object] = {"batches": statements.count, "ddl": derived.ddls, "ddl_skipped": derived.skipped}
    detail |= ctx.describe_engine()
    event = WindowEvent("convert", bounds.lo, bounds.hi, state, statements.rows, seconds, ctx.run_id, "sql")
    ctx.windows.record(replace(event, detail=detail, manifest=sealed.to_json() if sealed else ""))
    return StageResult("convert", state, bounds.lo, bounds.hi, statements.rows, seconds, "", detail)


def derive_ahead(ctx: StageContext, bounds: Bounds, position: Position) -> None:
    """Derive `statement` of a window for a target that will be at `position`; `run` uses and seals it.

    compact must have derived the window ahead before. Raises as `run`.
    """
    began = time.monotonic()
    with ctx.hold_lock(BY_NAME["convert"].lock):
        derived = _derive(ctx, bounds, ctx.replication.require_sql_target(), position)
        versions = _read_versions(ctx)
    ahead = replace(derived, versions=versions, seconds_ahead=time.monotonic() - began)
    ctx.handover.put_ahead("convert", bounds, position, ahead)


def _take_ahead(ctx: StageContext, bounds: Bounds, position: Position) -> _Derived | None:
    """What was derived ahead, unless another process has written to its tables since. The caller holds the lock."""
    derived: _Derived | None = ctx.handover.take_ahead("convert", bounds, position)
    return derived if derived is not None and derived.versions == _read_versions(ctx) else None


def _read_versions(ctx: StageContext) -> tuple[int, ...]:
    """The newest versions of the tables that compact and convert write."""
    return tuple(open_table(ctx.paths.locate_table(table.name)).version() for table in (CHANGE, STATEMENT))


@dataclass(frozen=True)
class _Given:
    """The inputs of a window's statements; `pinned`: the window's manifest if the target holds it open."""

    window: SinkWindow
    target: Target
    compacted: CompactManifest
    pinned: ApplyManifest | None
    position: Position


@dataclass(frozen=True)
class _Derived:
    """The result for a window: the digest of its `change` (empty: unchanged since pinned), its statements, their form.

    `ddls`, `skipped`: how many DDL statements there are, and how many were left out. `versions`, `seconds_ahead`: set
    if it was derived ahead.
    """

    given: _Given
    change: str
    statements: LakeStatements
    forms: str
    ddls: int
    skipped: int
    versions: tuple[int, ...] = ()
    seconds_ahead: float = 0.0


def _derive(ctx: StageContext, bounds: Bounds, target: Target, position: Position) -> _Derived:
    """Write the statements to the lake. Those of an open window are there already, or must come out the same."""
    pinned = open_manifest(ctx, bounds, position)
    compacted = read_current(ctx, bounds) if pinned is None else read_pinned(ctx, pinned)
    window = read_sql_window(ctx, bounds, compacted.merged).with_shapes(compacted.shapes)
    if pinned is None:
        _require_compacted(compacted, window, target)
    else:
        require_pinned_cuts(pinned, window.segments.starts)
    ddls, skipped = _make_ddl_batches(ctx, window, target, position.aside)
    given = _Given(window, target, compacted, pinned, position)
    if pinned is not None:
        statements = read_statements(ctx, window, target)
        if statements.compute_digest() == pinned.statement:
            require_pinned_texts(window.cuts, ddls, statements.list_ddls())
            return _Derived(given, "", statements, pinned.safe_mode, len(ddls), skipped)
    forms = _choose_forms(ctx, window, position, pinned)
    change, rows = _write(ctx, given, ddls, plain=forms == "plain")
    return _Derived(given, change, read_statements(ctx, window, target, rows), forms, len(ddls), skipped)


def _choose_forms(ctx: StageContext, window: SinkWindow, position: Position, pinned: ApplyManifest | None) -> str:
    """`safe` or `plain`: as sealed for a window that is open or applied, else as the target needs it now."""
    if pinned is not None:
        return pinned.safe_mode
    bounds = window.bounds
    written = ctx.windows.read_apply_manifests(bounds.lo, bounds.hi)
    passed = position.commit_ts is not None and bounds.hi <= position.commit_ts
    return written[-1].safe_mode if passed and written else position.forms


def _write(ctx: StageContext, given: _Given, ddls: list[StatementBatch], *, plain: bool) -> tuple[str, pa.Table | None]:
    """Write the rows (which must match the pinned ones, if any).

    Returns the digest of `change`, and the rows if this process has them: finalize in it takes them from the handover.
    """
    window, target, pinned, merged = given.window, given.target, given.pinned, given.compacted.merged
    bounds, folder = window.bounds, ctx.paths.locate_table(STATEMENT.name)
    limits = BatchLimits.of(target.batch_rows, given.position.max_packet)
    engine = ctx.choose_engine_for(bounds)
    if target.mode == "ordered":
        # This mode applies every change, so `change` has no rows of this window.
        rendered = render_ordered_statements(ctx, engine, window, target, limits, safe=not plain)
        change = NO_ROWS
    else:
        renderer = Renderer(bounds.window, {}, target.db_type, limits, plain)
        rendered = render_net_statements(ctx, engine, window, target, merged, renderer)
        _require_rows(given.compacted, rendered.change.count)
        change = rowhash.compute_digest(rendered.change)
    made = Rendered.join(
        [rendered, write_statements([build_statement_table(bounds.window, ddls)], folder, Keeper(HELD_BYTES))]
    )
    if pinned is not None:
        require_pinned(STATEMENT.name, bounds, pinned.statement, compute_digest_of_index(made.index.to_pylist()))
    replace_window(ctx.paths, STATEMENT, bounds.window, made.parts, commit_note(ctx, "convert", bounds))
    ctx.handover.put("statement", bounds, made.rows)
    return change, made.rows


def _make_ddl_batches(
    ctx: StageContext, window: SinkWindow, target: Target, aside: Collection[Name]
) -> tuple[list[StatementBatch], int]:
    """(the DDL of each segment that has one, how many are left out: by the dialect, or for the operator to run)."""
    batches, skipped = [], 0
    for segment, ddl in enumerate(window.cuts, 1):
        try:
            batch, reason = make_ddl_batch(segment, ddl, target.db_type)
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
            batch, reason = make_refusing_batch(segment, ddl, error.message), ""
        if batch is None:
            skipped += 1
            log.info("ddl_skipped", commit_ts=str(ddl.commit_ts), reason=reason, query=ddl.query[:200])
            continue
        batches.append(batch)
        for table, names in find_columns_from_log(ddl, target.db_type).items():
            log.info("generated_columns_from_log", commit_ts=str(ddl.commit_ts), table=table, columns=names)
    return batches, skipped


def _seal(ctx: StageContext, derived: _Derived) -> ApplyManifest | None:
    """The manifest to write if the window is the next one and not yet sealed with it; None = nothing to seal."""
    given = derived.given
    bounds, position = given.window.bounds, given.position
    opened = position.window
    start = find_next_start(ctx, position)
    if bounds.hi <= (start if opened is None else opened[0]):
        return None
    if opened is not None or start != bounds.lo:
        state = f"holds the window {format_window_name(*opened)} open" if opened else f"is at {start}"
        raise CheckpointConflict(
            f"the window is not the next one: the target {state}",
            where={"window": bounds.window},
            hint="run compact again: it starts the window at the checkpoint",
        )
    if position.commit_ts is None:
        check_before_first(ctx, given.target, bounds, position.aside)
    manifest = _build_manifest(ctx, derived)
    written = ctx.windows.read_apply_manifests(bounds.lo, bounds.hi)
    return None if written and manifest == written[-1] else manifest


def _require_compacted(compacted: CompactManifest, window: SinkWindow, target: Target) -> None:
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


def _build_manifest(ctx: StageContext, derived: _Derived) -> ApplyManifest:
    given, statements = derived.given, derived.statements
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
        definitions=_digest_target_definitions(given, statements),
        change=derived.change,
        statement=statements.compute_digest(),
        segments=len(window.segments.starts) + 1,
        rows=statements.rows,
        schema_version=statements.list_segments()[-1].schema_version,
        cuts=window.segments.starts,
        windows=given.compacted.merged.windows,
        compact=given.compacted.compute_digest(),
    )


def _digest_target_definitions(given: _Given, statements: LakeStatements) -> str:
    """Check the tables that get rows before the first DDL, and digest all tables that the window touches (R-13, R-18).

    Tables that are set aside are not checked; none is if finalize sets differing tables aside itself.
    """
    window, target, plans = given.window, given.target, statements.list_segments()
    names = {name for plan in plans for name in (*plan.touched, *(plan.expected.names if plan.expected else ()))}
    first = plans[0].expected
    checked = [] if target.on_table_error == "set-aside" or first is None else first.names
    with_rows = [
        window.definitions.find_at(*name, window.bounds.lo)
        for name in checked
        if not is_aside(given.position.aside, name)
    ]
    with closing(Session(target)) as session:
        require_definitions(session, target, [table for table in with_rows if table is not None])
        return digest_definitions(session, names)
