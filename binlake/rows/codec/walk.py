"""Many rows of one definition and kind at once: the columns in lockstep, one column of all rows after the other.

Rule: a row that this walk accepts has the texts that TableDecoder gives it; every other row (odd column ids, another
order, unexpected datums, damage) is left to TableDecoder, which decodes it or says what is wrong. A column that a row
lacks is normal: TiDB leaves NULLs out of inserts (tidb-binlog 1.11).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from binlake.rows.codec.columns import LaneReader, handle_reader_of, lane_reader_of
from binlake.rows.codec.datum import NIL, VARINT, read_varint, write_int
from binlake.rows.codec.lanes import Bools, Ints, Lanes, Spots
from binlake.rows.codec.tabledecoder import KNOWN_DECODERS, TableDecoder
from binlake.rows.codec.values import skip

NULL, FILLED, ABSENT = -1, -2, -3
"""In `Slot.index`: NULL in the row; not in the row, so the filled text; not in the row and not in the image."""

_ROWID = -1
_MOST_PASSES = 4
# The datum of an id and the flag behind it must fit into one word.
_MOST_ID = 1 << 40
FEWEST = 128
"""Below so many rows the plain walk is faster than numpy's calls."""


@dataclass(frozen=True)
class Slot:
    """A column of an image: each row's number in `texts`, or NULL, FILLED, ABSENT."""

    texts: pa.Array
    index: Ints


@dataclass(frozen=True)
class Walked:
    """Rows (numbers in the lanes) and their images, each a slot per column of the definition's row."""

    rows: Ints
    before: list[Slot] | None
    after: list[Slot] | None


@dataclass(frozen=True)
class _Step:
    """A column as rows name it: `code` is the datum of its id, as a little-endian word under `mask`."""

    code: np.uint64
    mask: np.uint64
    width: int
    slot: int
    reader: LaneReader | None


class LanePlan:
    """What `walk` needs of a definition, built once."""

    def __init__(self, decoder: TableDecoder) -> None:
        table = decoder.table
        self.decoder = decoder
        self._slots = {c.id: slot for slot, c in enumerate(table.row_columns)}
        self._readers = {c.id: lane_reader_of(c) for c in table.row_columns}
        ids = [c.id for c in table.all_columns]
        clustered = table.pk_is_handle or table.is_common_handle
        self.steps = self.steps_of(ids if clustered else [*ids, _ROWID])
        # A delete that lacks one of these has another key than the identity's (TableDecoder.key).
        whole_key = len(decoder.key_slots) == len(table.identity().columns)
        self.needed = decoder.key_slots if whole_key else list(range(len(decoder.names)))
        self.handle = [(slot, handle_reader_of(column)) for slot, column in decoder.handle]

    def steps_of(self, ids: Sequence[int]) -> list[_Step]:
        """Steps over columns in the order of `ids`; those that the definition lacks are passed over."""
        return [_step(i, self._slots.get(i, -1), self._readers.get(i)) for i in ids]


def _step(column_id: int, slot: int, reader: LaneReader | None) -> _Step:
    code = write_int(column_id)
    mask = (1 << 8 * len(code)) - 1
    return _Step(np.uint64(int.from_bytes(code, "little")), np.uint64(mask), len(code), slot, reader)


@lru_cache(KNOWN_DECODERS)
def lane_plan_of(decoder: TableDecoder) -> LanePlan:
    """The plan of a definition, kept while it is among those used last."""
    return LanePlan(decoder)


def walk(decoder: TableDecoder, op: str, lanes: Lanes) -> Iterator[Walked]:
    """What of the rows (of kind `op`: insert, update, delete) can be read at once; the others are for TableDecoder."""
    if len(lanes) < FEWEST or not decoder.key_slots:
        return
    lane_plan = lane_plan_of(decoder)
    left, steps = np.arange(len(lanes)), lane_plan.steps
    for _ in range(_MOST_PASSES):
        found = _Walk(lane_plan, lanes, left, steps)
        walked = found.images(op)
        if walked.rows.size:
            yield walked
        left = left[~found.good]
        if left.size < FEWEST:
            return
        ids = _ids_of(op, lanes.row(int(left[0])), len(decoder.handle))
        if not ids:
            return
        steps = lane_plan.steps_of(ids)


class _Walk:
    """One pass over the rows `which`: `at` is where each row is, `good` whether it still fits."""

    def __init__(self, plan: LanePlan, lanes: Lanes, which: Ints, steps: list[_Step]) -> None:
        self.plan, self.lanes, self.which, self.steps = plan, lanes, which, steps
        self.at, self.ends = lanes.starts[which], lanes.ends[which]
        self.good: Bools = np.ones(len(which), np.bool_)

    def images(self, op: str) -> Walked:
        """The images of the rows that fit. Of a delete, rows without a column of the key do not."""
        before = after = None
        if op == "insert":
            after = self._insert()
        elif op == "update":
            before, after = self._update()
        else:
            before = self._delete()
        self.good &= self.at == self.ends
        kept = np.flatnonzero(self.good)
        return Walked(self.which[kept], _only(before, kept), _only(after, kept))

    def _insert(self) -> list[Slot]:
        starts = []
        for _ in self.plan.handle or (None,):
            starts.append(self.at)
            self._move(np.arange(len(self.at)), *self._spots(None).skipped())
        empty = (self.ends - self.at == 1) & (self.lanes.byte(self.at) == 0)
        self.at = self.at + empty
        slots, _ = self._columns()
        for (slot, reader), start in zip(self.plan.handle, starts, strict=False):
            if slot >= 0:
                slots[slot] = self._from_handle(slots[slot], reader, start)
        return slots

    def _update(self) -> tuple[list[Slot], list[Slot]]:
        before, first = self._columns()
        after, second = self._columns()
        self.good &= (first == second).all(axis=0) & first.any(axis=0)
        return before, after

    def _delete(self) -> list[Slot]:
        slots, _ = self._columns()
        for slot in self.plan.needed:
            self.good &= slots[slot].index != FILLED
        return [Slot(s.texts, np.where(s.index == FILLED, ABSENT, s.index)) for s in slots]

    def _from_handle(self, slot: Slot, reader: LaneReader, start: Ints) -> Slot:
        rows = np.flatnonzero(slot.index == FILLED)
        if not rows.size:
            return slot
        cells = reader(Spots(self.lanes, self.which[rows], start[rows], self.ends[rows]))
        self.good[rows] &= cells.good
        index = slot.index.copy()
        index[rows] = np.arange(len(slot.texts), len(slot.texts) + rows.size)
        return Slot(pa.concat_arrays([slot.texts, cells.texts]) if len(slot.texts) else cells.texts, index)

    def _columns(self) -> tuple[list[Slot], Bools]:
        """A slot per column, and for each step which rows hold it."""
        lacking = Slot(_NO_TEXTS, np.full(len(self.at), FILLED))
        held = np.zeros((len(self.steps), len(self.at)), np.bool_)
        slots = [lacking] * len(self.plan.decoder.names)
        for n, step in enumerate(self.steps):
            word = self.lanes.words(self.at)
            has = held[n] = (word & step.mask == step.code) & (self.at + step.width < self.ends)
            if has.any():
                slot = self._column(step, has, (word >> 8 * step.width) & 0xFF == NIL)
                if step.slot >= 0:
                    slots[step.slot] = slot
        return slots, held

    def _column(self, step: _Step, has: Bools, null: Bools) -> Slot:
        null &= has
        valued = np.flatnonzero(has & ~null)
        spots = self._spots(None if valued.size == len(self.at) else valued, step.width)
        index = np.where(null, NULL, FILLED)
        index[valued] = np.arange(valued.size)
        self.at = np.where(null, self.at + step.width + 1, self.at)
        if not valued.size:
            return Slot(_NO_TEXTS, index)
        if step.reader is None:
            self._move(valued, *spots.skipped())
            return Slot(_NO_TEXTS, index)
        cells = step.reader(spots)
        self._move(valued, cells.next, cells.good)
        return Slot(cells.texts, index)

    def _spots(self, rows: Ints | None, ahead: int = 0) -> Spots:
        if rows is None:
            return Spots(self.lanes, self.which, self.at + ahead, self.ends)
        return Spots(self.lanes, self.which[rows], self.at[rows] + ahead, self.ends[rows])

    def _move(self, rows: Ints, after: Ints, good: Bools) -> None:
        """Put `rows` behind their datums; a row that does not fit is at its end from then on."""
        ends = self.ends[rows]
        good = good & (after <= ends)
        self.at = self.at.copy()
        self.at[rows] = np.where(good, after, ends)
        self.good[rows] &= good


_NO_TEXTS = pa.array([], pa.string())


def _only(slots: list[Slot] | None, rows: Ints) -> list[Slot] | None:
    if slots is None or all(len(rows) == len(slot.index) for slot in slots):
        return slots
    return [Slot(s.texts, s.index[rows]) for s in slots]


def _ids_of(op: str, row: bytes, handles: int) -> list[int]:
    """The column ids of a row, of an update those of its first half; [] for a row that none can follow."""
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
