"""Split many small binlogs at once by their protobuf fields: the vectorized `split` and `rows_of` (S0-19 to S0-21).

A binlog with an unknown, deprecated, repeated or missing field, or with anything that protobuf could refuse, is not
`good` here and is left to `split` and `rows_of`. Nothing raises for invalid bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np

from binlake.rows.codec.lanes import Bools, Bytes, Ints, Lanes
from binlake.wire import binlog_pb2 as pb

MOST_BYTES = 4096
"""Largest average size of binlogs in bytes for which splitting together pays: each field costs all binlogs one step."""
_MOST_FIELDS = 96
"""A message with more fields than this is split alone, which costs less work per field."""

# Tags (field << 3 | wire type) of the messages of binlog.proto.
_BINLOG = (0x08, 0x10, 0x18, 0x22, 0x2A, 0x32, 0x38, 0x40)
_PREWRITE_VALUE = 0x2A
_VALUE = (0x08, 0x12)
_VERSION, _MUTATION = _VALUE
_TABLE_ID, _SEQUENCE = 0x08, 0x38
_KIND_OF = {0x12: pb.Insert, 0x1A: pb.Update, 0x32: pb.DeleteRow}
_LENGTHS = np.isin(np.arange(256), [0x12, 0x1A, 0x22, 0x2A, 0x32])


class Fields(NamedTuple):
    """Fields in the order of their messages: message, tag, value (for a bytes field its length), first byte and end."""

    of: Ints
    tag: Bytes
    value: Ints
    start: Ints
    end: Ints

    def select(self, which: Bools | Ints) -> Fields:
        """Some of the fields."""
        of, tag, value, start, end = self
        return Fields(of[which], tag[which], value[which], start[which], end[which])


class Splits(NamedTuple):
    """The mutations and rows of many binlogs; `good` says for each binlog whether it was split.

    Per mutation of a good binlog, in order: `of` (its binlog), `table_id`, schema `version` and `size` (its rows).
    Per entry of the sequences, in order: `kinds`. Per row in the lists: `row_of` (its mutation), `row_kinds`, and its
    `starts` and `ends`, positions in `lanes` (the binlogs). A mutation has as many rows as entries of each kind.
    """

    good: Bools
    of: Ints
    table_id: Ints
    version: Ints
    size: Ints
    kinds: Bytes
    row_of: Ints
    row_kinds: Bytes
    starts: Ints
    ends: Ints
    lanes: Lanes

    def build_run(self, low: int, high: int, groups: Ints) -> MutationRun:
        """The content of the good binlogs `low` to `high` - 1; `groups`: of all mutations, -1 for one that is left
        out."""
        first, last = np.searchsorted(self.of, [low, high]).tolist()
        of, size, groups = self.of[first:last], self.size[first:last], groups[first:last]
        before = size.cumsum() - size
        seq = before - before[np.searchsorted(of, of)] if of.size else before
        kept = groups >= 0
        first_kind = int(self.size[:first].sum())
        kinds = self.kinds[first_kind : first_kind + int(size.sum())][np.repeat(kept, size)]
        low_row, high_row = np.searchsorted(self.row_of, [first, last]).tolist()
        of_row = self.row_of[low_row:high_row] - first
        codes = np.where(kept[of_row], groups[of_row] + self.row_kinds[low_row:high_row], -1)
        starts, ends = self.starts[low_row:high_row], self.ends[low_row:high_row]
        rows = {code: (starts[which], ends[which]) for code, which in group_positions(codes) if code >= 0}
        kept &= size > 0
        table_id, version, left_out = self.table_id[first:last], self.version[first:last], int(size.sum()) - len(kinds)
        of, version, groups, seq, size, table_id = (c[kept] for c in (of, version, groups, seq, size, table_id))
        return MutationRun(of, version, groups, seq, size, table_id, kinds.tobytes(), rows, left_out)


def group_positions(codes: Ints) -> Iterator[tuple[int, slice | Ints]]:
    """Each distinct value of `codes` (small numbers from -1 on) with its positions, in ascending order."""
    distinct = np.flatnonzero(np.bincount(codes + 1)) - 1
    if len(distinct) == 1:
        yield int(distinct[0]), slice(None)
    else:
        yield from ((code, np.flatnonzero(codes == code)) for code in distinct.tolist())


class MutationRun(NamedTuple):
    """Mutations of neighbouring binlogs, and their rows.

    Per mutation: binlog, schema version, group, seq of the first row, number of rows, table id. `rows`: starts and ends
    by group and kind; `left_out`: the number of rows that were left out.
    """

    of: Ints
    version: Ints
    group: Ints
    seq: Ints
    size: Ints
    table_id: Ints
    kinds: bytes
    rows: dict[int, tuple[Ints, Ints]]
    left_out: int


def split_all(lanes: Lanes) -> Splits:
    """Split binlogs into their mutations; a binlog that is not `good` contributes none."""
    binlogs, good = _read_fields(lanes, lanes.starts, lanes.ends, _BINLOG)
    values = binlogs.select(binlogs.tag == _PREWRITE_VALUE)
    good &= np.bincount(values.of, minlength=len(good)) == 1
    values = values.select(good[values.of])
    inner, well = _read_fields(lanes, values.start, values.end, _VALUE)
    versions = inner.select(inner.tag == _VERSION)
    well &= np.bincount(versions.of, minlength=len(well)) == 1
    version = np.zeros(len(well), np.int64)
    version[versions.of] = versions.value
    mutations = inner.select(inner.tag == _MUTATION)
    parts, sound = _read_fields(lanes, mutations.start, mutations.end, (_TABLE_ID, _SEQUENCE, *_KIND_OF))
    sound &= _is_sound(parts, len(sound))
    well[mutations.of[~sound]] = False
    good[values.of[~well]] = False
    # If a binlog is left out, its mutations are left out too.
    kept = good[values.of[mutations.of]] if len(mutations.of) else np.empty(0, np.bool_)
    parts = parts.select(kept[parts.of])
    number = kept.cumsum() - 1
    ids, sequence = parts.select(parts.tag == _TABLE_ID), parts.select(parts.tag == _SEQUENCE)
    rows = parts.select(_LENGTHS[parts.tag])
    of_value = mutations.of[kept]
    return Splits(
        good,
        values.of[of_value],
        ids.value,
        version[of_value],
        np.bincount(number[sequence.of], minlength=len(of_value)),
        sequence.value.astype(np.uint8),
        number[rows.of],
        _KINDS[rows.tag],
        rows.start,
        rows.end,
        lanes,
    )


_KINDS: Bytes = np.zeros(256, np.uint8)
_KINDS[list(_KIND_OF)] = list(_KIND_OF.values())


def _is_sound(parts: Fields, count: int) -> Bools:
    """Whether each of `count` mutations has one table id and as many entries of each kind in `sequence` as rows."""
    sound: Bools = np.bincount(parts.of[parts.tag == _TABLE_ID], minlength=count) == 1
    sequence = parts.tag == _SEQUENCE
    odd = sequence & ~np.isin(parts.value, list(_KIND_OF.values()))
    sound[parts.of[odd]] = False
    for tag, kind in _KIND_OF.items():
        named = np.bincount(parts.of[sequence & (parts.value == kind)], minlength=count)
        sound &= named == np.bincount(parts.of[parts.tag == tag], minlength=count)
    return sound


def _read_fields(lanes: Lanes, starts: Ints, ends: Ints, known: Collection[int]) -> tuple[Fields, Bools]:
    """(fields of the messages between `starts` and `ends`, which messages have `known` tags only and end well)."""
    expected = np.isin(np.arange(256), list(known))
    good: Bools = np.ones(len(starts), np.bool_)
    which, at = np.flatnonzero(starts < ends), starts[starts < ends]
    steps = []
    for _ in range(_MOST_FIELDS):
        if not which.size:
            break
        tags = lanes.read_bytes(at)
        values, start, fine = lanes.read_uvarints(at + 1)
        size = np.where(_LENGTHS[tags], values, 0)
        last = ends[which]
        fine &= expected[tags] & (start <= last) & (size <= (last - start).clip(0).astype(np.uint64))
        good[which[~fine]] = False
        which, start, last = (column[fine] for column in (which, start, last))
        at = start + size[fine].view(np.int64)
        steps.append(Fields(which, tags[fine], values[fine].view(np.int64), start, at))
        which, at = which[at < last], at[at < last]
    good[which] = False
    return _merge_steps(steps), good


def _merge_steps(steps: list[Fields]) -> Fields:
    if not steps:
        none: Ints = np.empty(0, np.int64)
        return Fields(none, none.astype(np.uint8), none, none, none)
    every = Fields(*(np.concatenate(column) for column in zip(*steps, strict=True)))
    return every.select(np.argsort(every.of, kind="stable"))
