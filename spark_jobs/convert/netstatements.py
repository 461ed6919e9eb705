"""The net changes of a window as SQL, for all modes except ordered: one task for each group of keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from binlake.base.lakecolumns import Change
from binlake.config.servers import TargetSection
from binlake.ddl.definitions import SegmentTable
from binlake.lake.tables import CHANGE, STATEMENT
from binlake.spark_jobs.engine.blocks import RowStore
from binlake.spark_jobs.engine.engine import Engine
from binlake.spark_jobs.engine.exchange import Split, exchange
from binlake.spark_jobs.engine.lakerows import list_window_rows
from binlake.spark_jobs.engine.rows import Rows, read_table
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.tables.again import derive_net_again
from binlake.spark_jobs.tables.compacted import Compacted
from binlake.spark_jobs.tables.held import read_window_changes
from binlake.spark_jobs.tables.keeping import find_origins
from binlake.spark_jobs.tables.netchange import Group, count_groups, find_groups
from binlake.spark_jobs.tables.netrows import NetRows, measure_sizes, sum_sizes
from binlake.spark_jobs.tables.render import Renderer, render_blocks
from binlake.spark_jobs.tables.rendered import (
    CHANGE_ARROW,
    Rendered,
    RenderGroup,
    build_renderer,
    hold_statements,
    write_statements,
)
from binlake.statements import BatchLimits
from binlake.target import build_too_many_rows_error


def render_net_statements(
    ctx: StageContext,
    engine: Engine,
    given: Compacted,
    target: TargetSection,
    limits: BatchLimits,
    *,
    plain: bool,
    leaves_out: bool,
) -> Rendered:
    """The statements of `change`, and the fold of its rows. Raises Permanent, SchemaError.

    `leaves_out`: they may stay in memory, if all that they follow from is sealed.
    """
    window, bounds = given.window, given.window.bounds
    make = partial(build_renderer, ctx.replication.name, window, target, limits, plain=plain)
    if given.ahead is not None and given.net is not None and make(given.ahead.renderer.tables) == given.ahead.renderer:
        _require_segments(target, given.net.sizes, bounds.window)
        return given.ahead.rendered
    net = given.net
    if net is None and given.manifest.base:
        net = derive_net_again(ctx, window, given.manifest, given.manifest.change)
    if net is not None and net.blocks:
        _require_segments(target, net.sizes, bounds.window)
        return _render_blocks(ctx, engine, make(net.sizes), net, leaves_out=leaves_out)
    with engine.open_store(ctx.paths, "convert") as store:
        groups, sizes = _list_groups(ctx, engine, store, given)
        _require_segments(target, sizes, bounds.window)
        renderer = make(sizes)
        kept = any(table.kept for table in renderer.tables.values())
        if kept:
            changes = read_window_changes(ctx, engine, bounds, given.manifest.merged.rows, given.merged)
            if changes is not None:
                renderer = replace(renderer, origins=find_origins(engine, changes, window, renderer.tables))
        folder = None if leaves_out and not kept and not renderer.accepted else ctx.paths.locate_table(STATEMENT.name)
        render = RenderGroup(renderer, folder, engine.build_keeper())
        if given.net is not None and given.net.is_held:
            # What was folded when it was written has not been read again since.
            made = Rendered.join(engine.run(replace(render, is_folded=True), groups))
            return replace(made, change=given.net.fold)
        return Rendered.join(engine.run(render, groups))


def _render_blocks(
    ctx: StageContext, engine: Engine, renderer: Renderer, net: NetRows, *, leaves_out: bool
) -> Rendered:
    """The statements of the rows of a full load, from their blocks. Raises Permanent, SchemaError."""
    groups = render_blocks(renderer, net.blocks)
    if leaves_out and not renderer.accepted:
        return hold_statements(groups, net.fold)
    folder = ctx.paths.locate_table(STATEMENT.name)
    return write_statements(renderer.window, groups, folder, engine.build_keeper(), net.fold)


def _list_groups(
    ctx: StageContext, engine: Engine, store: RowStore, given: Compacted
) -> tuple[Sequence[Group], Mapping[SegmentTable, int]]:
    """(the rows of `change` by group, their number by place): from compact in this process, else from the lake.

    Rows that are not in the lake are derived again, in this process.
    """
    if given.net is not None:
        return given.net.groups, given.net.sizes
    if given.manifest.change:
        net = derive_net_again(ctx, given.window, given.manifest, given.manifest.change)
        return net.groups, net.sizes
    bounds = given.window.bounds
    groups = count_groups(given.manifest.merged.rows, ctx.measure(bounds))
    parts = list_window_rows(ctx.paths, CHANGE, bounds.window, engine.task_bytes)
    exchanged = exchange(engine, store, _SplitByGroup(groups), parts)
    return list(exchanged.shares.items()), sum_sizes(exchanged.found)


@dataclass(frozen=True)
class _SplitByGroup:
    groups: int

    def __call__(self, rows: Rows) -> Split[dict[SegmentTable, int]]:
        table = read_table([rows], CHANGE_ARROW)
        return Split([(table, find_groups(table[Change.KEY], self.groups))], measure_sizes(table))


def _require_segments(target: TargetSection, sizes: Mapping[SegmentTable, int], window: str) -> None:
    """Check that every segment fits into one transaction. Raises Permanent before anything is sealed (hazards R-30)."""
    if target.mode != "atomic":
        return
    most = target.max_segment_rows
    rows: Counter[int] = Counter()
    for place, count in sizes.items():
        rows[place.segment] += count
    for segment, count in sorted(rows.items()):
        if count > most:
            raise build_too_many_rows_error(window, segment, count, most)
