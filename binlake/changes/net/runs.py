"""Runs of changes of a key, in columns: the data for the net change, and the reduction of several runs to one.

An event is a run of one change. Runs of any parts of the window, in any order, reduce to the run of the whole window.
So a task can reduce its rows before it sends them, and a key with a million changes is sent only a few times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.changes.net.events import KeyEvents, RowsOfForm
from binlake.changes.net.images import ABSENT, MAP, POSITION, Bools, Groups, Images, Ints, Positions
from binlake.common.arrowcolumns import encode_dictionary

FIELDS: tuple[tuple[str, Any], ...] = (
    ("cell", pa.int32()),
    ("key", pa.string()),
    *((f"{edge}_{name}", pa.int64()) for edge in ("first", "last", "old") for name in POSITION),
    ("was_there", pa.bool_()),
    ("is_there", pa.bool_()),
    ("weight", pa.int64()),
    ("mutations", pa.int64()),
    ("old", MAP),
    ("new", MAP),
    ("least_source", pa.string()),
    ("most_source", pa.string()),
    ("least_id", pa.int64()),
    ("most_id", pa.int64()),
)


@dataclass(frozen=True)
class RunImages:
    """The images of runs: `rows` has the row number of each run's image, or ABSENT if it has none."""

    images: Images
    rows: Ints

    def take(self, numbers: Ints) -> RunImages:
        """The images of the runs `numbers`; ABSENT stays."""
        return RunImages(self.images, np.where(numbers == ABSENT, ABSENT, self.rows[numbers]))

    def take_maps(self) -> pa.MapArray:
        """The images themselves."""
        return self.images.take_maps(self.rows)


@dataclass(frozen=True)
class Writers:
    """The source tables that made a run's changes: the least and the greatest of `names` (by number) and of table
    ids."""

    names: pa.Array
    least: Ints
    most: Ints
    least_id: Ints
    most_id: Ints

    def take(self, numbers: Ints) -> Writers:
        """The writers of the runs `numbers`."""
        return Writers(self.names, *(codes[numbers] for codes in (self.least, self.most, self.least_id, self.most_id)))


@dataclass(frozen=True)
class Runs:
    """Per run: the key and its cell (a number), and the positions of its `first` and `last` change.

    `old`: the first image before a change, at position `shown`; `new`: the last image after a change. `was_there`,
    `is_there`: whether the key's row exists before and after the run, by its first and its last change; `weight`: the
    number of rows that the changes add; `writers`: set if source tables share a target table.
    """

    keys: pa.Array
    cells: Ints
    first: Positions
    last: Positions
    shown: Positions
    was_there: Bools
    is_there: Bools
    weight: Ints
    mutations: Ints
    old: RunImages
    new: RunImages
    writers: Writers | None

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, numbers: Ints) -> Runs:
        """The runs with these `numbers`."""
        return Runs(
            keys=self.keys.take(pa.array(numbers)),
            cells=self.cells[numbers],
            first=self.first.take(numbers),
            last=self.last.take(numbers),
            shown=self.shown.take(numbers),
            was_there=self.was_there[numbers],
            is_there=self.is_there[numbers],
            weight=self.weight[numbers],
            mutations=self.mutations[numbers],
            old=self.old.take(numbers),
            new=self.new.take(numbers),
            writers=self.writers and self.writers.take(numbers),
        )


def start_runs(events: KeyEvents, given: RowsOfForm | None = None) -> Runs:
    """A run for each of `events`; with its writers if their rows (with SOURCE) are `given`."""
    count, at = len(events.keys), events.positions
    return Runs(
        keys=events.keys,
        cells=events.cells,
        first=at,
        last=at,
        shown=at,
        was_there=~events.comes,
        is_there=~events.ends,
        weight=events.comes.astype(np.int64) - events.ends,
        mutations=np.ones(count, np.int64),
        old=RunImages(events.before, events.old),
        new=RunImages(events.after, events.new),
        writers=None if given is None else _read_writers(given, events.rows),
    )


def _read_writers(given: RowsOfForm, rows: Ints) -> Writers:
    distinct, at = np.unique(rows, return_inverse=True)
    sources = given.batch.select(["source_db", "source_table", "table_id"]).take(pa.array(distinct))
    names = pc.binary_join_element_wise(sources.column("source_db"), sources.column("source_table"), ".")
    known, codes = _number_texts([names])
    numbers, ids = codes[0][at], np.asarray(sources.column("table_id"))[at]
    return Writers(known, numbers, numbers, ids, ids)


def _number_texts(columns: Sequence[pa.Array]) -> tuple[pa.Array, list[Ints]]:
    """(the distinct texts, sorted; each column as indexes into them)."""
    texts = encode_dictionary(pa.concat_arrays(list(columns)))
    order = np.asarray(pc.sort_indices(texts.dictionary))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    codes = rank[np.asarray(texts.indices)]
    return texts.dictionary.take(pa.array(order)), np.split(codes, np.cumsum([len(column) for column in columns])[:-1])


def reduce_runs(runs: Runs) -> Runs:
    """Reduce to one run per key of a cell."""
    groups = _group_by_key(runs)
    if groups.count == len(runs):
        return runs
    first, last = groups.find_first(runs.first), groups.find_last(runs.last)
    old = groups.find_first(runs.shown, runs.old.rows != ABSENT)
    return Runs(
        keys=runs.keys.take(pa.array(first)),
        cells=runs.cells[first],
        first=runs.first.take(first),
        last=runs.last.take(last),
        shown=runs.shown.take(np.where(old == ABSENT, first, old)),
        was_there=runs.was_there[first],
        is_there=runs.is_there[last],
        weight=groups.compute_sums(runs.weight),
        mutations=groups.compute_sums(runs.mutations),
        old=runs.old.take(old),
        new=runs.new.take(groups.find_last(runs.last, runs.new.rows != ABSENT)),
        writers=_merge_writers(runs.writers, groups),
    )


def _group_by_key(runs: Runs) -> Groups:
    keys = encode_dictionary(runs.keys)
    codes, count = np.asarray(keys.indices), len(keys.dictionary)
    if len(runs) and (runs.cells != runs.cells[0]).any():
        cells, numbers = np.unique(runs.cells, return_inverse=True)
        pairs = encode_dictionary(pa.array(codes.astype(np.int64) * len(cells) + numbers))
        codes, count = np.asarray(pairs.indices), len(pairs.dictionary)
    return Groups(codes, count)


def _merge_writers(writers: Writers | None, groups: Groups) -> Writers | None:
    if writers is None:
        return None
    least, most = groups.find_least(writers.least), groups.find_greatest(writers.most)
    return Writers(
        writers.names, least, most, groups.find_least(writers.least_id), groups.find_greatest(writers.most_id)
    )


def runs_to_table(runs: Runs) -> pa.Table:
    """`runs` as an Arrow table (FIELDS); the inverse of `runs_from_table`."""
    kinds = pa.schema(FIELDS)
    positions = [pa.array(column, pa.int64()) for at in (runs.first, runs.last, runs.shown) for column in at.columns]
    sums = [pa.array(runs.was_there), pa.array(runs.is_there), pa.array(runs.weight), pa.array(runs.mutations)]
    images = [runs.old.take_maps(), runs.new.take_maps()]
    writers = [pa.nulls(len(runs), field.type) for field in kinds][-4:]
    if runs.writers is not None:
        known = runs.writers
        names = [known.names.take(pa.array(codes)) for codes in (known.least, known.most)]
        writers = [*names, pa.array(known.least_id), pa.array(known.most_id)]
    cells = pa.array(runs.cells, pa.int32())
    return pa.Table.from_arrays([cells, runs.keys, *positions, *sums, *images, *writers], schema=kinds)


def runs_from_table(table: pa.Table) -> Runs:
    """Read the runs of one table, or several concatenated tables, written by `runs_to_table`."""
    columns = {name: _join_chunks(table[name]) for name, _ in FIELDS}
    first, last, shown = (
        Positions(tuple(np.asarray(columns[f"{edge}_{name}"]) for name in POSITION))
        for edge in ("first", "last", "old")
    )
    return Runs(
        keys=columns["key"],
        cells=np.asarray(columns["cell"]),
        first=first,
        last=last,
        shown=shown,
        was_there=np.asarray(columns["was_there"]),
        is_there=np.asarray(columns["is_there"]),
        weight=np.asarray(columns["weight"]),
        mutations=np.asarray(columns["mutations"]),
        old=_show_all(columns["old"]),
        new=_show_all(columns["new"]),
        writers=_build_writers(columns),
    )


def _show_all(maps: pa.MapArray) -> RunImages:
    images = Images(maps)
    return RunImages(images, np.where(images.is_there, np.arange(len(maps)), ABSENT))


def _build_writers(columns: dict[str, pa.Array]) -> Writers | None:
    if columns["least_source"].null_count:
        return None
    names, (least, most) = _number_texts([columns["least_source"], columns["most_source"]])
    return Writers(names, least, most, np.asarray(columns["least_id"]), np.asarray(columns["most_id"]))


def _join_chunks(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
