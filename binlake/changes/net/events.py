"""The effect of a window's row changes on keys, cell by cell, in columns (`changes.net.net` has the rules).

An update that changes the key removes the row of the old key and writes the new key. An update of a row without a key
removes the whole row and adds it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.base.dictionaries import encode_dictionary
from binlake.base.lakecolumns import Mutation
from binlake.changes.net.images import ABSENT, Bools, Images, Ints
from binlake.changes.net.positions import POSITION, Positions
from binlake.errors import SchemaError
from binlake.rows.codec.assemble import format_key_texts
from binlake.window.definitions import Cell

COLUMNS = (*POSITION, Mutation.DB, Mutation.TABLE, Mutation.BEFORE, Mutation.AFTER)
"""The columns of `mutation` from which the net change is computed."""
SOURCE = (Mutation.SOURCE_DB, Mutation.SOURCE_TABLE, Mutation.TABLE_ID)
"""The additional columns that are needed if several source tables share a target table."""


@dataclass(frozen=True)
class Events:
    """The effect of the row changes of `cell` on its keys.

    Per event: `keys`, `positions` and the number of its row (`rows`); `old` (`new`): the row whose image before (after)
    the event shows, or ABSENT. An event with `ends` removes the row of its key; an event with `comes` adds one.
    """

    cell: Cell
    keys: pa.Array
    positions: Positions
    rows: Ints
    before: Images
    after: Images
    old: Ints
    new: Ints
    ends: Bools
    comes: Bools


@dataclass(frozen=True)
class CellRows:
    """The rows (by number) of a batch of `mutation` that fall into `cell`."""

    cell: Cell
    batch: pa.RecordBatch
    rows: Ints
    before: Images
    after: Images

    def read_positions(self) -> Positions:
        """The positions of `rows`."""
        return Positions(tuple(np.asarray(self.batch.column(name))[self.rows] for name in POSITION))

    def read_keys(self, images: Images) -> tuple[Ints, pa.Array]:
        """(which of `rows` have an image, their keys). Raises SchemaError for a NULL in a key."""
        present = np.flatnonzero(images.is_there[self.rows])
        rows = self.rows[present]
        columns = [
            images.take_texts(images.find_entries(rows, name), filled)
            for name, filled in zip(self.cell.columns, self.cell.filled, strict=True)
        ]
        if self.cell.identity != "row":
            self._require_values(rows, columns)
        return present, format_key_texts(columns)

    def _require_values(self, rows: Ints, columns: Sequence[pa.Array]) -> None:
        for texts in columns:
            if texts.null_count:
                bad = rows[np.flatnonzero(np.asarray(texts.is_null()))]
                commit_ts = int(np.asarray(self.batch.column(Mutation.COMMIT_TS))[bad].min())
                where = {"table": f"{self.cell.db}.{self.cell.table}", "commit_ts": commit_ts}
                raise SchemaError("a key column is NULL or absent", where=where)


def split_rows_by_cell(batch: pa.RecordBatch, cells: Sequence[Cell]) -> Iterator[CellRows]:
    """The rows of `batch` (COLUMNS of `mutation`) by the cell they fall into; rows outside all cells are left out."""
    if not batch.num_rows:
        return
    before, after = Images(batch.column(Mutation.BEFORE)), Images(batch.column(Mutation.AFTER))
    commit_ts = np.asarray(batch.column(Mutation.COMMIT_TS))
    by_table = {name: list(group) for name, group in groupby(sorted(cells, key=_NAME), key=_NAME)}
    for name, rows in group_rows_by_table(batch):
        for cell in by_table.get(name, ()):
            inside = (commit_ts[rows] >= cell.since) & (commit_ts[rows] < cell.until)
            rows_inside = rows if inside.all() else rows[inside]
            if len(rows_inside):
                yield CellRows(cell, batch, rows_inside, before, after)


_NAME = attrgetter("db", "table")


def group_rows_by_table(batch: pa.RecordBatch) -> Iterator[tuple[tuple[str, str], Ints]]:
    """((db, table), the numbers of its rows in order) of each table in `batch`."""
    names = [encode_dictionary(batch.column(name)) for name in (Mutation.DB, Mutation.TABLE)]
    texts = [column.dictionary.to_pylist() for column in names]
    dbs, tables = (np.asarray(column.indices) for column in names)
    codes = dbs.astype(np.int64) * len(texts[1]) + tables
    if len(texts[0]) == len(texts[1]) == 1:
        yield (texts[0][0], texts[1][0]), np.arange(batch.num_rows)
        return
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    for rows in np.split(order, starts[1:]):
        db, table = divmod(int(codes[rows[0]]), len(texts[1]))
        yield (texts[0][db], texts[1][table]), rows


def read_key_events(rows_of_cell: CellRows) -> Events:
    """The events of the rows' keys. Raises SchemaError for a NULL in a key."""
    old_rows, old_keys = rows_of_cell.read_keys(rows_of_cell.before)
    new_rows, new_keys = rows_of_cell.read_keys(rows_of_cell.after)
    count = len(rows_of_cell.rows)
    if len(old_rows) and len(new_rows) and rows_of_cell.cell.identity != "row":
        old_rows, old_keys, keeps_key = _find_moved_keys(count, (old_rows, old_keys), (new_rows, new_keys))
    else:
        keeps_key = np.zeros(count, np.bool_)
    at = np.concatenate([old_rows, new_rows])
    ends = np.zeros(len(at), np.bool_)
    ends[: len(old_rows)] = True
    rows, stays = rows_of_cell.rows[at], keeps_key[at] & ~ends
    positions = rows_of_cell.read_positions()
    return Events(
        cell=rows_of_cell.cell,
        keys=_join(old_keys, new_keys),
        positions=positions if len(at) == count and (at == np.arange(count)).all() else positions.take(at),
        rows=rows,
        before=rows_of_cell.before,
        after=rows_of_cell.after,
        old=np.where(ends | stays, rows, ABSENT),
        new=np.where(ends, ABSENT, rows),
        ends=ends,
        comes=~ends & ~stays,
    )


def _find_moved_keys(
    count: int, old: tuple[Ints, pa.Array], new: tuple[Ints, pa.Array]
) -> tuple[Ints, pa.Array, Bools]:
    """(rows that leave their old key, these old keys, which of all `count` rows keep their key)."""
    (old_rows, old_keys), (new_rows, new_keys) = old, new
    keeps_key, at_old, at_new = np.zeros(count, np.bool_), np.full(count, ABSENT), np.full(count, ABSENT)
    at_old[old_rows], at_new[new_rows] = np.arange(len(old_rows)), np.arange(len(new_rows))
    both = np.flatnonzero((at_old != ABSENT) & (at_new != ABSENT))
    same = np.asarray(pc.equal(_take_keys(old_keys, at_old[both]), _take_keys(new_keys, at_new[both])))
    keeps_key[both[same]] = True
    ends = np.flatnonzero(~keeps_key[old_rows])
    return old_rows[ends], _take_keys(old_keys, ends), keeps_key


def _join(old: pa.Array, new: pa.Array) -> pa.Array:
    if not (len(old) and len(new)):
        return old if len(old) else new
    return pa.concat_arrays([old, new])


def _take_keys(keys: pa.Array, numbers: Ints) -> pa.Array:
    return keys if len(numbers) == len(keys) else keys.take(pa.array(numbers))
