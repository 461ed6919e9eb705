"""The net change of each key in each segment, derived by tasks (DESIGN 3.6, hazards R-17, R-18).

A first task reduces its rows to one run for each key, so a key that is changed a million times costs no more than a
million other rows. A second one reduces a group of the keys completely. How many groups there are follows from the
window alone, so the result does not depend on the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.base.rowhash import hash_rows
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
from binlake.ddl.definitions import Cell
from binlake.rows.codec import MUTATION_SCHEMA
from binlake.spark_jobs.engine.blocks import RowStore
from binlake.spark_jobs.engine.engine import Engine
from binlake.spark_jobs.engine.exchange import Shares, Split, exchange
from binlake.spark_jobs.engine.rows import HeldRows, Rows, read_table

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
        return self.reduce([HeldRows(piece) for piece in pieces])


Reduce = ReduceGroup | ReduceAtOnce
"""Computes NET of a group's rows."""
Group = tuple[int, tuple[Rows, ...]]
"""The number of a group of keys, and its rows."""


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
