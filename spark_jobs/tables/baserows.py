"""The net changes of a window that has rows of a full load only: each row is the net change of its key already.

So they are read from `mutation` when they are needed, and `change` has none of them. A group of rows has whole
transactions, and follows from the window's commit_ts alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from binlake.base import rowhash
from binlake.base.lakecolumns import Change, History, Mutation
from binlake.changes.net.columns import NET, combine_into_batch, compute_net_of_runs
from binlake.changes.net.events import COLUMNS, read_key_events, split_rows_by_key_form
from binlake.changes.net.images import Ints
from binlake.changes.net.runs import start_runs
from binlake.lake.tables import CHANGE
from binlake.rules import Rules
from binlake.spark_jobs.engine.rows import FileRows, HeldRows, MappedRows, Rows, Run
from binlake.spark_jobs.tables.held import WindowChanges
from binlake.spark_jobs.tables.netchange import MOST_GROUPS, Group
from binlake.spark_jobs.tables.netrows import NetRows
from binlake.window.definitions import Cell, SegmentTable
from binlake.window.derived import Merged

_NAMES = tuple(CHANGE.list_column_names())


def is_base(merged: Merged, changes: WindowChanges, rules: Rules, cells: Sequence[Cell]) -> bool:
    """True if every row of a window is one of a full load, and its net change that row.

    Not for tables without a key, whose equal rows are one net change, nor if tables may share a target: then several
    rows of a key, or rows before the window, count.
    """
    is_plain = not rules.routes and all(cell.identity != "row" for cell in cells)
    return is_plain and not changes.holds and not changes.earlier and 0 < merged.rows == merged.base


def build_base_rows(changes: WindowChanges, window: str, cells: Sequence[Cell]) -> NetRows:
    """The net changes of `cells` in the rows of `changes`."""
    groups = _list_groups([run for part in changes.parts for run in part.list_runs()])
    read = partial(_derive, window=window, cells=tuple(cells))
    mapped = tuple((n, tuple(MappedRows(rows, read, COLUMNS) for rows in own)) for n, own in groups)
    sizes = _count_rows(changes.parts, cells)
    return NetRows((), rowhash.merge_folds([]), mapped, sizes, None, frozenset(cells), is_base=True)


def _list_groups(runs: Sequence[Run]) -> Iterator[Group]:
    """The runs by groups of neighbouring commit_ts, one for each transaction unless there are many."""
    commits = np.unique(np.concatenate([_read_commits(run.rows) for run in runs]))
    each = -(-len(commits) // MOST_GROUPS)
    for number, first in enumerate(range(0, len(commits), each)):
        least, most = int(commits[first]), int(commits[min(first + each, len(commits)) - 1])
        own = [_select(run, least, most) for run in runs if run.least <= most and run.greatest >= least]
        yield number, tuple(own)


def _read_commits(rows: Rows) -> Ints:
    batches = [np.unique(np.asarray(batch.column(0))) for batch in rows.read([History.COMMIT_TS])]
    return np.unique(np.concatenate([np.empty(0, np.int64), *batches]))


def _select(run: Run, least: int, most: int) -> Rows:
    """The rows of `run` with a commit_ts from `least` to `most`."""
    if least <= run.least and run.greatest <= most:
        return run.rows
    if isinstance(run.rows, FileRows):
        lo, hi = run.rows.within or (least - 1, most)
        return replace(run.rows, within=(max(lo, least - 1), min(hi, most)))
    if isinstance(run.rows, HeldRows):
        return HeldRows(_cut(run.rows.table, least, most))
    return MappedRows(run.rows, partial(_cut, least=least, most=most), COLUMNS)


def _cut(rows: pa.Table, least: int, most: int) -> pa.Table:
    commits = np.asarray(rows[History.COMMIT_TS])
    inside = np.flatnonzero((commits >= least) & (commits <= most))
    if not len(inside) or inside[-1] - inside[0] + 1 == len(inside):
        # Rows that merge has just decoded are in commit order.
        return rows.slice(int(inside[0]) if len(inside) else 0, len(inside))
    return rows.take(pa.array(inside))


def _derive(rows: pa.Table, window: str, cells: Sequence[Cell]) -> pa.Table:
    """The rows of `change` for rows of `mutation`. Raises SchemaError for a NULL in a key."""
    forms = split_rows_by_key_form(combine_into_batch(rows), cells)
    net = pa.concat_tables(
        [NET.empty_table(), *(compute_net_of_runs(start_runs(read_key_events(form)), cells) for form in forms)]
    )
    return net.append_column(Change.WINDOW, pa.repeat(window, net.num_rows)).select(_NAMES)


def _count_rows(parts: Sequence[Rows], cells: Sequence[Cell]) -> dict[SegmentTable, int]:
    """The number of rows by place; the window has one segment."""
    names, counts = [Mutation.DB, Mutation.TABLE], Counter[tuple[str, str]]()
    for part in parts:
        for batch in part.read(names):
            counted = pa.Table.from_batches([batch]).group_by(names).aggregate([([], "count_all")])
            counts.update({(row[names[0]], row[names[1]]): row["count_all"] for row in counted.to_pylist()})
    own = {(cell.db, cell.table): SegmentTable(cell.segment, cell.db, cell.table) for cell in cells}
    return dict(sorted((own[name], count) for name, count in counts.items() if name in own))
