"""Decode all rows of a batch to images and keys, before they become Arrow columns.

Rows of one definition and kind are decoded column by column (binlake.rows.codec.walk); rows that this does not accept
are decoded one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import numpy as np
import pyarrow as pa

from binlake.errors import WireError
from binlake.rows.codec.assemble import (
    Keys,
    Maps,
    build_column,
    build_maps_part,
    build_plain_maps_part,
    find_moved_rows,
    format_key_text,
    format_key_texts,
)
from binlake.rows.codec.columns import has_plain_texts
from binlake.rows.codec.groups import RowGroup
from binlake.rows.codec.lanes import Ints
from binlake.rows.codec.tabledecoder import Image
from binlake.rows.codec.transaction import ROW_ERRORS, build_row_error
from binlake.rows.codec.walk import Walked, walk

FIELDS = 7
"""Fields of each mutation of a batch: commit_ts, start_ts, schema version, and the four named below."""
TABLE, FIRST, ROWS, TABLE_ID = range(3, FIELDS)
"""Index of its table in the batch, `seq` of its first row, number of rows, id of its table at the source."""


@dataclass
class Columns:
    """The parts from which the rows of a batch are assembled."""

    before: list[Maps] = field(default_factory=list)
    after: list[Maps] = field(default_factory=list)
    keys: list[Keys] = field(default_factory=list)
    new_keys: list[Keys] = field(default_factory=list)


def build_columns(groups: list[RowGroup], mutations: Ints) -> Columns:
    """The images and keys of all rows.

    `key` is the key before the change, or the inserted row's key. `new_key` is set if an update changed the key.
    """
    columns, left = Columns(), []
    for group in groups:
        plain = np.ones(len(group.rows), np.bool_)
        for walked in walk(group.decoder, group.op, group.rows):
            plain[walked.rows] = False
            _add_walked(columns, group, walked)
        left += [(int(group.places[n]), group, group.rows.read_row(n)) for n in np.flatnonzero(plain).tolist()]
    _add_plain(columns, sorted(left, key=lambda one: one[0]), mutations)
    return columns


def _add_walked(columns: Columns, group: RowGroup, walked: Walked) -> None:
    decoder, rows = group.decoder, group.places[walked.rows]
    images = []
    for slots, parts in ((walked.before, columns.before), (walked.after, columns.after)):
        if slots is not None:
            image = [build_column(slot, text) for slot, text in zip(slots, decoder.filled, strict=True)]
            parts.append(build_maps_part(rows, decoder.names, image))
            images.append([image[slot].texts for slot in decoder.key_slots])
    plain = [has_plain_texts(decoder.table.row_columns[slot]) for slot in decoder.key_slots]
    columns.keys.append(Keys(rows, format_key_texts(images[0], plain)))
    moved = find_moved_rows(*images) if len(images) > 1 else rows[:0]
    if moved.size:
        of_key = [texts.take(pa.array(moved)) for texts in images[1]]
        columns.new_keys.append(Keys(rows[moved], format_key_texts(of_key, plain)))


def _add_plain(columns: Columns, left: list[tuple[int, RowGroup, bytes]], mutations: Ints) -> None:
    before: tuple[list[int], list[Image]] = ([], [])
    after: tuple[list[int], list[Image]] = ([], [])
    keys, moved = [], []
    for number, group, row in left:
        try:
            images = _decode_row(group, row)
        except ROW_ERRORS as error:
            raise _build_row_error(error, group.op, number, mutations) from error
        for image, (numbers, collected) in zip(images, (before, after), strict=True):
            if image is not None:
                numbers.append(number)
                collected.append(image)
        keys.append(format_key_text(group.decoder.select_key(cast(Image, images[0] or images[1]))))
        new = format_key_text(group.decoder.select_key(images[1])) if images[0] and images[1] else keys[-1]
        if new != keys[-1]:
            moved.append((number, new))
    if left:
        columns.keys.append(_build_keys([number for number, _, _ in left], keys))
    if moved:
        columns.new_keys.append(_build_keys([at for at, _ in moved], [key for _, key in moved]))
    for (numbers, collected), parts in ((before, columns.before), (after, columns.after)):
        if numbers:
            parts.append(build_plain_maps_part(numbers, collected))


def _build_keys(places: list[int], keys: list[str]) -> Keys:
    return Keys(np.asarray(places, np.int64), pa.array(keys, pa.string()))


def _build_row_error(error: Exception, op: str, number: int, mutations: Ints) -> WireError:
    ends = mutations[:, ROWS].cumsum()
    at = int(np.searchsorted(ends, number, side="right"))
    commit_ts, *_ = fields = mutations[at].tolist()
    return build_row_error(
        error, op, fields[TABLE_ID], commit_ts, fields[FIRST] + number - (int(ends[at]) - fields[ROWS])
    )


def _decode_row(group: RowGroup, row: bytes) -> tuple[Image | None, Image | None]:
    if group.op == "insert":
        return None, group.decoder.insert(row)
    if group.op == "update":
        return group.decoder.update(row)
    return group.decoder.delete(row), None
