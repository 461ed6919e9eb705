"""The effect of a window's row changes on keys, in columns (`changes.net.net` has the rules).

An update that changes the key removes the row of the old key and writes the new key. An update of a row without a key
removes the whole row and adds it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.changes.net.images import ABSENT, POSITION, Bools, Images, Ints, Positions
from binlake.common.arrowcolumns import encode_dictionary
from binlake.common.lakecolumns import Mutation
from binlake.ddl.definitions import Cell, KeyForm
from binlake.errors import SchemaError
from binlake.rows.codec.assemble import format_key_texts

COLUMNS = (*POSITION, Mutation.DB, Mutation.TABLE, Mutation.BEFORE, Mutation.AFTER)
"""The columns of `mutation` from which the net change is computed."""
SOURCE = (Mutation.SOURCE_DB, Mutation.SOURCE_TABLE, Mutation.TABLE_ID)
"""The additional columns that are needed if several source tables share a target table."""
PLACE = (("segment", pa.int32()), ("db", pa.string()), ("table", pa.string()))
"""The columns that name a cell."""


@dataclass(frozen=True)
class KeyEvents:
    """The effect of row changes on the keys of their cells.

    Per event: `keys`, `cells` (numbers), `positions` and the number of its row (`rows`); `old` (`new`): the row whose
    image before (after) the event shows, or ABSENT. An event with `ends` removes the row of its key; an event with
    `comes` adds one.
    """

    keys: pa.Array
    cells: Ints
    positions: Positions
    rows: Ints
    before: Images
    after: Images
    old: Ints
    new: Ints
    ends: Bools
    comes: Bools


@dataclass(frozen=True)
class RowsOfForm:
    """The rows (by number) of a batch of `mutation` whose cells have keys of one form, and the cell of each row.

    Many small tables and segments are so processed together. `every`: all cells, by number.
    """

    form: KeyForm
    every: Sequence[Cell]
    batch: pa.RecordBatch
    rows: Ints
    cells: Ints
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
            for name, filled in zip(self.form.columns, self.form.filled, strict=True)
        ]
        if self.form.identity != "row":
            self._require_values(present, columns)
        return present, format_key_texts(columns)

    def _require_values(self, present: Ints, columns: Sequence[pa.Array]) -> None:
        for texts in columns:
            if texts.null_count:
                bad = present[np.flatnonzero(np.asarray(texts.is_null()))]
                times = np.asarray(self.batch.column(Mutation.COMMIT_TS))[self.rows[bad]]
                first = int(np.argmin(times))
                cell = self.every[int(self.cells[bad[first]])]
                where = {"table": f"{cell.db}.{cell.table}", "commit_ts": int(times[first])}
                raise SchemaError("a key column is NULL or absent", where=where)


def split_rows_by_key_form(batch: pa.RecordBatch, cells: Sequence[Cell]) -> Iterator[RowsOfForm]:
    """The rows of `batch` (COLUMNS of `mutation`) by the form of their keys; rows outside all cells are left out.

    The cells of a table do not overlap.
    """
    if not batch.num_rows:
        return
    before, after = Images(batch.column(Mutation.BEFORE)), Images(batch.column(Mutation.AFTER))
    numbers = _find_cells(batch, cells)
    forms, by_cell = number_key_forms(cells)
    for number, rows in group_rows(np.append(by_cell, ABSENT)[numbers]):
        if number != ABSENT:
            yield RowsOfForm(forms[number], cells, batch, rows, numbers[rows], before, after)


def number_key_forms(cells: Sequence[Cell]) -> tuple[list[KeyForm], Ints]:
    """(the forms of the keys of `cells`, the number of each cell's form)."""
    numbers: dict[KeyForm, int] = {}
    by_cell = [numbers.setdefault(cell.key_form, len(numbers)) for cell in cells]
    return list(numbers), np.array(by_cell, np.int64)


def group_rows(codes: Ints) -> Iterator[tuple[int, Ints]]:
    """(code, the numbers of its rows in order) of each of the `codes` of rows, ascending."""
    order = np.argsort(codes, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
        if len(rows):
            yield int(codes[rows[0]]), rows


def take_places(cells: Sequence[Cell], numbers: Ints) -> list[pa.Array]:
    """PLACE of the cells with these `numbers`."""
    at = pa.array(numbers)
    return [pa.array([getattr(cell, name) for cell in cells], kind).take(at) for name, kind in PLACE]


def _find_cells(batch: pa.RecordBatch, cells: Sequence[Cell]) -> Ints:
    """The number of each row's cell, or ABSENT."""
    own: dict[tuple[str, str], list[int]] = {}
    for number in sorted(range(len(cells)), key=lambda number: cells[number].since):
        own.setdefault((cells[number].db, cells[number].table), []).append(number)
    commit_ts = np.asarray(batch.column(Mutation.COMMIT_TS))
    found = np.full(batch.num_rows, ABSENT)
    for name, rows in group_rows_by_table(batch):
        if name in own:
            numbers = np.array(own[name])
            since, until = (np.array([getattr(cells[n], edge) for n in own[name]]) for edge in ("since", "until"))
            at = np.searchsorted(since, commit_ts[rows], side="right") - 1
            inside = (at >= 0) & (commit_ts[rows] < until[at])
            found[rows[inside]] = numbers[at[inside]]
    return found


def group_rows_by_table(batch: pa.RecordBatch) -> Iterator[tuple[tuple[str, str], Ints]]:
    """((db, table), the numbers of its rows in order) of each table in `batch`."""
    names = [encode_dictionary(batch.column(name)) for name in (Mutation.DB, Mutation.TABLE)]
    texts = [column.dictionary.to_pylist() for column in names]
    dbs, tables = (np.asarray(column.indices) for column in names)
    codes = dbs.astype(np.int64) * len(texts[1]) + tables
    if len(texts[0]) == len(texts[1]) == 1:
        yield (texts[0][0], texts[1][0]), np.arange(batch.num_rows)
        return
    for code, rows in group_rows(codes):
        db, table = divmod(code, len(texts[1]))
        yield (texts[0][db], texts[1][table]), rows


def read_key_events(given: RowsOfForm) -> KeyEvents:
    """The events of the rows' keys. Raises SchemaError for a NULL in a key."""
    old_rows, old_keys = given.read_keys(given.before)
    new_rows, new_keys = given.read_keys(given.after)
    count = len(given.rows)
    if len(old_rows) and len(new_rows) and given.form.identity != "row":
        old_rows, old_keys, keeps_key = _find_moved_keys(count, (old_rows, old_keys), (new_rows, new_keys))
    else:
        keeps_key = np.zeros(count, np.bool_)
    at = np.concatenate([old_rows, new_rows])
    ends = np.zeros(len(at), np.bool_)
    ends[: len(old_rows)] = True
    rows, stays = given.rows[at], keeps_key[at] & ~ends
    positions = given.read_positions()
    return KeyEvents(
        keys=_join(old_keys, new_keys),
        cells=given.cells[at],
        positions=positions if len(at) == count and (at == np.arange(count)).all() else positions.take(at),
        rows=rows,
        before=given.before,
        after=given.after,
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
