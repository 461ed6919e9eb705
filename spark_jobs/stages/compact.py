"""compact: the net change of each key and segment for the SQL sink; it also decides the sink's window.

It is a pure function of merged windows: a rerun at any time writes the same rows again. The window that the target
holds open is pinned (hazards R-16). Otherwise the window starts at the checkpoint and ends where a landed window ends.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from binlake.common import rowhash
from binlake.config.servers import TargetSection
from binlake.ddl.definitions import (
    Cell,
    SegmentTable,
    Shapes,
    build_cell,
    require_definition,
)
from binlake.errors import ImmutableWindow
from binlake.lake.tables import CHANGE, STATEMENT
from binlake.lake.targetevents import record_position_return
from binlake.lake.windowlog import WindowEvent
from binlake.pipeline import BY_NAME
from binlake.spark_jobs.engine.engine import Engine, RowStore
from binlake.spark_jobs.engine.rows import list_window_rows
from binlake.spark_jobs.job.context import Bounds, StageContext, StageResult
from binlake.spark_jobs.job.lake import replace_window
from binlake.spark_jobs.job.pieces import CannotDeriveAhead, DerivedAhead, MergedWindow
from binlake.spark_jobs.shared.baserows import BaseBlock, find_base_blocks
from binlake.spark_jobs.shared.netchange import (
    HoldGroup,
    NetRows,
    WindowNetChange,
    WriteGroup,
    count_groups,
    find_key_arrivals,
)
from binlake.spark_jobs.shared.nextwindow import (
    choose_window,
    find_waiting_ddl,
    is_next,
    read_target_position,
)
from binlake.spark_jobs.shared.render import Renderer
from binlake.spark_jobs.shared.rendered import RenderedAhead, build_renderer, may_leave_out, write_groups
from binlake.spark_jobs.shared.sharedkeys import find_shared_tables, require_own_keys
from binlake.spark_jobs.shared.sinks import (
    SinkWindow,
    WindowChanges,
    commit_note,
    read_sql_window,
    read_window_changes,
    require_merged,
)
from binlake.spark_jobs.shared.sqlwindow import (
    Compacted,
    compute_rows_digest,
    may_differ,
    open_manifest,
    read_sealed_before,
    read_sealed_shapes,
    read_shapes,
    require_pinned,
    was_derived,
)
from binlake.statements import BatchLimits
from binlake.target import TargetPosition
from binlake.target.claim.checkpoint import is_aside
from binlake.window.cuts import require_pinned_cuts
from binlake.window.derived import CompactManifest, Merged
from binlake.window.manifest import ApplyManifest

log = structlog.get_logger(__name__)

_HOTTEST = 10
"""Tables whose row changes are recorded with a window: those with most."""


def run(ctx: StageContext, bounds: Bounds, given: MergedWindow | DerivedAhead | None = None) -> StageResult:
    """Derive `change` for the sink's window that ends at or before `bounds.hi`. Raises BinlakeError.

    `given`: the rows of `bounds`, or what was derived of it ahead, which counts if the target is as expected.
    """
    target = ctx.replication.require_sql_target(hint="add a section [target], or do not run compact")
    position = read_target_position(ctx, bounds)
    record_position_return(ctx.windows, position.commit_ts, ctx.run_id)
    if isinstance(given, DerivedAhead):
        if (given.merged.bounds, given.position) == (bounds, position):
            return given.result
        given = given.merged
    return _derive_window(ctx, bounds, target, position, given)


def find_position_after(ctx: StageContext, window: Bounds) -> TargetPosition | None:
    """The target's position once `window` is applied; None if `window` is not the target's next one.

    Raises CheckpointConflict, TargetUnavailable.
    """
    position = read_target_position(ctx, window)
    is_next = position.commit_ts in (None, window.lo)
    return position.compute_after_window(ctx.replication.require_sql_target(), window.hi) if is_next else None


def derive_ahead(
    ctx: StageContext, bounds: Bounds, position: TargetPosition, given: MergedWindow | None
) -> StageResult:
    """Derive `change` of a window for a target that will be at `position`, without asking it.

    Raises CannotDeriveAhead, and as `run`.
    """
    target = ctx.replication.require_sql_target()
    if may_differ(target):
        raise CannotDeriveAhead("the target's tables may differ from the source's")
    return _derive_window(ctx, bounds, target, position, given, is_ahead=True)


def find_hottest(touched: Counter[SegmentTable]) -> list[tuple[str, int]]:
    """The tables with most row changes, and how many; for the page of the replication."""
    by_table: Counter[str] = Counter()
    for place, count in touched.items():
        by_table[".".join(place.name)] += count
    return sorted(by_table.items(), key=lambda one: (-one[1], one[0]))[:_HOTTEST]


@dataclass(frozen=True)
class _Plan:
    """How a window is derived: what is known of it, and what follows from that before its rows are read.

    `following`: the target is at lo and holds no window open. `left_out`: only the digest of `change` is sealed, not
    its rows written. `holds`: this process has the rows of the window. `mutated`: its row changes; None in mode
    ordered, in which every change counts, and convert reads them from `mutation`.
    """

    ctx: StageContext
    target: TargetSection
    position: TargetPosition
    given: MergedWindow | None
    merged: Merged
    window: SinkWindow
    shapes: Shapes
    pinned: ApplyManifest | None
    earlier: CompactManifest | None
    engine: Engine
    groups: int
    following: bool
    ordered: bool
    left_out: bool
    holds: bool
    mutated: WindowChanges | None
    touched: Counter[SegmentTable]

    @property
    def derived(self) -> list[SegmentTable]:
        """The tables whose net changes are derived, by segment."""
        return sorted(self.touched) if self.mutated else []


@dataclass(frozen=True)
class _Changes:
    """The net changes of a window: their number, and what a later stage of this process gets of them.

    `unknown`: how many keys of shared tables have an unknown owner. `base`: the rows were their own net changes.
    """

    rows: int
    written: NetRows | None = None
    ahead: RenderedAhead | None = None
    unknown: int = 0
    base: bool = False


def _derive_window(
    ctx: StageContext,
    bounds: Bounds,
    target: TargetSection,
    position: TargetPosition,
    given: MergedWindow | None,
    *,
    is_ahead: bool = False,
) -> StageResult:
    began = time.monotonic()
    wanted = choose_window(ctx, bounds, position, target, given)
    if wanted is None:
        return StageResult("compact", "skipped", bounds.lo, bounds.hi, detail={"reason": "the target is past it"})
    merged = require_merged(ctx, wanted.lo, wanted.hi, given)
    with ctx.hold_lock(BY_NAME["compact"].lock):
        plan = _plan_window(ctx, wanted, target, position, merged, given)
        changes = _derive_changes(plan, is_ahead=is_ahead)
    sealed = _seal(plan, changes)
    seconds = time.monotonic() - began
    detail = _describe(plan, changes) | find_waiting_ddl(ctx, wanted, bounds.hi, target, position)
    rows = changes.rows
    event = WindowEvent("compact", wanted.lo, wanted.hi, "done", rows, seconds, ctx.run_id, "sql", detail=detail)
    ctx.windows.record(replace(event, manifest=sealed.to_json()))
    # `changed` is for listeners that wait for a table; it is not written to the lake.
    detail |= {"changed": _list_changed_tables(plan)}
    compacted = Compacted(plan.window, sealed, position, plan.pinned, changes.written, given, changes.ahead)
    return StageResult("compact", "done", wanted.lo, wanted.hi, rows, seconds, "", detail, compacted)


def _plan_window(
    ctx: StageContext,
    bounds: Bounds,
    target: TargetSection,
    position: TargetPosition,
    merged: Merged,
    given: MergedWindow | None,
) -> _Plan:
    window = read_sql_window(ctx, bounds, merged, given)
    pinned = open_manifest(ctx, bounds, position)
    following = is_next(ctx, bounds, position)
    earlier = None if following else read_sealed_before(ctx, bounds, pinned)
    ordered = earlier.ordered if pinned and earlier else target.mode == "ordered"
    size = ctx.measure(bounds)
    engine = ctx.choose_engine(size)
    mutated = read_window_changes(ctx, engine, bounds, merged.rows, given)
    touched = mutated.count_touched(window.segments.starts) if mutated else Counter()
    mutated = None if ordered else mutated
    holds = given is not None and (mutated is None or may_leave_out(engine, bounds, mutated, given))
    left_out = following and holds and not ordered and CHANGE.name not in ctx.replication.lake.keep
    if pinned is not None:
        left_out = earlier is not None and bool(earlier.change)
    # The configuration may have changed since: a window that is open or passed keeps the shapes it was sealed with.
    if following:
        shapes = read_shapes(target, window, {place.name for place in touched})
    else:
        shapes = read_sealed_shapes(ctx, bounds, target, earlier)
    window = window.with_shapes(shapes)
    if pinned is not None:
        require_pinned_cuts(pinned, window.segments.starts)
    groups = count_groups(merged.rows, size)
    return _Plan(
        ctx, target, position, given, merged, window, shapes, pinned, earlier, engine, groups,
        following, ordered, left_out, holds, mutated, touched,
    )  # fmt: skip


def _derive_changes(plan: _Plan, *, is_ahead: bool) -> _Changes:
    """Derive the net changes into the lake or into memory. Raises CannotDeriveAhead, ImmutableWindow, SchemaError."""
    ctx, window, position, mutated = plan.ctx, plan.window, plan.position, plan.mutated
    strict = plan.merged.whole and plan.target.impossible_changes == "fail"
    # Finalize writes nothing of a table that is set aside, so contradictory changes of it do no harm.
    applied = [place for place in plan.derived if not is_aside(position.aside, place.name)]
    shared = find_shared_tables(ctx, window, {place.name for place in applied})
    if shared and is_ahead:
        raise CannotDeriveAhead("the target must be asked which keys of a shared table it has")
    net = WindowNetChange(
        mutated.rows if mutated else [],
        _build_cells(window, plan.derived),
        plan.groups,
        bool(ctx.rules.routes),
        frozenset(_build_cells(window, applied if strict else [])),
    )
    is_base = plan.earlier.base if plan.pinned and plan.earlier else _may_be_base(plan)
    blocks = find_base_blocks(net.parts, net.cells) if plan.left_out and plan.holds and is_base and not shared else None
    with plan.engine.open_store(ctx.paths, "compact") as store:
        unknown = 0
        if shared_places := [place for place in applied if place.name in shared]:
            cells = _build_cells(window, shared_places)
            arrivals = find_key_arrivals(plan.engine, store, net.parts, cells, plan.groups)
            unknown = require_own_keys(ctx, window, arrivals, position, strict=strict)
        if not plan.left_out:
            changes = _write(plan, store, net)
        elif not plan.holds and plan.earlier is not None:
            # The open window's rows are derived again where they are needed.
            changes = _Changes(plan.earlier.rows)
        else:
            held = _hold(plan, store, net, blocks)
            changes = _Changes(held.fold.count, held, base=blocks is not None)
    return replace(changes, unknown=unknown)


def _seal(plan: _Plan, changes: _Changes) -> CompactManifest:
    """The manifest; that of the window that the target holds open must be as it was. Raises ImmutableWindow."""
    bounds, written = plan.window.bounds, changes.written
    sealed = CompactManifest(
        plan.ctx.replication.name,
        "sql",
        *(bounds.lo, bounds.hi),
        plan.ordered,
        changes.rows,
        plan.merged,
        plan.window.segments.starts,
        plan.shapes,
        rowhash.compute_digest(written.fold) if plan.left_out and written is not None else "",
        base=changes.base,
    )
    return sealed if plan.pinned is None else _require_as_pinned(plan.pinned, plan.earlier or sealed)


def _describe(plan: _Plan, changes: _Changes) -> dict[str, object]:
    """The detail of compact's event."""
    detail: dict[str, object] = {
        "segments": len(plan.window.segments.starts) + 1,
        "tables": len(_list_changed_tables(plan)),
        "mutations": plan.merged.rows,
        "mode": plan.target.mode,
        **plan.ctx.describe_work(),
    }
    detail |= {"hottest": hottest} if (hottest := find_hottest(plan.touched)) else {}
    detail |= {"keys_of_unknown_tables": changes.unknown} if changes.unknown else {}
    if plan.shapes:
        detail["of_another_shape"] = [f"{db}.{table}" for db, table in sorted(plan.shapes.at_lo)]
    return detail


def _list_changed_tables(plan: _Plan) -> list[tuple[str, str]]:
    """The target's tables that rows or DDL of the window change."""
    by_ddl = {name for ddl in plan.window.cuts for name in ddl.tables}
    return sorted({place.name for place in plan.touched} | by_ddl)


def _require_as_pinned(pinned: ApplyManifest, sealed: CompactManifest) -> CompactManifest:
    """`sealed`, if the window that the target holds open was derived from it. Raises ImmutableWindow."""
    if pinned.compact and pinned.compact != sealed.compute_digest():
        raise ImmutableWindow(
            "this window is open at the target, but compact would seal a different manifest from the one it refers to",
            where={"window": pinned.window, "pinned": pinned.compact},
            hint="restore the lake's table `window` by Delta time travel, or run the version that sealed it",
        )
    return sealed


def _build_renderer(plan: _Plan) -> Renderer | None:
    """How convert will render the net changes; None if it needs more than their rows, or is left to it.

    A stage that runs alone leaves it to convert, which could not be given the result.
    """
    if not plan.engine.fuses or plan.given is None or not plan.following:
        return None
    ctx, position = plan.ctx, plan.position
    plain = position.forms == "plain"
    limits = BatchLimits.of(plan.target.batch_rows, position.max_packet)
    renderer = build_renderer(ctx.replication.name, plan.window, plan.target, limits, plan.derived, plain=plain)
    return None if any(table.kept for table in renderer.tables.values()) else renderer


def _write(plan: _Plan, store: RowStore, net: WindowNetChange) -> _Changes:
    """Write the rows of `change` to the lake. If they are pinned, they are there already or must come out the same."""
    ctx, engine, pinned, bounds = plan.ctx, plan.engine, plan.pinned, plan.window.bounds
    renderer = _build_renderer(plan)
    if pinned is not None:
        there = list_window_rows(ctx.paths, CHANGE, bounds.window, engine.task_bytes)
        digest, rows = compute_rows_digest(engine, there, CHANGE.list_column_names())
        if digest == pinned.change:
            return _Changes(rows)
    folder = ctx.paths.locate_table(CHANGE.name)
    reduce, groups = net.prepare(engine, store)
    write = WriteGroup(reduce, bounds.window, folder, engine.build_keeper())
    written, ahead = write_groups(engine, write, groups, renderer, ctx.paths.locate_table(STATEMENT.name))
    written = replace(written, cells=frozenset(net.cells))
    if pinned is not None:
        require_pinned(CHANGE.name, bounds, pinned.change, rowhash.compute_digest(written.fold))
    replace_window(ctx.paths, CHANGE, bounds.window, written.parts, commit_note(ctx, "compact", bounds))
    return _Changes(written.fold.count, written, ahead)


def _may_be_base(plan: _Plan) -> bool:
    """Whether all rows of the window came in blocks of a full load, and no table needs to know more of them."""
    mutated, merged, window = plan.mutated, plan.merged, plan.window
    if mutated is None or mutated.holds or mutated.earlier or merged.rows != merged.base:
        return False
    return not any(require_definition(window.definitions, window.segments, place).kept for place in plan.derived)


def _hold(plan: _Plan, store: RowStore, net: WindowNetChange, blocks: Sequence[BaseBlock] | None) -> NetRows:
    """The rows of `change` in memory only; their digest is sealed, or is the pinned one. Raises ImmutableWindow.

    `blocks`: the rows, if they are known to be their own net changes.
    """
    ctx, bounds = plan.ctx, plan.window.bounds
    if blocks is not None:
        held = NetRows.of_blocks(blocks, net.cells)
    else:
        reduce, groups = net.prepare(plan.engine, store)
        held = NetRows.join(plan.engine.run(HoldGroup(reduce, bounds.window), groups))
        held = replace(held, cells=frozenset(net.cells))
    if plan.pinned is not None:
        require_pinned(CHANGE.name, bounds, plan.pinned.change, rowhash.compute_digest(held.fold))
    elif was_derived(ctx, bounds):
        replace_window(ctx.paths, CHANGE, bounds.window, (), commit_note(ctx, "compact", bounds))
    return held


def _build_cells(window: SinkWindow, places: list[SegmentTable]) -> list[Cell]:
    return [build_cell(window.definitions, window.segments, place) for place in places]
