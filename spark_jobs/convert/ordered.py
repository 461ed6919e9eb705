"""Mode ordered: the row changes of a window as batches in commit order, in one pass over `mutation`.

Which changes may run in parallel depends on all earlier changes of the segment, so one task processes them in order. It
streams, and holds only the keys of one round and the changes of unfinished batches. DESIGN 4, hazards R-36.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa

from binlake.base.lakecolumns import Mutation
from binlake.base.sql import Dialect
from binlake.changes.net import RowEvent
from binlake.changes.ordered import ChangeKeys, OrderedChange, OrderedPlan, PlanOptions, RowForms
from binlake.config.servers import TargetSection
from binlake.ddl.definitions import SegmentTable, require_definition
from binlake.errors import ConfigError
from binlake.lake.mutations import find_touched_tables
from binlake.lake.tables import STATEMENT
from binlake.rows.schema import TableDef
from binlake.spark_jobs.engine.engine import Engine, Keeper
from binlake.spark_jobs.engine.inorder import OrderedRows, cut_in_order
from binlake.spark_jobs.engine.rows import Rows
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.tables.compacted import Compacted
from binlake.spark_jobs.tables.held import list_mutation_parts
from binlake.spark_jobs.tables.rendered import Rendered, write_statements
from binlake.statements import BatchLimits, StatementBatch
from binlake.target.definitions.forms import Name

_ORDER = (Mutation.COMMIT_TS, Mutation.START_TS, Mutation.SEQ)
_COLUMNS = [*_ORDER, Mutation.DB, Mutation.TABLE, Mutation.OP, Mutation.BEFORE, Mutation.AFTER]
_NAMES = [Mutation.DB, Mutation.TABLE, Mutation.SOURCE_DB, Mutation.SOURCE_TABLE]
_PLACES = [Mutation.DB, Mutation.TABLE, Mutation.COMMIT_TS]
_BATCHES_A_GROUP = 64
_ALL = 1 << 62
"""Bytes of one task: all of them."""


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
