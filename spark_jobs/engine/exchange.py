"""Brings rows of many parts together: rows of equal keys, or all rows in their total order.

By key, each task splits its rows by share of keys, and later tasks read one share each. The share of a row follows from
its content alone, so that two tasks, on any engine, give equal keys the same share. In order, only rows that overlap in
commit_ts are held at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from binlake.common.lakecolumns import History
from binlake.spark_jobs.engine.engine import Engine, RowStore
from binlake.spark_jobs.engine.rows import Rows, SortedRun

Shares = NDArray[np.int64]
Found = TypeVar("Found")
BATCH_ROWS = 20_000
"""Most rows of a batch that a reader gets."""
_GREATEST = (1 << 63) - 1


@dataclass(frozen=True)
class Split(Generic[Found]):
    """What a task made of its rows: `pieces`, each with the share of every row, and a small value `found`."""

    pieces: Sequence[tuple[pa.Table, Shares]]
    found: Found


@dataclass(frozen=True)
class Exchanged(Generic[Found]):
    """The rows of each share, from all tasks, and what each task found, in the order of the inputs."""

    shares: dict[int, tuple[Rows, ...]]
    found: list[Found]


@dataclass(frozen=True)
class _SplitTask(Generic[Found]):
    split: Callable[[Rows], Split[Found]]
    store: RowStore

    def __call__(self, rows: Rows) -> tuple[list[tuple[int, Rows]], Found]:
        split = self.split(rows)
        cut = [one for table, shares in split.pieces for one in _cut_by_share(table, shares)]
        stored = self.store.put([table for _, table in cut])
        return list(zip([share for share, _ in cut], stored, strict=True)), split.found


def exchange(
    engine: Engine, store: RowStore, split: Callable[[Rows], Split[Found]], parts: Sequence[Rows]
) -> Exchanged[Found]:
    """Call `split` with each of `parts`, in tasks, and gather its rows by share in `store`."""
    done = engine.run(_SplitTask(split, store), parts)
    shares: dict[int, list[Rows]] = {}
    for stored, _ in done:
        for share, rows in stored:
            shares.setdefault(share, []).append(rows)
    return Exchanged({share: tuple(shares[share]) for share in sorted(shares)}, [found for _, found in done])


def _cut_by_share(table: pa.Table, shares: Shares) -> Iterator[tuple[int, pa.Table]]:
    if not len(shares):
        return
    if (shares == shares[0]).all():
        yield int(shares[0]), table
        return
    order = np.argsort(shares, kind="stable")
    in_order, table = shares[order], table.take(pa.array(order))
    starts = [0, *(np.flatnonzero(np.diff(in_order)) + 1).tolist()]
    for first, last in zip(starts, [*starts[1:], len(in_order)], strict=True):
        yield int(in_order[first]), table.slice(first, last - first)


@dataclass(frozen=True)
class OrderedRows:
    """The rows of `runs` with since <= commit_ts < until, to be read in order by one task."""

    runs: tuple[SortedRun, ...]
    since: int
    until: int

    def read(self, columns: Sequence[str], order: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """`columns`, sorted by `order`, which begins with commit_ts; batches of at most BATCH_ROWS.

        What is below the least commit_ts of all unread runs is complete.
        """
        waiting: list[pa.RecordBatch] = []
        for number, run in enumerate(self.runs):
            waiting += (own for batch in run.rows.read(columns) if (own := self._select_own(batch)).num_rows)
            following = self.runs[number + 1].least if number + 1 < len(self.runs) else self.until
            if waiting:
                rows = _sort(waiting, order)
                at = int(np.searchsorted(np.asarray(rows.column(History.COMMIT_TS)), following))
                waiting = [rows.slice(at)] if at < rows.num_rows else []
                for first in range(0, at, BATCH_ROWS):
                    yield rows.slice(first, min(BATCH_ROWS, at - first))

    def _select_own(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        ts = np.asarray(batch.column(History.COMMIT_TS))
        inside = (ts >= self.since) & (ts < self.until)
        return batch if inside.all() else batch.filter(pa.array(inside))


def cut_in_order(parts: Sequence[Rows], task_bytes: int) -> list[OrderedRows]:
    """All rows as consecutive ranges of commit_ts of about `task_bytes`; a commit_ts is in one range only."""
    runs = sorted((run for part in parts for run in part.list_runs()), key=lambda run: (run.least, run.greatest))
    starts, size = [-1], 0
    for run in runs:
        if size >= task_bytes and run.least > starts[-1]:
            starts.append(run.least)
            size = 0
        size += run.rows.bytes
    ranges = zip(starts, [*starts[1:], _GREATEST], strict=True)
    cut = [
        OrderedRows(tuple(run for run in runs if run.least < until and run.greatest >= since), since, until)
        for since, until in ranges
    ]
    return [one for one in cut if one.runs]


def _sort(batches: Sequence[pa.RecordBatch], order: Sequence[str]) -> pa.RecordBatch:
    table = pa.Table.from_batches(batches)
    rising = np.lexsort([np.asarray(table[name]) for name in reversed(order)])
    if (np.diff(rising) < 0).any():
        table = table.take(pa.array(rising))
    return table.combine_chunks().to_batches()[0]
