"""compact: the net change of each key and segment for the SQL sink; it also decides the sink's window.

It is a pure function of merged windows: a rerun at any time writes the same rows again. The window that the target
holds open is pinned (hazards R-16). Otherwise the window starts at the checkpoint and ends where a landed window ends.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import structlog

from binlake.common import rowhash
from binlake.config.servers import TargetSection
from binlake.ddl.definitions import (
    Cell,
    LandedDdl,
    SegmentTable,
    Shapes,
    build_cell,
    require_definition,
    use_bytewise_collations,
)
from binlake.errors import DamagedManifest, ImmutableWindow
from binlake.lake.ddls import read_landed_ddls
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
from binlake.spark_jobs.shared.render import Renderer
from binlake.spark_jobs.shared.rendered import RenderedAhead, build_renderer, may_leave_out, write_groups
from binlake.spark_jobs.shared.sharedkeys import find_shared_tables, require_own_keys
from binlake.spark_jobs.shared.sinks import (
    SinkWindow,
    WindowChanges,
    commit_note,
    read_merged_row_counts,
    read_sql_window,
    read_window_changes,
    require_merged,
)
from binlake.spark_jobs.shared.sqlwindow import (
    Compacted,
    compute_rows_digest,
    find_next_start,
    is_next,
    may_differ,
    open_manifest,
    read_sealed_before,
    read_shapes,
    read_target_position,
    require_pinned,
    was_derived,
)
from binlake.statements import BatchLimits
from binlake.target import TargetPosition
from binlake.target.claim.checkpoint import is_aside, may_pass_refused
from binlake.window.cuts import build_waiting_detail, find_end_before_refused, require_outside_ddl, require_pinned_cuts
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
    wanted = _choose_window(ctx, bounds, position, target, given)
    if wanted is None:
        return StageResult("compact", "skipped", bounds.lo, bounds.hi, detail={"reason": "the target is past it"})
    merged = require_merged(ctx, wanted.lo, wanted.hi, given)
    with ctx.hold_lock(BY_NAME["compact"].lock):
        window = read_sql_window(ctx, wanted, merged, given)
        pinned = open_manifest(ctx, wanted, position)
        following = is_next(ctx, wanted, position)
        earlier = None if following else read_sealed_before(ctx, wanted, pinned)
        ordered = earlier.ordered if pinned and earlier else target.mode == "ordered"
        # In mode ordered every change counts, and convert reads them from `mutation`.
        engine, groups = ctx.choose_engine(size := ctx.measure(wanted)), count_groups(merged.rows, size)
        mutated = read_window_changes(ctx, engine, wanted, merged.rows, given)
        touched = mutated.count_touched(window.segments.starts) if mutated else Counter()
        places = sorted(touched)
        mutated = None if ordered else mutated
        holds = given is not None and (mutated is None or may_leave_out(engine, wanted, mutated, given))
        left_out = following and holds and not ordered and CHANGE.name not in ctx.replication.lake.keep
        if pinned is not None:
            left_out = earlier is not None and bool(earlier.change)
        named = {place.name for place in places}
        # The configuration may have changed since: a window that is open or passed keeps the shapes it was sealed with.
        shapes = read_shapes(target, window, named) if following else _read_sealed_shapes(ctx, wanted, target, earlier)
        window = window.with_shapes(shapes)
        derived = places if mutated else []
        if pinned is not None:
            require_pinned_cuts(pinned, window.segments.starts)
        strict = merged.whole and target.impossible_changes == "fail"
        # Finalize writes nothing of a table that is set aside, so contradictory changes of it do no harm.
        applied = [place for place in derived if not is_aside(position.aside, place.name)]
        shared = find_shared_tables(ctx, window, {place.name for place in applied})
        if shared and is_ahead:
            raise CannotDeriveAhead("the target must be asked which keys of a shared table it has")
        shared_places = [place for place in applied if place.name in shared]
        net = WindowNetChange(
            mutated.rows if mutated else [],
            _build_cells(window, derived),
            groups,
            bool(ctx.rules.routes),
            frozenset(_build_cells(window, applied if strict else [])),
        )
        is_base = earlier.base if pinned and earlier else _may_be_base(window, derived, merged, mutated)
        blocks = find_base_blocks(net.parts, net.cells) if left_out and holds and is_base and not shared else None
        with engine.open_store(ctx.paths, "compact") as store:
            unknown = 0
            if shared_places:
                arrivals = find_key_arrivals(engine, store, net.parts, _build_cells(window, shared_places), groups)
                unknown = require_own_keys(ctx, window, arrivals, position, strict=strict)
            # A stage that runs alone leaves rendering to convert, which could not be given the result.
            renders = engine.fuses and given is not None and following
            renderer = _build_renderer(ctx, window, target, position, derived) if renders else None
            if left_out and not holds and earlier is not None:
                # The open window's rows are derived again where they are needed.
                rows, written, ahead = earlier.rows, None, None
            elif left_out:
                written, ahead = _hold(ctx, engine, store, window, net, pinned, blocks), None
                rows = written.fold.count
            else:
                rows, written, ahead = _write(ctx, engine, store, window, net, pinned, renderer)
    cuts = window.segments.starts
    change = rowhash.compute_digest(written.fold) if left_out and written is not None else ""
    sealed = CompactManifest(
        ctx.replication.name,
        "sql",
        *(wanted.lo, wanted.hi),
        ordered,
        rows,
        merged,
        cuts,
        shapes,
        change,
        base=blocks is not None,
    )
    if pinned is not None:
        sealed = _require_as_pinned(pinned, earlier or sealed)
    seconds = time.monotonic() - began
    changed = sorted({place.name for place in places} | {name for ddl in window.cuts for name in ddl.tables})
    detail: dict[str, object] = {"segments": len(cuts) + 1, "tables": len(changed)}
    detail |= {"mutations": merged.rows, "mode": target.mode, **ctx.describe_work()}
    detail |= {"hottest": hottest} if (hottest := find_hottest(touched)) else {}
    detail |= {"keys_of_unknown_tables": unknown} if unknown else {}
    detail |= {"of_another_shape": [f"{db}.{table}" for db, table in sorted(shapes.at_lo)]} if shapes else {}
    detail |= _find_waiting_ddl(ctx, wanted, bounds.hi, target, position)
    event = WindowEvent("compact", wanted.lo, wanted.hi, "done", rows, seconds, ctx.run_id, "sql", detail=detail)
    ctx.windows.record(replace(event, manifest=sealed.to_json()))
    # `changed` is for listeners that wait for a table; it is not written to the lake.
    detail |= {"changed": changed}
    compacted = Compacted(window, sealed, position, pinned, written, given, ahead)
    return StageResult("compact", "done", wanted.lo, wanted.hi, rows, seconds, "", detail, compacted)


def _read_sealed_shapes(
    ctx: StageContext, bounds: Bounds, target: TargetSection, earlier: CompactManifest | None
) -> Shapes:
    """The shapes with which an open or passed window was sealed. Raises DamagedManifest."""
    if earlier is not None:
        return earlier.shapes
    if may_differ(target) and was_derived(ctx, bounds):
        raise DamagedManifest(
            "the record of how the target's tables differed when this window was derived is no longer readable",
            where={"window": bounds.window},
            hint="restore the lake's table `window` by Delta time travel",
        )
    return Shapes()


def _require_as_pinned(pinned: ApplyManifest, sealed: CompactManifest) -> CompactManifest:
    """`sealed`, if the window that the target holds open was derived from it. Raises ImmutableWindow."""
    if pinned.compact and pinned.compact != sealed.compute_digest():
        raise ImmutableWindow(
            "this window is open at the target, but compact would seal a different manifest from the one it refers to",
            where={"window": pinned.window, "pinned": pinned.compact},
            hint="restore the lake's table `window` by Delta time travel, or run the version that sealed it",
        )
    return sealed


def _build_renderer(
    ctx: StageContext, window: SinkWindow, target: TargetSection, position: TargetPosition, places: list[SegmentTable]
) -> Renderer | None:
    """How convert will render the net changes of `places`; None if it needs more than their rows."""
    plain = position.forms == "plain"
    limits = BatchLimits.of(target.batch_rows, position.max_packet)
    renderer = build_renderer(ctx.replication.name, window, target, limits, places, plain=plain)
    return None if any(table.kept for table in renderer.tables.values()) else renderer


def _write(
    ctx: StageContext,
    engine: Engine,
    store: RowStore,
    window: SinkWindow,
    net: WindowNetChange,
    pinned: ApplyManifest | None,
    renderer: Renderer | None,
) -> tuple[int, NetRows | None, RenderedAhead | None]:
    """Write the rows of `change` to the lake. If they are pinned, they are there already or must come out the same.

    Returns the number of rows, the rows if they were derived, and their statements if `renderer` made them.
    """
    bounds = window.bounds
    if pinned is not None:
        there = list_window_rows(ctx.paths, CHANGE, bounds.window, engine.task_bytes)
        digest, rows = compute_rows_digest(engine, there, CHANGE.list_column_names())
        if digest == pinned.change:
            return rows, None, None
    folder = ctx.paths.locate_table(CHANGE.name)
    reduce, groups = net.prepare(engine, store)
    write = WriteGroup(reduce, bounds.window, folder, engine.build_keeper())
    written, ahead = write_groups(engine, write, groups, renderer, ctx.paths.locate_table(STATEMENT.name))
    written = replace(written, cells=frozenset(net.cells))
    if pinned is not None:
        require_pinned(CHANGE.name, bounds, pinned.change, rowhash.compute_digest(written.fold))
    replace_window(ctx.paths, CHANGE, bounds.window, written.parts, commit_note(ctx, "compact", bounds))
    return written.fold.count, written, ahead


def _may_be_base(window: SinkWindow, places: list[SegmentTable], merged: Merged, mutated: WindowChanges | None) -> bool:
    """Whether all rows of the window came in blocks of a full load, and no table needs to know more of them."""
    if mutated is None or mutated.holds or mutated.earlier or merged.rows != merged.base:
        return False
    return not any(require_definition(window.definitions, window.segments, place).kept for place in places)


def _hold(
    ctx: StageContext,
    engine: Engine,
    store: RowStore,
    window: SinkWindow,
    net: WindowNetChange,
    pinned: ApplyManifest | None,
    blocks: Sequence[BaseBlock] | None,
) -> NetRows:
    """The rows of `change` in memory only; their digest is sealed, or is the pinned one. Raises ImmutableWindow.

    `blocks`: the rows, if they are known to be their own net changes.
    """
    bounds = window.bounds
    if blocks is not None:
        held = NetRows.of_blocks(blocks, net.cells)
    else:
        reduce, groups = net.prepare(engine, store)
        held = NetRows.join(engine.run(HoldGroup(reduce, bounds.window), groups))
        held = replace(held, cells=frozenset(net.cells))
    if pinned is not None:
        require_pinned(CHANGE.name, bounds, pinned.change, rowhash.compute_digest(held.fold))
    elif was_derived(ctx, bounds):
        replace_window(ctx.paths, CHANGE, bounds.window, (), commit_note(ctx, "compact", bounds))
    return held


def _build_cells(window: SinkWindow, places: list[SegmentTable]) -> list[Cell]:
    return [build_cell(window.definitions, window.segments, place) for place in places]


def _choose_window(
    ctx: StageContext, bounds: Bounds, position: TargetPosition, target: TargetSection, given: MergedWindow | None
) -> Bounds | None:
    """The sink's window for the landed window `bounds`; None if the target is past it without a sealed window."""
    if position.window is not None and position.window[0] < bounds.hi:
        return Bounds(*position.window)
    lo = find_next_start(ctx, position)
    passed = next((Bounds(*sealed) for sealed in ctx.windows.list_sealed_windows(bounds.hi) if sealed[1] <= lo), None)
    if passed is not None:
        return passed
    if lo >= bounds.hi:
        return None
    end = _find_end(ctx, lo, bounds.hi, target.max_segment_rows)
    if given is not None and given.bounds == Bounds(lo, end) and not given.merged.ddls:
        return given.bounds
    end, refused = _end_before_refused(ctx, lo, end, target, position)
    if refused is not None:
        commit_ts, query = str(refused.commit_ts), refused.query[:200]
        log.warning("window_ends_before_ddl", commit_ts=commit_ts, end=str(end), query=query)
    return Bounds(lo, end)


def _find_waiting_ddl(
    ctx: StageContext, window: Bounds, hi: int, target: TargetSection, position: TargetPosition
) -> dict[str, object]:
    """The part of the detail that names the DDL before which `window` ends, also if it is open or passed already."""
    if window.hi >= hi:
        return {}
    end, refused = _end_before_refused(ctx, window.lo, hi, target, position)
    return build_waiting_detail(refused, target.db_type) if refused is not None and end == window.hi else {}


def _end_before_refused(
    ctx: StageContext, lo: int, hi: int, target: TargetSection, position: TargetPosition
) -> tuple[int, LandedDdl | None]:
    """`hi`, or the end below the first DDL that convert would refuse: what is before it is applied, then it waits."""
    ddls = read_landed_ddls(ctx.paths, lo, hi)
    if not ctx.replication.source.new_collation:
        ddls = [use_bytewise_collations(ddl, target.db_type) for ddl in ddls]

    def may_pass(ddl: LandedDdl) -> bool:
        return may_pass_refused(ddl.tables, target.on_table_error, position.aside)

    return find_end_before_refused(ddls, lo, hi, target.db_type, may_pass)


def _find_end(ctx: StageContext, lo: int, hi: int, most: int) -> int:
    """The next stop point, else the end of the last landed window up to which a segment has at most `most` rows.

    At least one landed window is taken.
    """
    end, rows = hi, 0
    due = ctx.windows.list_landed((lo, hi))
    counts = read_merged_row_counts(ctx, lo, hi) if len(due) > 1 else {}
    for landed in due:
        # An update that changes the key counts as two rows.
        rows += 2 * counts.get(landed, 0)
        if rows > most and landed != due[0]:
            break
        end = min(landed[1], hi)
    stop = min([end, *(stop for stop in ctx.replication.list_stop_points() if stop > lo)])
    if any(stop == landed[1] for landed in due):
        return stop
    return require_outside_ddl(read_landed_ddls(ctx.paths, lo, due[-1][1]), lo, stop)
