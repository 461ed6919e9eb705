"""The row changes of a window as batches of SQL: net changes by groups of keys, or, in mode ordered, in commit order.

Net changes have one task for each group of keys. In mode ordered, which changes may run in parallel depends on all
earlier changes of the segment, so one task processes them in order, in one pass over `mutation`. It streams, and holds
only the keys of one round and the changes of unfinished batches. DESIGN 4, hazards R-36.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import pyarrow as pa

from binlake.changes.net import RowEvent
from binlake.changes.ordered import ChangeKeys, OrderedChange, OrderedPlan, PlanOptions, RowForms
from binlake.common.lakecolumns import Change, Mutation
from binlake.common.sql import Dialect
from binlake.config.servers import TargetSection
from binlake.ddl.definitions import SegmentTable, require_definition
from binlake.errors import ConfigError
from binlake.lake.mutations import find_touched_tables
from binlake.lake.tables import CHANGE, STATEMENT
from binlake.rows.schema import TableDef
from binlake.spark_jobs.engine.engine import Engine, Keeper, RowStore
from binlake.spark_jobs.engine.exchange import OrderedRows, Split, cut_in_order, exchange
from binlake.spark_jobs.engine.rows import Rows, list_window_rows, read_table
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.shared.netchange import Group, NetRows, count_groups, find_groups, measure_sizes, sum_sizes
from binlake.spark_jobs.shared.render import Renderer, find_origins, render_blocks
from binlake.spark_jobs.shared.rendered import (
    CHANGE_ARROW,
    Rendered,
    RenderGroup,
    build_renderer,
    derive_net_again,
    hold_statements,
    write_statements,
)
from binlake.spark_jobs.shared.sinks import list_mutation_parts, read_window_changes
from binlake.spark_jobs.shared.sqlwindow import Compacted
from binlake.statements import BatchLimits, StatementBatch
from binlake.target import build_too_many_rows_error
from binlake.target.definitions.forms import Name

_ORDER = (Mutation.COMMIT_TS, Mutation.START_TS, Mutation.SEQ)
_COLUMNS = [*_ORDER, Mutation.DB, Mutation.TABLE, Mutation.OP, Mutation.BEFORE, Mutation.AFTER]
_NAMES = [Mutation.DB, Mutation.TABLE, Mutation.SOURCE_DB, Mutation.SOURCE_TABLE]
_PLACES = [Mutation.DB, Mutation.TABLE, Mutation.COMMIT_TS]
_BATCHES_A_GROUP = 64
_ALL = 1 << 62
"""Bytes of one task: all of them."""


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


def render_ordered_statements(
    ctx: StageContext, engine: Engine, given: Compacted, target: TargetSection, limits: BatchLimits, *, safe: bool
) -> Rendered:
    """The statements except the DDL."""
    window, bounds, starts = given.window, given.window.bounds, given.window.segments.starts
    folder = ctx.paths.locate_table(STATEMENT.name)
    parts = list_mutation_parts(ctx, engine, bounds, given.merged)
    touched = find_touched_tables((batch for rows in parts for batch in rows.read(_PLACES)), starts)
    tables = {place: require_definition(window.definitions, window.segments, place) for place in touched}
    if safe:
        require_nothing_kept(tables.values())
    if ctx.rules.routes:
        _require_own_targets(ctx, engine.run(_find_names, parts))
    options = PlanOptions(target.worker_count, limits, target.multiple_rows, target.conflict_strategy)
    planner = Planner(bounds.window, starts, tables, target.db_type, options, safe)
    task = _PlanTask(planner, folder, engine.build_keeper())
    return Rendered.join(engine.run(task, cut_in_order(parts, _ALL) if touched else []))


@dataclass(frozen=True)
class _PlanTask:
    """The only task of a window: it reads all rows in commit order."""

    planner: Planner
    folder: str
    keeper: Keeper

    def __call__(self, rows: OrderedRows) -> Rendered:
        groups = self.planner(rows.read(_COLUMNS, _ORDER))
        return write_statements(self.planner.window, groups, self.folder, self.keeper)


def _find_names(rows: Rows) -> set[tuple[Name, Name]]:
    """(target, source) of the tables of `rows`."""
    found: set[tuple[Name, Name]] = set()
    for batch in rows.read(_NAMES):
        for row in pa.Table.from_batches([batch]).group_by(_NAMES).aggregate([]).to_pylist():
            found.add(((row[Mutation.DB], row[Mutation.TABLE]), (row[Mutation.SOURCE_DB], row[Mutation.SOURCE_TABLE])))
    return found


def _require_own_targets(ctx: StageContext, names: Iterable[set[tuple[Name, Name]]]) -> None:
    """Refuse two source tables that change one target table, unless extract columns keep their keys distinct."""
    source_of: dict[Name, Name] = {}
    for target, source in sorted(set().union(*names)):
        other = source_of.setdefault(target, source)
        if other != source and not ctx.rules.routes.extract_columns(*source):
            raise ConfigError(
                "mode ordered cannot distinguish rows of tables that share a target: one could replace another's",
                where={"target": ".".join(target), "sources": f"{'.'.join(other)}, {'.'.join(source)}"},
                hint="set target.mode to atomic, parallel or auto, or add extract columns to the route",
            )


def require_nothing_kept(tables: Iterable[TableDef]) -> None:
    """Refuse safe mode for tables with extra columns at the target: its REPLACE would clear these columns (R-12)."""
    for table in tables:
        if table.kept:
            raise ConfigError(
                "mode ordered in safe mode would clear the columns that only the target has",
                where={"table": f"{table.db}.{table.name}", "columns": ",".join(table.kept)},
                hint="set target.mode to atomic, parallel or auto; or target.safe-mode to auto or never once the target"
                " is exactly at its checkpoint",
            )


@dataclass(frozen=True)
class Planner:
    """Turns all changes of a window, in order, into batches of statements, in one worker. `tables`: by place."""

    window: str
    starts: tuple[int, ...]
    tables: Mapping[SegmentTable, TableDef]
    dialect: Dialect
    options: PlanOptions
    safe: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[StatementBatch]]:
        """Raises SchemaError, Permanent."""
        planned = self._plan_batches(batches)
        while some := list(islice(planned, _BATCHES_A_GROUP)):
            yield some

    def _plan_batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[StatementBatch]:
        current, plan = -1, OrderedPlan(-1, self.options)
        writers: dict[tuple[str, str], tuple[RowForms, ChangeKeys]] = {}
        for event, name in _build_events(batches):
            segment = bisect_right(self.starts, event.commit_ts)
            if segment != current:
                yield from plan.flush()
                current, plan = segment, OrderedPlan(segment, self.options)
                writers = {}
            if name not in writers:
                table = self.tables[SegmentTable(segment, *name)]
                writers[name] = RowForms(table, self.dialect), ChangeKeys(table, self.dialect)
            forms, keys = writers[name]
            yield from plan.add(OrderedChange(forms, event, keys.list_keys(event), self.safe))
        yield from plan.flush()


def _build_events(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[RowEvent, tuple[str, str]]]:
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in _COLUMNS]
        for commit_ts, start_ts, seq, db, table, op, before, after in zip(*columns, strict=True):
            images = [None if image is None else dict(image) for image in (before, after)]
            yield RowEvent(commit_ts, start_ts, seq, op, *images), (db, table)
