"""Columns of one definition put together as rows: the maps and the keys of a batch.

The texts of a row are side by side in the batch: they are joined column by column, and brought into the order of the
rows, a row at a time, where more than one definition or kind has rows in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.rows.codec.lanes import Bools, Ints
from binlake.rows.codec.tabledecoder import Image, Names, Values
from binlake.rows.codec.texts import even_names, text_array, text_bytes
from binlake.rows.codec.walk import ABSENT, FILLED, NULL, Slot

_NONE = pa.scalar("", pa.string())


def key_text(values: Values) -> str:
    """The `key` column: a compact JSON array of texts, null for NULL."""
    return f"[{','.join('null' if value is None else encode_basestring(value) for value in values)}]"


@dataclass(frozen=True)
class Column:
    """The texts of a column of an image, NULL where it is NULL or `absent`, which no row is where that is None."""

    texts: pa.Array
    absent: Bools | None = None


@dataclass(frozen=True)
class Keys:
    """A text for each of `rows` of the batch."""

    rows: Ints
    texts: pa.Array


@dataclass(frozen=True)
class Maps:
    """A map for each of `rows` of the batch: its values joined to one text.

    `sizes` are those of the values of all rows, -1 for NULL, and `entries` how many of them are a row's; `shape` says
    the names of every row, or `names` those of each value.
    """

    rows: Ints
    texts: pa.Array
    sizes: Ints
    entries: Ints
    shape: Names = ()
    names: Sequence[str] = ()


def column_of(slot: Slot, filled: str | None) -> Column:
    """The column of a slot with the `filled` text in the place of FILLED."""
    index, texts = slot.index, slot.texts
    held = index >= 0
    if held.all():
        whole = len(texts) == len(index) and (index == np.arange(len(index))).all()
        return Column(texts if whole else texts.take(pa.array(index)))
    missing = index == FILLED
    if filled is not None and missing.any():
        index, held = np.where(missing, len(texts), index), held | missing
        texts = pa.concat_arrays([texts, pa.array([filled], pa.string())])
    absent = index == ABSENT
    return Column(texts.take(pa.array(index, mask=~held)), absent if absent.any() else None)


def maps_part(rows: Ints, names: Names, columns: Sequence[Column]) -> Maps:
    """The maps of walked rows; absent values are left out."""
    texts, width = _joined([column.texts for column in columns]), len(columns)
    sizes = np.stack([_sizes(column.texts) for column in columns], axis=1)
    if all(column.absent is None for column in columns):
        return Maps(rows, texts, sizes.ravel(), np.full(len(rows), width), names)
    none = np.zeros(len(rows), np.bool_)
    here = ~np.stack([none if column.absent is None else column.absent for column in columns], axis=1)
    found = np.asarray(names, object)[np.nonzero(here)[1]].tolist()
    return Maps(rows, texts, sizes[here], here.sum(axis=1), names=found)


def plain_maps_part(rows: Sequence[int], images: Sequence[Image]) -> Maps:
    """The maps of rows that were decoded one by one."""
    values = [value for image in images for value in image[1]]
    sizes = np.fromiter((-1 if value is None else len(value.encode()) for value in values), np.int64, len(values))
    entries = np.fromiter((len(image[1]) for image in images), np.int64, len(images))
    texts = pa.array(["".join(value or "" for value in image[1]) for image in images], pa.string())
    names = [name for image in images for name in image[0]]
    return Maps(np.asarray(rows, np.int64), texts, sizes, entries, names=names)


def maps_of(parts: Sequence[Maps], count: int) -> pa.MapArray:
    """`count` maps; rows of no part are NULL."""
    if not parts:
        return pa.nulls(count, pa.map_(pa.string(), pa.string()))
    rows = np.concatenate([part.rows for part in parts])
    order, entries = _order(rows), np.concatenate([part.entries for part in parts])
    ends, null = np.zeros(count + 1, np.int32), np.ones(count + 1, np.bool_)
    ends[rows + 1], null[rows], null[-1] = entries, False, False
    texts = pa.concat_arrays([part.texts for part in parts])
    values = _values(texts if order is None else texts.take(pa.array(order)), _in_order(parts, entries, order))
    offsets = pa.array(ends.cumsum(dtype=np.int32), pa.int32(), mask=null if null.any() else None)
    return pa.MapArray.from_arrays(offsets, _names(parts, entries, order), values)


def keys_of(parts: Sequence[Keys], count: int) -> pa.Array:
    """`count` texts; rows of no part are NULL."""
    if not parts:
        return pa.nulls(count, pa.string())
    rows = np.concatenate([part.rows for part in parts])
    texts, order = pa.concat_arrays([part.texts for part in parts]), _order(rows)
    if len(rows) == count:
        return texts if order is None else texts.take(pa.array(order))
    index = np.full(count, NULL)
    index[rows] = np.arange(len(rows))
    return texts.take(pa.array(index, mask=index == NULL))


def _order(rows: Ints) -> Ints | None:
    """The index of each of `rows` in ascending order; None if they are in it already."""
    return None if (np.diff(rows) > 0).all() else np.argsort(rows, kind="stable")


def _in_order(parts: Sequence[Maps], entries: Ints, order: Ints | None) -> Ints:
    sizes = np.concatenate([part.sizes for part in parts])
    return sizes if order is None else sizes[_places(entries, order)]


def _places(entries: Ints, order: Ints) -> Ints:
    """The numbers of the entries of all rows, which have so many, in another order of the rows."""
    width = int(entries[0])
    if (entries == width).all():
        found: Ints = order[:, None] * width + np.arange(width)
        return found.ravel()
    firsts: Ints = (entries.cumsum() - entries)[order]
    sizes: Ints = entries[order]
    moved: Ints = np.repeat(firsts - (sizes.cumsum() - sizes), sizes)
    return moved + np.arange(len(moved))


def _names(parts: Sequence[Maps], entries: Ints, order: Ints | None) -> pa.Array:
    shapes = {part.shape for part in parts}
    if len(shapes) == 1 and () not in shapes:
        return even_names(shapes.pop(), len(entries))
    known: dict[str, int] = {}
    numbers = [_numbers(part, known) for part in parts]
    found = np.concatenate(numbers)
    found = found if order is None else found[_places(entries, order)]
    return pa.array(list(known), pa.string()).take(pa.array(found))


def _numbers(part: Maps, known: dict[str, int]) -> Ints:
    """The number of the name of each value, of the names `known` so far."""
    if part.shape:
        return np.tile([known.setdefault(name, len(known)) for name in part.shape], len(part.rows))
    return np.fromiter((known.setdefault(name, len(known)) for name in part.names), np.int64, len(part.names))


def _values(texts: pa.Array, sizes: Ints) -> pa.Array:
    """The texts that are end to end in `texts`, cut by `sizes`; NULL where that is -1."""
    null = sizes < 0
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(np.maximum(sizes, 0), out=offsets[1:])
    return text_array(offsets, text_bytes(texts)[1], null if null.any() else None)


def _sizes(texts: pa.Array) -> Ints:
    offsets = text_bytes(texts)[0].astype(np.int64)
    sizes: Ints = offsets[1:] - offsets[:-1]
    if texts.null_count:
        sizes[np.asarray(texts.is_null())] = NULL
    return sizes


def _joined(texts: Sequence[pa.Array | pa.Scalar]) -> pa.Array:
    """The texts of columns side by side; NULL counts as none."""
    return pc.binary_join_element_wise(*texts, _NONE, null_handling="replace", null_replacement="")


def key_texts(columns: Sequence[pa.Array], plain: Sequence[bool] = ()) -> pa.Array:
    """`key_text` of the rows of some columns; those of `plain`, if it is given, need no escapes."""
    pieces: list[pa.Array | pa.Scalar | str] = []
    for number, (texts, safe) in enumerate(zip(columns, plain or [False] * len(columns), strict=True)):
        escaped = texts if safe else _escaped(texts)
        pieces.append("," if number else "[")
        if texts.null_count:
            pieces.append(pc.fill_null(pc.binary_join_element_wise('"', escaped, '"', _NONE), "null"))
        else:
            pieces += ['"', escaped, '"']
    return _joined(_scalars([*pieces, "]"]))


def _scalars(pieces: Sequence[pa.Array | str]) -> list[pa.Array | pa.Scalar]:
    """The same with neighbouring constants as one."""
    found: list[pa.Array | pa.Scalar] = []
    held = ""
    for piece in pieces:
        if isinstance(piece, str):
            held += piece
            continue
        found += [pa.scalar(held, pa.string()), piece] if held else [piece]
        held = ""
    return [*found, pa.scalar(held, pa.string())]


def _escaped(texts: pa.Array) -> pa.Array:
    odd = _needs_escape(texts)
    if not odd.size:
        return texts
    mask = np.zeros(len(texts), np.bool_)
    mask[odd] = True
    found = texts.take(pa.array(odd)).to_pylist()
    return pc.replace_with_mask(texts, mask, pa.array([encode_basestring(text)[1:-1] for text in found], pa.string()))


def _needs_escape(texts: pa.Array) -> Ints:
    """Rows whose text holds a quote, a backslash or a control character."""
    offsets, data = text_bytes(texts)
    odd: Bools = (data < 0x20) | (data == ord('"')) | (data == ord("\\"))
    if not odd.any():
        return np.empty(0, np.int64)
    return np.unique(np.searchsorted(offsets, np.flatnonzero(odd), side="right") - 1)


def moved_rows(before: Sequence[pa.Array], after: Sequence[pa.Array]) -> Ints:
    """The rows whose key, of these columns, is another one after than before."""
    moved = np.zeros(len(before[0]), np.bool_)
    for old, new in zip(before, after, strict=True):
        same = np.asarray(pc.fill_null(pc.equal(old, new), False))
        moved |= ~same & ~np.asarray(pc.and_(old.is_null(), new.is_null()))
    return np.flatnonzero(moved)
