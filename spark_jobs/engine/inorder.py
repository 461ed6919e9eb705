"""Reads the rows of many parts in their total order, holding only rows that overlap in commit_ts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from binlake.base.lakecolumns import History
from binlake.spark_jobs.engine.rows import Rows, SortedRun

BATCH_ROWS = 20_000
"""Most rows of a batch that a reader gets."""
_GREATEST = (1 << 63) - 1


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
