"""The net change of each key between two moments, from columns: a row becomes a Python object only when it is shown.

A page shows fifty of thousands of differences, but has to count and sort all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from binlake.base.arrowcolumns import number_values
from binlake.base.lakecolumns import History, Mutation
from binlake.errors import SchemaError

Indexes = npt.NDArray[np.int64]
_ORDER = (History.COMMIT_TS, History.START_TS, Mutation.SEQ)
_IMAGES = {"insert": (False, True), "update": (True, True), "delete": (True, False)}


@dataclass(frozen=True)
class NetColumns:
    """For each key that differs: the row of `changes` with its image before (`old`) and after (`new`); -1 = no image.

    `keys`: the values of the key's columns.
    """

    changes: pa.Table
    keys: tuple[pa.Array, ...]
    old: Indexes
    new: Indexes


def compute_net_columns(changes: pa.Table, key_columns: Sequence[str]) -> NetColumns | None:
    """The keys whose first image before and last image after differ; `changes`: rows of `mutation` of one table.

    A column that an image lacks counts as NULL. None if an image lacks a value of the key: rows that were written
    before ADD COLUMN. Raises SchemaError for a change with the wrong images.
    """
    changes = changes.sort_by([(name, "ascending") for name in _ORDER]).combine_chunks()
    sides = [_combine(changes.column(name)) for name in (Mutation.BEFORE, Mutation.AFTER)]
    there = [np.asarray(side.is_valid()) for side in sides]
    _require_images(changes, there)
    values = [[pc.map_lookup(side, name, "first") for name in key_columns] for side in sides]
    if any((np.asarray(one.is_null()) & has).any() for side, has in zip(values, there, strict=True) for one in side):
        return None
    columns = [pa.concat_arrays([old, new]) for old, new in zip(*values, strict=True)]
    codes = _number_keys(columns)
    old_codes, new_codes = codes[: len(changes)], codes[len(changes) :]
    parts = _split(old_codes, new_codes, there[0], there[1])
    old, new = _find_ends(*parts)
    differs = _differ(sides, old, new)
    old, new = old[differs], new[differs]
    # Where the values of the key are: in the image before, or else in the one after.
    places = pa.array(np.where(old >= 0, old, new + len(changes)))
    return NetColumns(changes, tuple(column.take(places) for column in columns), old, new)


def _combine(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _require_images(changes: pa.Table, there: Sequence[npt.NDArray[np.bool_]]) -> None:
    op = changes.column(Mutation.OP)
    for name, images in _IMAGES.items():
        wrong = np.asarray(pc.equal(op, name)) & ((there[0] != images[0]) | (there[1] != images[1]))
        if wrong.any():
            commit_ts = changes.column(History.COMMIT_TS)[int(np.argmax(wrong))].as_py()
            raise SchemaError(f"a row change of kind {name} has the wrong images", where={"commit_ts": commit_ts})


def _number_keys(columns: Sequence[pa.Array]) -> Indexes:
    """The same number for rows with the same values; that of a row without the image means nothing."""
    named = {str(place): pc.fill_null(column, "") for place, column in enumerate(columns)}
    return number_values(pa.table(named), list(named))[0]


def _split(
    old_codes: Indexes, new_codes: Indexes, has_old: npt.NDArray[np.bool_], has_new: npt.NDArray[np.bool_]
) -> tuple[Indexes, Indexes, Indexes]:
    """(key, row of the image before, of the one after) in order; a change that moves a row is two."""
    rows = np.arange(len(old_codes))
    old, new = np.where(has_old, rows, -1), np.where(has_new, rows, -1)
    moves = has_old & has_new & (old_codes != new_codes)
    none = np.full(int(moves.sum()), -1)
    keys = np.concatenate([np.where(has_old, old_codes, new_codes), new_codes[moves]])
    olds, news = np.concatenate([old, none]), np.concatenate([np.where(moves, -1, new), new[moves]])
    order = np.argsort(np.concatenate([2 * rows, 2 * rows[moves] + 1]), kind="stable")
    return keys[order], olds[order], news[order]


def _find_ends(keys: Indexes, olds: Indexes, news: Indexes) -> tuple[Indexes, Indexes]:
    """For each key the image before its first change and the one after its last; keys that were at neither are left
    out."""
    first = np.unique(keys, return_index=True)[1]
    last = len(keys) - 1 - np.unique(keys[::-1], return_index=True)[1]
    old, new = olds[first], news[last]
    known = (old >= 0) | (new >= 0)
    return old[known], new[known]


def _differ(sides: Sequence[pa.Array], old: Indexes, new: Indexes) -> npt.NDArray[np.bool_]:
    differs = np.ones(len(old), bool)
    both = np.flatnonzero((old >= 0) & (new >= 0))
    images = [side.take(pa.array(rows[both])) for side, rows in zip(sides, (old, new), strict=True)]
    lengths = [np.asarray(pc.list_value_length(_as_list(image))) for image in images]
    names, values = ([_flatten(image)[part] for image in images] for part in (0, 1))
    if (lengths[0] == lengths[1]).all() and names[0].equals(names[1]):
        apart = np.asarray(pc.fill_null(pc.not_equal(*values), False))
        apart |= np.asarray(values[0].is_null()) != np.asarray(values[1].is_null())
        rows = np.repeat(np.arange(len(both)), lengths[0])
        differs[both] = np.bincount(rows[apart], minlength=len(both)) > 0
    else:
        # Written with columns in another order, or before and after ADD COLUMN.
        differs[both] = [_drop_nulls(one) != _drop_nulls(other) for one, other in zip(*images, strict=True)]
    return differs


def _as_list(image: pa.MapArray) -> pa.Array:
    pairs = pa.struct([("key", image.type.key_type), ("value", image.type.item_type)])
    return image.cast(pa.list_(pairs))


def _flatten(image: pa.MapArray) -> tuple[pa.Array, pa.Array]:
    """The names and values of all rows."""
    pairs = _as_list(image).flatten()
    return pairs.field(0), pairs.field(1)


def _drop_nulls(image: pa.Scalar) -> dict[str, str]:
    return {name: value for name, value in image.as_py() if value is not None}
