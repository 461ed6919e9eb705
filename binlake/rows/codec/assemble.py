"""Assemble decoded columns into the rows of `mutation`: their maps and keys.

The batch stores the texts of a row next to each other. They are joined column by column; if rows of several definitions
or kinds are in the batch, the joined texts are then sorted, a row at a time, into the order of the rows. A block of
inserts already consists of columns, so no row of it is decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.common.lakecolumns import Mutation
from binlake.rows.codec.columnblocks import count_block_rows, is_column_block, read_column_block
from binlake.rows.codec.columns import has_plain_texts
from binlake.rows.codec.lanes import Bools, Ints, build_text_array, read_text_bytes, repeat_names
from binlake.rows.codec.tabledecoder import Image, Names, Values, look_up_decoder
from binlake.rows.codec.transaction import ROW_ERRORS, build_row_error
from binlake.rows.codec.walk import ABSENT, FILLED, NULL, Slot
from binlake.rows.schema.info import TableDef
from binlake.tso import LOGICAL_BITS
from binlake.wire import binlog_pb2 as pb

_MAP = pa.map_(pa.string(), pa.string())
MUTATION_SCHEMA = pa.schema(
    [
        (Mutation.COMMIT_TS, pa.int64()),
        (Mutation.START_TS, pa.int64()),
        (Mutation.SEQ, pa.int32()),
        (Mutation.COMMIT_DATE, pa.date32()),
        (Mutation.SCHEMA_VERSION, pa.int64()),
        (Mutation.SOURCE_DB, pa.string()),
        (Mutation.SOURCE_TABLE, pa.string()),
        (Mutation.DB, pa.string()),
        (Mutation.TABLE, pa.string()),
        (Mutation.TABLE_ID, pa.int64()),
        (Mutation.OP, pa.string()),
        (Mutation.KEY, pa.string()),
        (Mutation.NEW_KEY, pa.string()),
        (Mutation.BEFORE, _MAP),
        (Mutation.AFTER, _MAP),
    ]
)
_NONE = pa.scalar("", pa.string())
_MS_PER_DAY = 86_400_000


def format_key_text(values: Values) -> str:
    """The `key` column: a compact JSON array of texts, null for NULL."""
    return f"[{','.join('null' if value is None else encode_basestring(value) for value in values)}]"


@dataclass(frozen=True)
class ColumnTexts:
    """The texts of one column of an image: NULL where the value is NULL or `absent`. `absent` None: absent in no
    row."""

    texts: pa.Array
    absent: Bools | None = None


@dataclass(frozen=True)
class Keys:
    """The key text of each of `rows`, which are row numbers in the batch."""

    rows: Ints
    texts: pa.Array


@dataclass(frozen=True)
class Maps:
    """A map for each of `rows` (row numbers in the batch), with its values joined to one text.

    `sizes` holds the bytes of each value of all rows, -1 for NULL; `entries` holds the number of values of each row.
    If all rows have the same column names, `shape` holds them; otherwise `names` holds the name of each value.
    """

    rows: Ints
    texts: pa.Array
    sizes: Ints
    entries: Ints
    shape: Names = ()
    names: Sequence[str] = ()


def build_column(slot: Slot, filled: str | None) -> ColumnTexts:
    """The column of a slot, with the text `filled` in place of FILLED."""
    index, texts = slot.index, slot.texts
    present = index >= 0
    if present.all():
        in_order = len(texts) == len(index) and (index == np.arange(len(index))).all()
        return ColumnTexts(texts if in_order else texts.take(pa.array(index)))
    missing = index == FILLED
    if filled is not None and missing.any():
        index, present = np.where(missing, len(texts), index), present | missing
        texts = pa.concat_arrays([texts, pa.array([filled], pa.string())])
    absent = index == ABSENT
    return ColumnTexts(texts.take(pa.array(index, mask=~present)), absent if absent.any() else None)


def build_maps_part(rows: Ints, names: Names, columns: Sequence[ColumnTexts]) -> Maps:
    """The maps of walked rows; absent values are left out."""
    texts, width = _join_texts([column.texts for column in columns]), len(columns)
    sizes = np.stack([_compute_text_sizes(column.texts) for column in columns], axis=1)
    if all(column.absent is None for column in columns):
        return Maps(rows, texts, sizes.ravel(), np.full(len(rows), width), names)
    all_false = np.zeros(len(rows), np.bool_)
    present = ~np.stack([all_false if column.absent is None else column.absent for column in columns], axis=1)
    value_names = np.asarray(names, object)[np.nonzero(present)[1]].tolist()
    return Maps(rows, texts, sizes[present], present.sum(axis=1), names=value_names)


def build_plain_maps_part(rows: Sequence[int], images: Sequence[Image]) -> Maps:
    """The maps of rows that were decoded one by one."""
    values = [value for image in images for value in image[1]]
    sizes = np.fromiter((-1 if value is None else len(value.encode()) for value in values), np.int64, len(values))
    entries = np.fromiter((len(image[1]) for image in images), np.int64, len(images))
    texts = pa.array(["".join(value or "" for value in image[1]) for image in images], pa.string())
    names = [name for image in images for name in image[0]]
    return Maps(np.asarray(rows, np.int64), texts, sizes, entries, names=names)


def join_maps(parts: Sequence[Maps], count: int) -> pa.MapArray:
    """`count` maps; rows of no part are NULL."""
    if not parts:
        return pa.nulls(count, pa.map_(pa.string(), pa.string()))
    rows = np.concatenate([part.rows for part in parts])
    order, entries = _sort_indexes(rows), np.concatenate([part.entries for part in parts])
    ends, null = np.zeros(count + 1, np.int32), np.ones(count + 1, np.bool_)
    ends[rows + 1], null[rows], null[-1] = entries, False, False
    texts = parts[0].texts if len(parts) == 1 else pa.concat_arrays([part.texts for part in parts])
    values = _cut_values(texts if order is None else texts.take(pa.array(order)), _sort_sizes(parts, entries, order))
    offsets = pa.array(ends.cumsum(dtype=np.int32), pa.int32(), mask=null if null.any() else None)
    return pa.MapArray.from_arrays(offsets, _join_names(parts, entries, order), values)


def join_keys(parts: Sequence[Keys], count: int) -> pa.Array:
    """`count` texts; rows of no part are NULL."""
    if not parts:
        return pa.nulls(count, pa.string())
    rows = np.concatenate([part.rows for part in parts])
    texts, order = pa.concat_arrays([part.texts for part in parts]), _sort_indexes(rows)
    if len(rows) == count:
        return texts if order is None else texts.take(pa.array(order))
    index = np.full(count, NULL)
    index[rows] = np.arange(len(rows))
    return texts.take(pa.array(index, mask=index == NULL))


def _sort_indexes(rows: Ints) -> Ints | None:
    """The indexes that sort `rows` in ascending order; None if `rows` is sorted already."""
    return None if (np.diff(rows) > 0).all() else np.argsort(rows, kind="stable")


def _sort_sizes(parts: Sequence[Maps], entries: Ints, order: Ints | None) -> Ints:
    sizes = np.concatenate([part.sizes for part in parts])
    return sizes if order is None else sizes[_compute_entry_indexes(entries, order)]


def _compute_entry_indexes(entries: Ints, order: Ints) -> Ints:
    """The indexes that bring the entries of all rows into a new `order` of the rows; `entries`: their number per
    row."""
    width = int(entries[0])
    if (entries == width).all():
        indexes: Ints = order[:, None] * width + np.arange(width)
        return indexes.ravel()
    firsts: Ints = (entries.cumsum() - entries)[order]
    sizes: Ints = entries[order]
    moved: Ints = np.repeat(firsts - (sizes.cumsum() - sizes), sizes)
    return moved + np.arange(len(moved))


def _join_names(parts: Sequence[Maps], entries: Ints, order: Ints | None) -> pa.Array:
    shapes = {part.shape for part in parts}
    if len(shapes) == 1 and () not in shapes:
        return repeat_names(shapes.pop(), len(entries))
    known: dict[str, int] = {}
    numbers = [_number_names(part, known) for part in parts]
    index = np.concatenate(numbers)
    index = index if order is None else index[_compute_entry_indexes(entries, order)]
    return pa.array(list(known), pa.string()).take(pa.array(index))


def _number_names(part: Maps, known: dict[str, int]) -> Ints:
    """The number of each value's name; `known` numbers the names and gets the new ones."""
    if part.shape:
        return np.tile([known.setdefault(name, len(known)) for name in part.shape], len(part.rows))
    return np.fromiter((known.setdefault(name, len(known)) for name in part.names), np.int64, len(part.names))


def _cut_values(texts: pa.Array, sizes: Ints) -> pa.Array:
    """Cut the joined `texts` into values of the given `sizes`; a size of -1 gives NULL."""
    null = sizes < 0
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(np.maximum(sizes, 0), out=offsets[1:])
    return build_text_array(offsets, read_text_bytes(texts)[1], null if null.any() else None)


def _compute_text_sizes(texts: pa.Array) -> Ints:
    offsets = read_text_bytes(texts)[0].astype(np.int64)
    sizes: Ints = offsets[1:] - offsets[:-1]
    if texts.null_count:
        sizes[np.asarray(texts.is_null())] = NULL
    return sizes


def _join_texts(texts: Sequence[pa.Array | pa.Scalar]) -> pa.Array:
    """Join the texts of columns row by row; NULL counts as an empty text."""
    return pc.binary_join_element_wise(*texts, _NONE, null_handling="replace", null_replacement="")


def format_key_texts(columns: Sequence[pa.Array], plain: Sequence[bool] = ()) -> pa.Array:
    """`format_key_text` of all rows of `columns`. A column whose flag in `plain` is True needs no escapes."""
    pieces: list[pa.Array | pa.Scalar | str] = []
    for number, (texts, safe) in enumerate(zip(columns, plain or [False] * len(columns), strict=True)):
        escaped = texts if safe else _escape_texts(texts)
        pieces.append("," if number else "[")
        if texts.null_count:
            pieces.append(pc.fill_null(pc.binary_join_element_wise('"', escaped, '"', _NONE), "null"))
        else:
            pieces += ['"', escaped, '"']
    return _join_texts(_merge_constants([*pieces, "]"]))


def _merge_constants(pieces: Sequence[pa.Array | str]) -> list[pa.Array | pa.Scalar]:
    """Convert constant pieces to scalars and join neighbouring ones."""
    merged: list[pa.Array | pa.Scalar] = []
    constant = ""
    for piece in pieces:
        if isinstance(piece, str):
            constant += piece
            continue
        merged += [pa.scalar(constant, pa.string()), piece] if constant else [piece]
        constant = ""
    return [*merged, pa.scalar(constant, pa.string())]


def _escape_texts(texts: pa.Array) -> pa.Array:
    odd = _find_rows_to_escape(texts)
    if not odd.size:
        return texts
    mask = np.zeros(len(texts), np.bool_)
    mask[odd] = True
    unescaped = texts.take(pa.array(odd)).to_pylist()
    return pc.replace_with_mask(
        texts, mask, pa.array([encode_basestring(text)[1:-1] for text in unescaped], pa.string())
    )


def _find_rows_to_escape(texts: pa.Array) -> Ints:
    """The rows whose text contains a quote, a backslash or a control character."""
    offsets, data = read_text_bytes(texts)
    odd: Bools = (data < 0x20) | (data == ord('"')) | (data == ord("\\"))
    if not odd.any():
        return np.empty(0, np.int64)
    return np.unique(np.searchsorted(offsets, np.flatnonzero(odd), side="right") - 1)


def find_moved_rows(before: Sequence[pa.Array], after: Sequence[pa.Array]) -> Ints:
    """The rows whose key columns `before` differ from those `after`."""
    moved = np.zeros(len(before[0]), np.bool_)
    for old, new in zip(before, after, strict=True):
        same = np.asarray(pc.fill_null(pc.equal(old, new), False))
        moved |= ~same & ~np.asarray(pc.and_(old.is_null(), new.is_null()))
    return np.flatnonzero(moved)


def get_block(value: pb.PrewriteValue) -> tuple[int, bytes, int]:
    """(table id, block, number of its rows) of a transaction that `find_column_blocks` has found."""
    [mutation] = value.mutations
    [block] = mutation.inserted_rows
    assert is_column_block(block)
    return mutation.table_id, block, count_block_rows(block)


def build_block_columns(
    block: bytes, table: TableDef, names: tuple[str, str, str, str], moments: tuple[int, int, int]
) -> list[pa.Array]:
    """The columns of `mutation` for the rows of `block`; `moments`: commit_ts, start_ts and schema version.

    Raises WireError for a damaged block.
    """
    commit_ts, start_ts, version = moments
    try:
        texts = read_column_block(block, table)
    except ROW_ERRORS as error:
        raise build_row_error(error, "insert", table.id, commit_ts, 0) from error
    decoder, count = look_up_decoder(table), len(texts[0])
    rows = np.arange(count)
    day = (commit_ts >> LOGICAL_BITS) // _MS_PER_DAY
    keys = [texts[slot] for slot in decoder.key_slots]
    plain = [has_plain_texts(table.row_columns[slot]) for slot in decoder.key_slots]
    images = build_maps_part(rows, decoder.names, [ColumnTexts(column) for column in texts])
    return [
        pa.repeat(pa.scalar(commit_ts, pa.int64()), count),
        pa.repeat(pa.scalar(start_ts, pa.int64()), count),
        pa.array(rows.astype(np.int32)),
        pa.repeat(pa.scalar(day, pa.int32()), count).cast(pa.date32()),
        pa.repeat(pa.scalar(version, pa.int64()), count),
        *(pa.repeat(name, count) for name in names),
        pa.repeat(pa.scalar(table.id, pa.int64()), count),
        pa.repeat("insert", count),
        format_key_texts(keys, plain),
        pa.nulls(count, pa.string()),
        join_maps([], count),
        join_maps([images], count),
    ]
