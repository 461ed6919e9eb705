"""Decode many rows of one definition and kind at once, in lockstep: one column of all rows after the other.

Rule: if the walk accepts a row, its texts equal those of TableDecoder. Every other row (unexpected column ids, another
order, unexpected datums, damage) is left to TableDecoder, which decodes it or reports the error. A missing column is
normal: TiDB leaves NULLs out of inserts (tidb-binlog 1.11).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from binlake.rows.codec.columns import LaneReader, build_handle_reader, build_lane_reader
from binlake.rows.codec.datum import NIL, VARINT, read_varint, write_int
from binlake.rows.codec.lanes import Bools, Ints, Lanes, Spots
from binlake.rows.codec.tabledecoder import KNOWN_DECODERS, TableDecoder
from binlake.rows.codec.values import skip

NULL, FILLED, ABSENT = -1, -2, -3
"""In `Slot.index`: NULL in the row; not in the row, so that it has the filled text; neither in the row nor in the
image."""

_ROWID = -1
_MOST_PASSES = 4
# The datum of a column id and the flag after it must fit into one word.
_MOST_ID = 1 << 40
FEWEST = 128
"""Below this number of rows, TableDecoder is faster than numpy's calls."""


@dataclass(frozen=True)
class Slot:
    """A column of an image: each row's number in `texts`, or NULL, FILLED, ABSENT."""

    texts: pa.Array
    index: Ints


@dataclass(frozen=True)
class Walked:
    """Rows (numbers in the lanes) and their images; an image is one slot per column of the definition's row."""

    rows: Ints
    before: list[Slot] | None
    after: list[Slot] | None


@dataclass(frozen=True)
class _Step:
    """A column of a row: `code` is the datum of its id, as a little-endian word under `mask`."""

    code: np.uint64
    mask: np.uint64
    width: int
    slot: int
    reader: LaneReader | None


class LanePlan:
    """The data that `walk` needs for a definition, built once."""

    def __init__(self, decoder: TableDecoder) -> None:
        table = decoder.table
        self.decoder = decoder
        self._slots = {c.id: slot for slot, c in enumerate(table.row_columns)}
        self._readers = {c.id: build_lane_reader(c) for c in table.row_columns}
        ids = [c.id for c in table.all_columns]
        clustered = table.pk_is_handle or table.is_common_handle
        self.steps = self.build_steps(ids if clustered else [*ids, _ROWID])
        # If a delete lacks one of these columns, its key is not the identity's (TableDecoder.select_key).
        whole_key = len(decoder.key_slots) == len(table.find_identity().columns)
        self.needed = decoder.key_slots if whole_key else list(range(len(decoder.names)))
        self.handle = [(slot, build_handle_reader(column)) for slot, column in decoder.handle]

    def build_steps(self, ids: Sequence[int]) -> list[_Step]:
        """Steps over columns in the order of `ids`; ids that the definition does not have are skipped."""
        return [_build_step(i, self._slots.get(i, -1), self._readers.get(i)) for i in ids]


def _build_step(column_id: int, slot: int, reader: LaneReader | None) -> _Step:
    code = write_int(column_id)
    mask = (1 << 8 * len(code)) - 1
    return _Step(np.uint64(int.from_bytes(code, "little")), np.uint64(mask), len(code), slot, reader)


@lru_cache(KNOWN_DECODERS)
def look_up_lane_plan(decoder: TableDecoder) -> LanePlan:
    """The plan of a definition, from an LRU cache."""
    return LanePlan(decoder)


def walk(decoder: TableDecoder, op: str, lanes: Lanes) -> Iterator[Walked]:
    """Decode the rows (of kind `op`: insert, update, delete) that can be read at once; TableDecoder reads the
    others."""
    if len(lanes) < FEWEST or not decoder.key_slots:
        return
    lane_plan = look_up_lane_plan(decoder)
    left, steps = np.arange(len(lanes)), lane_plan.steps
    for _ in range(_MOST_PASSES):
        one_pass = _Walk(lane_plan, lanes, left, steps)
        walked = one_pass.read_images(op)
        if walked.rows.size:
            yield walked
        left = left[~one_pass.good]
        if left.size < FEWEST:
            return
        ids = _read_ids(op, lanes.read_row(int(left[0])), len(decoder.handle))
        if not ids:
            return
        steps = lane_plan.build_steps(ids)


class _Walk:
    """One pass over the rows `which`: `at` is the position in each row, `good` says whether the row still fits."""

    def __init__(self, plan: LanePlan, lanes: Lanes, which: Ints, steps: list[_Step]) -> None:
        self.plan, self.lanes, self.which, self.steps = plan, lanes, which, steps
        self.at, self.ends = lanes.starts[which], lanes.ends[which]
        self.good: Bools = np.ones(len(which), np.bool_)

    def read_images(self, op: str) -> Walked:
        """The images of the rows that fit. A delete without a column of the key does not fit."""
        before = after = None
        if op == "insert":
            after = self._insert()
        elif op == "update":
            before, after = self._update()
        else:
            before = self._delete()
        self.good &= self.at == self.ends
        kept = np.flatnonzero(self.good)
        return Walked(self.which[kept], _take_rows(before, kept), _take_rows(after, kept))

    def _insert(self) -> list[Slot]:
        starts = []
        for _ in self.plan.handle or (None,):
            starts.append(self.at)
            self._move(np.arange(len(self.at)), *self._build_spots(None).skip_datums())
        empty = (self.ends - self.at == 1) & (self.lanes.read_bytes(self.at) == 0)
        self.at = self.at + empty
        slots, _ = self._read_columns()
        for (slot, reader), start in zip(self.plan.handle, starts, strict=False):
            if slot >= 0:
                slots[slot] = self._fill_from_handle(slots[slot], reader, start)
        return slots

    def _update(self) -> tuple[list[Slot], list[Slot]]:
        before, first = self._read_columns()
        after, second = self._read_columns()
        self.good &= (first == second).all(axis=0) & first.any(axis=0)
        return before, after

    def _delete(self) -> list[Slot]:
        slots, _ = self._read_columns()
        for slot in self.plan.needed:
            self.good &= slots[slot].index != FILLED
        return [Slot(s.texts, np.where(s.index == FILLED, ABSENT, s.index)) for s in slots]

    def _fill_from_handle(self, slot: Slot, reader: LaneReader, start: Ints) -> Slot:
        rows = np.flatnonzero(slot.index == FILLED)
        if not rows.size:
            return slot
        cells = reader(Spots(self.lanes, self.which[rows], start[rows], self.ends[rows]))
        self.good[rows] &= cells.good
        index = slot.index.copy()
        index[rows] = np.arange(len(slot.texts), len(slot.texts) + rows.size)
        return Slot(pa.concat_arrays([slot.texts, cells.texts]) if len(slot.texts) else cells.texts, index)

    def _read_columns(self) -> tuple[list[Slot], Bools]:
        """A slot per column, and for each step which rows contain its column."""
        lacking = Slot(_NO_TEXTS, np.full(len(self.at), FILLED))
        present = np.zeros((len(self.steps), len(self.at)), np.bool_)
        slots = [lacking] * len(self.plan.decoder.names)
        for n, step in enumerate(self.steps):
            word = self.lanes.read_words(self.at)
            has = present[n] = (word & step.mask == step.code) & (self.at + step.width < self.ends)
            if has.any():
                slot = self._read_column(step, has, (word >> 8 * step.width) & 0xFF == NIL)
                if step.slot >= 0:
                    slots[step.slot] = slot
        return slots, present

    def _read_column(self, step: _Step, has: Bools, null: Bools) -> Slot:
        null &= has
        valued = np.flatnonzero(has & ~null)
        spots = self._build_spots(None if valued.size == len(self.at) else valued, step.width)
        index = np.where(null, NULL, FILLED)
        index[valued] = np.arange(valued.size)
        self.at = np.where(null, self.at + step.width + 1, self.at)
        if not valued.size:
            return Slot(_NO_TEXTS, index)
        if step.reader is None:
            self._move(valued, *spots.skip_datums())
            return Slot(_NO_TEXTS, index)
        cells = step.reader(spots)
        self._move(valued, cells.next, cells.good)
        return Slot(cells.texts, index)

    def _build_spots(self, rows: Ints | None, ahead: int = 0) -> Spots:
        if rows is None:
            return Spots(self.lanes, self.which, self.at + ahead, self.ends)
        return Spots(self.lanes, self.which[rows], self.at[rows] + ahead, self.ends[rows])

    def _move(self, rows: Ints, after: Ints, good: Bools) -> None:
        """Move `rows` after their datums; a row that does not fit moves to its end and stays there."""
        ends = self.ends[rows]
        good = good & (after <= ends)
        self.at = self.at.copy()
        self.at[rows] = np.where(good, after, ends)
        self.good[rows] &= good


_NO_TEXTS = pa.array([], pa.string())


def _take_rows(slots: list[Slot] | None, rows: Ints) -> list[Slot] | None:
    if slots is None or all(len(rows) == len(slot.index) for slot in slots):
        return slots
    return [Slot(s.texts, s.index[rows]) for s in slots]


def _read_ids(op: str, row: bytes, handles: int) -> list[int]:
    """The column ids of a row (of an update: of its first half); [] if the walk cannot follow the row."""
    ids: list[int] = []
    try:
        pos = 0
        for _ in range(max(handles, 1) if op == "insert" else 0):
            pos = skip(row, pos)
        while pos < len(row) and row[pos] == VARINT:
            column_id, pos = read_varint(row, pos + 1)
            if column_id in ids or not -_MOST_ID < column_id < _MOST_ID:
                break
            ids.append(column_id)
            pos = skip(row, pos)
    except (IndexError, ValueError):
        return []
    return ids
