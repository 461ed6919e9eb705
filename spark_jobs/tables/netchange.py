"""The net change of each key in each segment: in the driver for a small window, by Spark's workers for a large one.

Both call the same functions on Arrow columns (`binlake.changes.net.columns`; DESIGN 3.6, hazards R-17, R-18). A worker
reduces each batch to one run for each key before it sends it on, so a key that is changed a million times costs no more
than a million other rows. Then one task reduces each share of the keys completely.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from binlake.base.lakecolumns import Mutation
from binlake.base.rowhash import hash_rows
from binlake.changes.net import columns
from binlake.changes.net.arrivals import ARRIVALS, STEPS, History, derive_key_steps, find_arrivals, number_histories
from binlake.changes.net.columns import NET, combine_into_batch, compute_net_of_runs
from binlake.changes.net.events import COLUMNS, SOURCE, read_key_events, split_rows_by_cell
from binlake.changes.net.moves import MOVES, ORIGINS, find_moves, find_origins
from binlake.changes.net.runs import FIELDS, reduce_runs, runs_from_table, runs_to_table, start_runs
from binlake.lake.mutations import find_touched_tables, read_touched_tables
from binlake.lake.paths import LakePaths
from binlake.lake.rowhistory import read_rows
from binlake.lake.tables import MUTATION, format_schema
from binlake.window.definitions import Cell, SegmentTable
from spark_jobs.job.context import Bounds, StageContext
from spark_jobs.job.lake import Rows, build_local_table, collect_rows, commit_ts_predicate, map_rows, read_table

DRIVER_ROWS = 500_000
"""Up to this many row changes the driver itself reads three narrow columns, batch by batch (measured: 0.1 s)."""
SHARE_ROWS = 50_000
"""Row changes in a share of a table's keys. One call reduces a share, so a worker holds the images of one share."""
_ROWS_A_ROUND = 10_000
_TOUCHED = "segment INT, db STRING, table STRING"

_RUNS = pa.schema([("cell", pa.int32()), ("share", pa.int32()), *FIELDS])
_STEPS = STEPS.append(pa.field("share", pa.int32()))


def read_mutations(spark: SparkSession, paths: LakePaths, lo: int, hi: int) -> DataFrame:
    """The row changes with lo < commit_ts <= hi."""
    return read_table(spark, paths, MUTATION).where(commit_ts_predicate(lo, hi))


def read_window_rows(ctx: StageContext, bounds: Bounds) -> Rows:
    """The row changes of a window; for a small window in memory, handed over by merge or read from the lake."""
    if not ctx.is_small(bounds):
        return read_mutations(ctx.spark, ctx.paths, bounds.lo, bounds.hi)
    handed = ctx.handover.take(MUTATION, bounds)
    if handed is not None:
        return handed
    return read_rows(ctx.paths, MUTATION, bounds.lo, bounds.hi, [*COLUMNS, *SOURCE])


def touched_tables(
    ctx: StageContext,
    bounds: Bounds,
    starts: Sequence[int],
    count: int,
    rows: Rows | None = None,
    *,
    placed: bool = False,
) -> list[SegmentTable]:
    """The tables and segments of the `count` row changes of a window, sorted; `starts` open segments 1, 2, ...

    If `rows` are not in memory, the driver reads three narrow columns; if there are too many rows, the workers do.
    `placed`: `rows` differ from the lake's rows of the window.
    """
    if not count or (not isinstance(rows, pa.Table) and count <= DRIVER_ROWS and not placed):
        return read_touched_tables(ctx.paths, bounds.lo, bounds.hi, starts) if count else []
    edges = tuple(starts)

    def list_distinct(some: pa.Table) -> pa.Table:
        return build_local_table(find_touched_tables(some.to_batches(), edges), _TOUCHED)

    changes = read_mutations(ctx.spark, ctx.paths, bounds.lo, bounds.hi) if rows is None else rows
    narrow = changes.select([Mutation.DB, Mutation.TABLE, Mutation.COMMIT_TS])
    places = collect_rows(map_rows(narrow, list_distinct, _TOUCHED)).to_pylist()
    return sorted({SegmentTable(**row) for row in places})


def compute_net_changes(
    rows: Rows, cells: Sequence[Cell], count: int, *, routed: bool = False, strict: Sequence[Cell] = ()
) -> Rows:
    """NET of the `count` rows of `mutation` that belong to `cells`, as `changes.net.columns.compute_net_changes`.

    A SchemaError is raised here for rows in memory; for others, Spark's action raises it (`spark_jobs.job.failures`).
    """
    if isinstance(rows, pa.Table):
        return columns.compute_net_changes(rows, cells, routed=routed, strict=frozenset(strict))
    task = NetTask(tuple(cells), routed, frozenset(strict), _count_shares(count))
    runs = _narrow(rows, routed).mapInArrow(lambda batches: task.runs(batches), format_schema(_RUNS))
    return runs.groupBy("cell", "share").applyInArrow(lambda part: task.compute_net(part), format_schema(NET))


@dataclass(frozen=True)
class NetTask:
    """The workers' part in the net change of `cells`."""

    cells: tuple[Cell, ...]
    routed: bool
    strict: frozenset[Cell]
    shares: int

    def runs(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One run for each key and cell of each batch, with the cell's number and the share of its key."""
        numbers = {cell: number for number, cell in enumerate(self.cells)}
        for batch in batches:
            parts = [_RUNS.empty_table()]
            for rows in split_rows_by_cell(batch, self.cells):
                runs = runs_to_table(reduce_runs(start_runs(read_key_events(rows), rows if self.routed else None)))
                cell = pa.repeat(pa.scalar(numbers[rows.cell], pa.int32()), runs.num_rows)
                parts.append(
                    pa.Table.from_arrays([cell, _compute_share(runs, self.shares), *runs.columns], schema=_RUNS)
                )
            yield combine_into_batch(pa.concat_tables(parts))

    def compute_net(self, runs: pa.Table) -> pa.Table:
        """NET of all runs of a share of a cell's keys."""
        cell = self.cells[runs["cell"][0].as_py()]
        return compute_net_of_runs(reduce_runs(runs_from_table(runs)), cell, strict=cell in self.strict)


def find_key_arrivals(rows: Rows, cells: Sequence[Cell], count: int) -> tuple[list[History], Iterator[pa.RecordBatch]]:
    """(the histories by number, ARRIVALS of the `count` rows in `cells`, in batches)."""
    numbers, own, shares = number_histories(cells), tuple(cells), _count_shares(count)
    if isinstance(rows, pa.Table):
        arrivals = find_arrivals(derive_key_steps(combine_into_batch(rows), own, numbers))
        return list(numbers), iter(arrivals.to_batches(max_chunksize=_ROWS_A_ROUND))

    def derive_steps(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            of_batch = derive_key_steps(batch, own, numbers)
            yield combine_into_batch(of_batch.append_column(_STEPS.field("share"), _compute_share(of_batch, shares)))

    sent = _narrow(rows, routed=True).mapInArrow(derive_steps, format_schema(_STEPS))
    shared = sent.groupBy("history", "share").applyInArrow(lambda part: find_arrivals(part), format_schema(ARRIVALS))
    return list(numbers), _group_into_rounds(shared)


def _group_into_rounds(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    rows: list[dict[str, object]] = []
    for row in frame.toLocalIterator():
        rows.append(row.asDict())
        if len(rows) == _ROWS_A_ROUND:
            yield pa.RecordBatch.from_pylist(rows, schema=ARRIVALS)
            rows = []
    yield pa.RecordBatch.from_pylist(rows, schema=ARRIVALS)


def find_row_origins(rows: Rows, cells: Sequence[Cell]) -> Rows:
    """ORIGINS of the keys in `cells` whose row had another key before the segment, or did not exist.

    For a large window, one task for each table and segment processes the updates that change a key, in their order.
    """
    own = tuple(cells)
    if isinstance(rows, pa.Table):
        return find_origins(find_moves(combine_into_batch(rows), own))

    def list_moves(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield combine_into_batch(find_moves(batch, own))

    moves = _narrow(rows, routed=False).mapInArrow(list_moves, format_schema(MOVES))
    return moves.groupBy("segment", Mutation.DB, Mutation.TABLE).applyInArrow(
        lambda part: find_origins(part), format_schema(ORIGINS)
    )


def _narrow(rows: DataFrame, routed: bool) -> DataFrame:
    return rows.select(*COLUMNS, *(SOURCE if routed else ()))


def _count_shares(count: int) -> int:
    return 1 + count // SHARE_ROWS


def _compute_share(rows: pa.Table, shares: int) -> pa.Array:
    """The share of each row's key."""
    return pa.array((hash_rows(rows, [Mutation.KEY]) % np.uint64(shares)).astype(np.int32))
