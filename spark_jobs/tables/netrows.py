"""The rows of `change`, written by tasks, one for each group of keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from binlake.base import rowhash
from binlake.base.dictionaries import number_values
from binlake.base.lakecolumns import Change
from binlake.base.rowhash import Fold
from binlake.lake.parts import Part, write_parts
from binlake.lake.tables import CHANGE
from binlake.window.definitions import Cell, SegmentTable
from spark_jobs.engine.engine import Keeper
from spark_jobs.engine.lakerows import list_written_rows
from spark_jobs.engine.rows import HeldRows, Rows
from spark_jobs.tables.netchange import ReduceGroup

Group = tuple[int, tuple[Rows, ...]]
"""The number of a group of keys, and its rows."""


@dataclass(frozen=True)
class NetRows:
    """The net changes of a window: files, their fold, the rows by group, and the number of rows (copies) by place.

    `cells`: the tables and segments whose changes they are.
    """

    parts: tuple[Part, ...]
    fold: Fold
    groups: tuple[Group, ...]
    sizes: Mapping[SegmentTable, int]
    cells: frozenset[Cell] = frozenset()

    @classmethod
    def join(cls, some: Iterable[NetRows]) -> NetRows:
        """All of `some` together."""
        every = list(some)
        return cls(
            tuple(part for one in every for part in one.parts),
            rowhash.merge_folds(one.fold for one in every),
            tuple(group for one in every for group in one.groups),
            sum_sizes(one.sizes for one in every),
        )


@dataclass(frozen=True)
class WriteGroup:
    """Writes the net changes of a group of keys to files of `change` in `folder`."""

    reduce: ReduceGroup
    window: str
    folder: str
    keeper: Keeper

    def __call__(self, group: Group) -> NetRows:
        """Raises SchemaError, OSError."""
        number, runs = group
        folds: list[Fold] = []
        sizes: list[Mapping[SegmentTable, int]] = []
        kept: list[pa.Table] = []
        parts = write_parts(self.folder, CHANGE, self.keeper.keep(self._compute_rows(runs, folds, sizes), kept))
        fold = rowhash.merge_folds(folds)
        held = sum(table.num_rows for table in kept) == fold.count
        rows: tuple[Rows, ...] = tuple(map(HeldRows, kept)) if held else tuple(list_written_rows(self.folder, parts))
        return NetRows(tuple(parts), fold, ((number, rows),) if fold.count else (), sum_sizes(sizes))

    def _compute_rows(
        self, runs: tuple[Rows, ...], folds: list[Fold], sizes: list[Mapping[SegmentTable, int]]
    ) -> Iterator[pa.Table]:
        names = CHANGE.list_column_names()
        for net in self.reduce(runs):
            if net.num_rows:
                rows = net.append_column(Change.WINDOW, pa.repeat(self.window, net.num_rows)).select(names)
                folds.append(rowhash.fold(rowhash.hash_rows(rows, names)))
                sizes.append(measure_sizes(rows))
                yield rows


def split_by_place(rows: pa.Table) -> Iterator[tuple[SegmentTable, pa.Table]]:
    """The rows of each table and segment, in order of these."""
    codes, places = number_values(rows, SegmentTable._fields)
    if (np.diff(codes) < 0).any():
        order = np.argsort(codes, kind="stable")
        rows, codes = rows.take(pa.array(order)), codes[order]
    ends = np.searchsorted(codes, np.arange(places.num_rows + 1))
    named = [SegmentTable(*row.values()) for row in places.to_pylist()]
    for number in sorted(range(len(named)), key=named.__getitem__):
        yield named[number], rows.slice(int(ends[number]), int(ends[number + 1] - ends[number]))


def measure_sizes(rows: pa.Table) -> dict[SegmentTable, int]:
    """The number of rows of `change`, copies counted, by place."""
    names = list(SegmentTable._fields)
    counted = rows.select([*names, Change.COPIES]).group_by(names).aggregate([(Change.COPIES, "sum")])
    return {SegmentTable(*(row[name] for name in names)): row[f"{Change.COPIES}_sum"] for row in counted.to_pylist()}


def sum_sizes(parts: Iterable[Mapping[SegmentTable, int]]) -> dict[SegmentTable, int]:
    """The total of `parts`, sorted by place."""
    total: Counter[SegmentTable] = Counter()
    for part in parts:
        total.update(part)
    return dict(sorted(total.items()))
