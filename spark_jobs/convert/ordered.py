"""Mode ordered: the row changes of a window as batches in commit order, in one pass over `mutation`.

Which changes may run in parallel depends on all earlier changes of the segment, so one task processes them in order. It
streams, and holds only the keys of one round and the changes of unfinished batches. For a small window the driver
itself is that task. DESIGN 4, hazards R-36.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa

from binlake.base.dialects import Dialect
from binlake.base.lakecolumns import Mutation
from binlake.changes.net import RowEvent
from binlake.changes.ordered import Change, ChangeKeys, OrderedPlan, PlanOptions, RowForms
from binlake.config.model import Target
from binlake.errors import ConfigError
from binlake.lake.mutations import read_touched_tables
from binlake.lake.rowhistory import read_rows
from binlake.lake.tables import MUTATION, STATEMENT
from binlake.rows.schema import TableDef
from binlake.statements import BatchLimits, StatementBatch
from binlake.window.definitions import SegmentTable, require_definition
from spark_jobs.job.context import StageContext
from spark_jobs.job.lake import Rows, collect_rows, map_rows
from spark_jobs.tables.netchange import read_mutations
from spark_jobs.tables.sinks import SinkWindow
from spark_jobs.tables.statements import STATEMENT_ARROW, build_statement_table

_ORDER = (Mutation.COMMIT_TS, Mutation.START_TS, Mutation.SEQ)
_COLUMNS = [*_ORDER, Mutation.DB, Mutation.TABLE, Mutation.OP, Mutation.BEFORE, Mutation.AFTER]
_SOURCE = [Mutation.SOURCE_DB, Mutation.SOURCE_TABLE]
_NAMES = [Mutation.DB, Mutation.TABLE, *_SOURCE]
_NAMES_SCHEMA = ", ".join(f"`{name}` STRING" for name in _NAMES)
_BATCHES_A_TABLE = 64


def render_ordered_statements(
    ctx: StageContext, window: SinkWindow, target: Target, limits: BatchLimits, *, safe: bool
) -> Rows | None:
    """The rows of `statement` except the DDL; None if no row changes."""
    bounds, starts = window.bounds, window.segments.starts
    touched = read_touched_tables(ctx.paths, bounds.lo, bounds.hi, starts)
    if not touched:
        return None
    tables = {place: require_definition(window.definitions, window.segments, place) for place in touched}
    if safe:
        require_nothing_kept(tables.values())
    options = PlanOptions(target.worker_count, limits, target.multiple_rows, target.conflict_strategy)
    planner = Planner(bounds.window, starts, tables, target.db_type, options, safe)
    rows: Rows
    if ctx.is_small(bounds):
        rows = read_rows(ctx.paths, MUTATION, bounds.lo, bounds.hi, [*_COLUMNS, *_SOURCE])
    else:
        rows = read_mutations(ctx.spark, ctx.paths, bounds.lo, bounds.hi)
    if ctx.rules.routes:
        _require_own_targets(ctx, rows)
    rows = rows.select(_COLUMNS)
    if isinstance(rows, pa.Table):
        in_order = rows.sort_by([(name, "ascending") for name in _ORDER])
        return pa.Table.from_batches(planner(in_order.to_batches()), STATEMENT_ARROW)
    # A function, not the object, as with every other stage in a worker.
    frame = rows.repartition(1).sortWithinPartitions(*_ORDER)
    return frame.mapInArrow(lambda batches: planner(batches), STATEMENT.build_spark_schema())


def _select_distinct_names(rows: pa.Table) -> pa.Table:
    return rows.group_by(_NAMES).aggregate([]).select(_NAMES)


def _require_own_targets(ctx: StageContext, rows: Rows) -> None:
    """Refuse two source tables that change one target table, unless extract columns keep their keys distinct."""
    names = collect_rows(
        map_rows(rows.select(_NAMES), _select_distinct_names, ", ".join(f"`{name}` STRING" for name in _NAMES))
    )
    source_of: dict[tuple[str, str], tuple[str, str]] = {}
    for row in names.to_pylist():
        target, source = (row[Mutation.DB], row[Mutation.TABLE]), (row[Mutation.SOURCE_DB], row[Mutation.SOURCE_TABLE])
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
    """Turns all changes of a window, in order, into rows of `statement`, in one worker. `tables`: by place."""

    window: str
    starts: tuple[int, ...]
    tables: Mapping[SegmentTable, TableDef]
    dialect: Dialect
    options: PlanOptions
    safe: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Raises SchemaError, Permanent."""
        planned = self._plan_batches(batches)
        while some := list(islice(planned, _BATCHES_A_TABLE)):
            yield from build_statement_table(self.window, some).to_batches()

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
            yield from plan.add(Change(forms, event, keys.list_keys(event), self.safe))
        yield from plan.flush()


def _build_events(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[RowEvent, tuple[str, str]]]:
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in _COLUMNS]
        for commit_ts, start_ts, seq, db, table, op, before, after in zip(*columns, strict=True):
            images = [None if image is None else dict(image) for image in (before, after)]
            yield RowEvent(commit_ts, start_ts, seq, op, *images), (db, table)
