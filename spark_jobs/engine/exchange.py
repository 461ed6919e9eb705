"""Brings rows of equal keys together: each task splits its rows by share of keys, later tasks read one share each.

The share of a row follows from its content alone, so that two tasks, on any engine, give equal keys the same share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from binlake.spark_jobs.engine.blocks import RowStore
from binlake.spark_jobs.engine.engine import Engine
from binlake.spark_jobs.engine.rows import Rows

Shares = NDArray[np.int64]
Found = TypeVar("Found")


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
