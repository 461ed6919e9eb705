"""The rows of `change`, derived by tasks, one for each group of keys: into files of the lake, or into memory only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from binlake.base import rowhash
from binlake.base.arrowcolumns import number_values
from binlake.base.lakecolumns import Change
from binlake.base.rowhash import Fold
from binlake.ddl.definitions import Cell, SegmentTable
from binlake.lake.parts import TablePart, write_parts
from binlake.lake.tables import CHANGE
from binlake.spark_jobs.engine.engine import Keeper
from binlake.spark_jobs.engine.lakerows import list_written_rows
from binlake.spark_jobs.engine.rows import FileRows, HeldRows, Rows
from binlake.spark_jobs.tables.baserows import BaseBlock, BlockRows, fold_blocks
from binlake.spark_jobs.tables.netchange import Group, Reduce

MOST_PLACES = 32
"""Tables and segments of a group whose rows are apart in its file; of more of them, each would have too few rows."""
_GROUP_ROWS = 100_000
"""Rows of a row group: Arrow would cut a longer one, and they are counted here."""


@dataclass(frozen=True)
class NetRows:
    """The net changes of a window: files, their fold, the rows by group, and the number of rows (copies) by place.

    `places`: the same rows by place; None if one group has too many of them. `cells`: the tables and segments whose
    changes they are. `blocks`: the rows as blocks of a full load instead of groups.
    """

    parts: tuple[TablePart, ...]
    fold: Fold
    groups: tuple[Group, ...]
    sizes: Mapping[SegmentTable, int]
    places: tuple[tuple[SegmentTable, Rows], ...] | None
    cells: frozenset[Cell] = frozenset()
    blocks: tuple[BaseBlock, ...] = ()

    @property
    def is_held(self) -> bool:
        """True if this process has all rows in memory."""
        return all(isinstance(rows, HeldRows) for _, own in self.groups for rows in own)

    def hold(self, kept: Sequence[pa.Table]) -> NetRows:
        """The same rows of one group in memory: `kept`, a table for each row group."""
        rows: tuple[Rows, ...] = tuple(map(HeldRows, kept))
        places = (
            None if self.places is None else [(place, own) for (place, _), own in zip(self.places, rows, strict=True)]
        )
        groups = tuple((number, rows) for number, _ in self.groups)
        return replace(self, groups=groups, places=None if places is None else tuple(places))

    @classmethod
    def of_blocks(cls, blocks: Sequence[BaseBlock], cells: Iterable[Cell]) -> NetRows:
        """The rows of `blocks`, each of which is its own net change."""
        by_place: dict[SegmentTable, list[BaseBlock]] = {}
        for block in blocks:
            by_place.setdefault(block.place, []).append(block)
        sizes = {place: sum(len(block.maps) for block in own) for place, own in sorted(by_place.items())}
        places = tuple((place, BlockRows(tuple(own))) for place, own in sorted(by_place.items()))
        return cls((), fold_blocks(blocks), (), sizes, places, frozenset(cells), tuple(blocks))

    @classmethod
    def join(cls, some: Iterable[NetRows]) -> NetRows:
        """All of `some` together."""
        every = list(some)
        places = [one.places for one in every if one.places is not None]
        return cls(
            tuple(part for one in every for part in one.parts),
            rowhash.merge_folds(one.fold for one in every),
            tuple(group for one in every for group in one.groups),
            sum_sizes(one.sizes for one in every),
            tuple(place for own in places for place in own) if len(places) == len(every) else None,
        )


@dataclass(frozen=True)
class HoldGroup:
    """Derives the net changes of a group of keys into this process's memory."""

    reduce: Reduce
    window: str

    def __call__(self, group: Group) -> NetRows:
        """Raises SchemaError."""
        number, runs = group
        made = _Made()
        rows = tuple(map(HeldRows, _compute_rows(self.reduce(runs), self.window, made)))
        places = tuple((place, one) for place, one in zip(made.places, rows, strict=True) if place is not None)
        fold = rowhash.merge_folds(made.folds)
        whole = len(places) == len(rows)
        return NetRows((), fold, ((number, rows),) if rows else (), sum_sizes(made.sizes), places if whole else None)


@dataclass(frozen=True)
class WriteGroup:
    """Writes the net changes of a group of keys to files of `change` in `folder`."""

    reduce: Reduce
    window: str
    folder: str
    keeper: Keeper

    def __call__(self, group: Group) -> NetRows:
        """Raises SchemaError, OSError."""
        net, kept = self.write(group, self.keeper)
        return net if kept is None else net.hold(kept)

    def write(self, group: Group, keeper: Keeper) -> tuple[NetRows, list[pa.Table] | None]:
        """(the rows in files, the same in memory if they fit). Raises SchemaError, OSError."""
        number, runs = group
        made = _Made()
        kept: list[pa.Table] = []
        parts = write_parts(self.folder, CHANGE, keeper.keep(_compute_rows(self.reduce(runs), self.window, made), kept))
        fold = rowhash.merge_folds(made.folds)
        rows = tuple(list_written_rows(self.folder, parts))
        pieces = [one for part in parts for one in _list_row_groups(self.folder, part, made.nbytes)]
        places = [(place, piece) for place, piece in zip(made.places, pieces, strict=True) if place is not None]
        whole = len(places) == len(made.places)
        own = ((number, rows),) if fold.count else ()
        net = NetRows(tuple(parts), fold, own, sum_sizes(made.sizes), tuple(places) if whole else None)
        return net, kept if sum(table.num_rows for table in kept) == fold.count else None


@dataclass
class _Made:
    """What a task knows of its rows: folds and sizes, and the place (None: several) and bytes of each row group."""

    folds: list[Fold] = field(default_factory=list)
    sizes: list[Mapping[SegmentTable, int]] = field(default_factory=list)
    places: list[SegmentTable | None] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)


def _compute_rows(reduced: Iterable[pa.Table], window: str, made: _Made) -> Iterator[pa.Table]:
    """The rows of `reduced` as in `change`; each table becomes a row group."""
    names = CHANGE.list_column_names()
    for net in reduced:
        if not net.num_rows:
            continue
        rows = net.append_column(Change.WINDOW, pa.repeat(window, net.num_rows)).select(names)
        made.folds.append(rowhash.fold(rowhash.hash_rows(rows, names)))
        made.sizes.append(sizes := measure_sizes(rows))
        apart: Iterable[tuple[SegmentTable | None, pa.Table]] = [(None, rows)]
        for place, own in split_by_place(rows) if len(sizes) <= MOST_PLACES else apart:
            for first in range(0, own.num_rows, _GROUP_ROWS):
                made.places.append(place)
                made.nbytes.append((piece := own.slice(first, _GROUP_ROWS)).nbytes)
                yield piece


def _list_row_groups(folder: str, part: TablePart, sizes: Sequence[int]) -> list[Rows]:
    """The row groups of the only file of a group of keys; it has one window."""
    return [FileRows(((f"{folder}/{part.path}", (number,)),), size) for number, size in enumerate(sizes)]


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
