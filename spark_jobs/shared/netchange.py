"""The net change of each key in each segment, derived by tasks: into files of `change`, or into memory only.

Sources: DESIGN 3.6, hazards R-17, R-18. A first task reduces its rows to one run for each key, so a key that is changed
a million times costs no more than a million other rows. A second one reduces a group of the keys completely. How many
groups there are follows from the window alone, so the result does not depend on the engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.changes.net.columns import combine_into_batch, compute_net_of_runs
from binlake.changes.net.events import (
    COLUMNS,
    SOURCE,
    group_rows,
    number_key_forms,
    read_key_events,
    split_rows_by_key_form,
)
from binlake.changes.net.origins import (
    ARRIVALS,
    MOVES,
    STEPS,
    History,
    derive_key_steps,
    find_arrivals,
    find_moves,
    find_origins,
    number_histories,
)
from binlake.changes.net.runs import FIELDS, reduce_runs, runs_from_table, runs_to_table, start_runs
from binlake.common import rowhash
from binlake.common.arrowcolumns import number_values
from binlake.common.lakecolumns import Change
from binlake.common.rowhash import Fold, hash_rows
from binlake.ddl.definitions import Cell, SegmentTable
from binlake.lake.parts import TablePart, write_parts
from binlake.lake.tables import CHANGE
from binlake.rows.codec import MUTATION_SCHEMA
from binlake.spark_jobs.engine.engine import Engine, Keeper, RowStore
from binlake.spark_jobs.engine.exchange import Shares, Split, exchange
from binlake.spark_jobs.engine.rows import FileRows, MemoryRows, Rows, list_written_rows, read_table
from binlake.spark_jobs.shared.baserows import BaseBlock, BlockRows, fold_blocks

GROUP_ROWS = 100_000
"""Row changes of a group of keys: a task that reduces a group holds its rows a few times."""
GROUP_BYTES = 32 << 20
"""Bytes of binlogs of a group of keys."""
MOST_GROUPS = 1024
_IGNORED_KEY_BYTES = len('00"]')
"""Number of final bytes of a key that its group ignores: neighbouring keys are written by one statement, which a server
writes to few pages."""
_ROWS_A_ROUND = 10_000
_RUNS = pa.schema(FIELDS)
Group = tuple[int, tuple[Rows, ...]]
"""The number of a group of keys, and its rows."""
MOST_PLACES = 32
"""Tables and segments of a group whose rows are apart in its file; of more of them, each would have too few rows."""
_GROUP_ROWS = 100_000
"""Rows of a row group: Arrow would cut a longer one, and they are counted here."""


def count_groups(rows: int, size: int) -> int:
    """The number of groups of keys of a window with `rows` row changes and `size` bytes of binlogs: a power of two.

    It depends on sealed counts only, never on the engine: the batches of a group are pinned.
    """
    wanted = max(rows / GROUP_ROWS, size / GROUP_BYTES)
    groups = 1
    while groups < wanted and groups < MOST_GROUPS:
        groups *= 2
    return groups


def find_groups(keys: pa.ChunkedArray | pa.Array, groups: int) -> Shares:
    """The group of each key (JSON text); keys that differ only in their last two bytes are in the same group."""
    if groups == 1:
        return np.zeros(len(keys), np.int64)
    beginnings = pc.binary_slice(keys.cast(pa.binary()), 0, -_IGNORED_KEY_BYTES)
    shares: Shares = (hash_rows(pa.table([beginnings], names=["key"]), ["key"]) % np.uint64(groups)).astype(np.int64)
    return shares


def read_changed_rows(rows: Rows, *, routed: bool) -> pa.RecordBatch:
    """The columns of `mutation` from which net changes are computed; `routed`: with those of the source's table."""
    columns = [*COLUMNS, *(SOURCE if routed else ())]
    return combine_into_batch(read_table([rows], pa.schema([MUTATION_SCHEMA.field(name) for name in columns])))


@dataclass(frozen=True)
class ReduceRows:
    """The first task: the rows of a part, in `cells`, reduced to one run for each key, split by group of keys."""

    cells: tuple[Cell, ...]
    groups: int
    routed: bool

    def __call__(self, rows: Rows) -> Split[None]:
        """Raises SchemaError for a NULL in a key, Permanent."""
        pieces = []
        for given in split_rows_by_key_form(read_changed_rows(rows, routed=self.routed), self.cells):
            runs = runs_to_table(reduce_runs(start_runs(read_key_events(given), given if self.routed else None)))
            pieces.append((runs, find_groups(runs["key"], self.groups)))
        return Split(pieces, None)


@dataclass(frozen=True)
class ReduceGroup:
    """The second task: NET of the runs of a group of keys; cells of `strict` as `compute_net_of_runs`."""

    cells: tuple[Cell, ...]
    strict: frozenset[Cell]

    def __call__(self, parts: Sequence[Rows]) -> Iterator[pa.Table]:
        """NET of the runs, a table for each form of keys. Raises SchemaError."""
        runs = read_table(parts, _RUNS)
        _, form_by_cell = number_key_forms(self.cells)
        for _, rows in group_rows(form_by_cell[np.asarray(runs["cell"])]):
            own = runs if len(rows) == runs.num_rows else runs.take(pa.array(rows))
            yield compute_net_of_runs(reduce_runs(runs_from_table(own)), self.cells, strict=self.strict)


@dataclass(frozen=True)
class ReduceAtOnce:
    """Both tasks in one, for rows of a single group of keys."""

    split: ReduceRows
    reduce: ReduceGroup

    def __call__(self, parts: Sequence[Rows]) -> Iterator[pa.Table]:
        """NET of the rows, a table for each form of keys. Raises as both."""
        pieces = [piece for part in parts for piece, _ in self.split(part).pieces]
        return self.reduce([MemoryRows(piece) for piece in pieces])


Reduce = ReduceGroup | ReduceAtOnce
"""Computes NET of a group's rows."""


@dataclass(frozen=True)
class WindowNetChange:
    """What net changes are computed from: the parts of a window's rows, their cells, and the number of groups."""

    parts: Sequence[Rows]
    cells: Sequence[Cell]
    groups: int
    routed: bool = False
    strict: frozenset[Cell] = frozenset()

    def prepare(self, engine: Engine, store: RowStore) -> tuple[Reduce, list[Group]]:
        """The second task, and its inputs in order; groups without rows are left out. Raises as ReduceRows."""
        cells = tuple(self.cells)
        split, reduce = ReduceRows(cells, self.groups, self.routed), ReduceGroup(cells, self.strict)
        if not cells:
            return reduce, []
        if self.groups == 1 and len(self.parts) == 1:
            # One task has all rows of the only group.
            return ReduceAtOnce(split, reduce), [(0, tuple(self.parts))]
        return reduce, list(exchange(engine, store, split, self.parts).shares.items())


def find_key_arrivals(
    engine: Engine, store: RowStore, parts: Sequence[Rows], cells: Sequence[Cell], groups: int
) -> tuple[list[History], Iterator[pa.RecordBatch]]:
    """(the histories by number, ARRIVALS of the rows in `cells`, in batches). Raises SchemaError."""
    numbers = number_histories(cells)
    steps = exchange(engine, store, partial(_split_steps, cells=tuple(cells), numbers=numbers, groups=groups), parts)
    found = engine.run(partial(_find_arrivals_of, store=store), list(steps.shares.values()))
    return list(numbers), _cut_into_rounds([rows for one in found for rows in one])


def _split_steps(rows: Rows, cells: tuple[Cell, ...], numbers: dict[History, int], groups: int) -> Split[None]:
    steps = derive_key_steps(read_changed_rows(rows, routed=True), cells, numbers)
    return Split([(steps, find_groups(steps["key"], groups))], None)


def _find_arrivals_of(parts: Sequence[Rows], store: RowStore) -> list[Rows]:
    return store.put([find_arrivals(read_table(parts, STEPS))])


def _cut_into_rounds(parts: Sequence[Rows]) -> Iterator[pa.RecordBatch]:
    for rows in parts:
        for batch in rows.read(ARRIVALS.names):
            for first in range(0, batch.num_rows, _ROWS_A_ROUND):
                yield batch.slice(first, _ROWS_A_ROUND)


def find_row_origins(engine: Engine, parts: Sequence[Rows], cells: Sequence[Cell]) -> pa.Table:
    """ORIGINS of the keys in `cells` whose row had another key before the segment, or did not exist.

    Only updates that change a key are sent here.
    """
    moves = engine.run(partial(_find_moves_of, cells=tuple(cells)), parts)
    return find_origins(pa.concat_tables([MOVES.empty_table(), *moves]))


def _find_moves_of(rows: Rows, cells: tuple[Cell, ...]) -> pa.Table:
    return find_moves(read_changed_rows(rows, routed=False), cells)


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
        return all(isinstance(rows, MemoryRows) for _, own in self.groups for rows in own)

    def hold(self, kept: Sequence[pa.Table]) -> NetRows:
        """The same rows of one group in memory: `kept`, a table for each row group."""
        rows: tuple[Rows, ...] = tuple(map(MemoryRows, kept))
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
        rows = tuple(map(MemoryRows, _compute_rows(self.reduce(runs), self.window, made)))
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
