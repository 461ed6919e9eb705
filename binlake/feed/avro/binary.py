"""Arrow columns as Avro's binary encoding: one Arrow binary array a column, whose rows are joined to a record's body.

Rule: no Python object a value. Every function takes and gives whole columns (Avro 1.12, "Binary Encoding").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Array = Any
"""A pyarrow Array (pyarrow has no stubs)."""
Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_MOST_VARINT_BYTES = 10


def encode_longs(values: Ints) -> Array:
    """Numbers as zig-zag varints, an `int` and a `long` alike."""
    unsigned = ((values << 1) ^ (values >> 63)).view(np.uint64)
    lengths = np.ones(len(values), np.int64)
    for size in range(1, _MOST_VARINT_BYTES):
        longer = unsigned >> np.uint64(7 * size) != 0
        if not longer.any():
            break
        lengths += longer
    starts = _starts(lengths)
    data = np.empty(int(starts[-1]), np.uint8)
    at = np.arange(len(values))
    for size in range(int(lengths.max(initial=0))):
        at = at[lengths[at] > size] if size else at
        group = (unsigned[at] >> np.uint64(7 * size)) & np.uint64(0x7F)
        data[starts[at] + size] = group.astype(np.uint8) | ((lengths[at] > size + 1).astype(np.uint8) << 7)
    return binary_array(starts, data)


def encode_sizes(values: Array) -> Array:
    """The length in bytes of each value, as Avro puts it before `bytes` and `string`; NULL counts as empty."""
    lengths = pc.fill_null(pc.binary_length(values), 0)
    return encode_longs(np.asarray(lengths).astype(np.int64))


def encode_doubles(values: npt.NDArray[np.float64]) -> Array:
    """Eight bytes each, little-endian."""
    return _fixed(values.astype("<f8").view(np.uint8), 8, len(values))


def encode_floats(values: npt.NDArray[np.float32]) -> Array:
    """Four bytes each, little-endian."""
    return _fixed(values.astype("<f4").view(np.uint8), 4, len(values))


def encode_branches(valid: Array, null_branch: int) -> Array:
    """The number of the union's branch for each row: that of `null` or the other of the two; one byte."""
    null, other = 2 * null_branch, 2 * (1 - null_branch)
    return _fixed(np.where(np.asarray(valid), other, null).astype(np.uint8), 1, len(valid))


def shortest_numbers(decimals: Array) -> Array:
    """Unscaled two's complement of decimals (128 or 256 bits, none NULL), big-endian, of as few bytes as can be."""
    width = decimals.type.byte_width
    raw = np.frombuffer(decimals.buffers()[1], np.uint8)
    first = decimals.offset * width
    digits = raw[first : first + len(decimals) * width].reshape(-1, width)[:, ::-1]
    sign = np.where(digits[:, :1] >= 0x80, 0xFF, 0).astype(np.uint8)
    # A leading byte of nothing but the sign goes when the next one begins with the same sign.
    spare = (digits[:, :-1] == sign) & ((digits[:, 1:] ^ sign) < 0x80)
    return _without_lead(digits, np.logical_and.accumulate(spare, axis=1).sum(axis=1))


def bytes_of_hex(texts: Array) -> Array:
    """Texts of upper-case hex digits as the bytes they stand for; NULL stays NULL."""
    texts = pc.cast(texts, pa.binary())
    offsets, data = _parts(texts)
    values = _HEX[data]
    return binary_array(offsets // 2, (values[0::2] << np.uint8(4)) | values[1::2], texts)


def shortest_bits(values: Array) -> Array:
    """Big-endian numbers without their leading zero bytes; 0 is one byte (reference 2.3, BIT). NULL stays NULL."""
    offsets, data = _parts(values)
    rows = np.repeat(np.arange(len(values)), np.diff(offsets))
    last = np.zeros(len(data), bool)
    last[offsets[1:][np.diff(offsets) > 0] - 1] = True
    # Whether a byte other than zero stands at or before each byte of its row.
    seen = np.cumsum(data != 0)
    before = np.concatenate([[0], seen])[offsets[:-1]]
    wanted = (seen > before[rows]) | last
    lengths = np.bincount(rows[wanted], minlength=len(values))
    return binary_array(_starts(lengths.astype(np.int64)), data[wanted], values)


def join_parts(parts: Sequence[Array]) -> Array:
    """The parts of each row one behind the other; NULL where a part is NULL."""
    if len(parts) == 1:
        return parts[0]
    return pc.binary_join_element_wise(*parts, b"")


def spread(values: Array, valid: Any) -> Array:
    """`values` (none NULL) at the rows that are `valid` (numpy), nothing at the others; no byte is copied."""
    bounds, data = _parts(values)
    lengths = np.zeros(len(valid), np.int64)
    lengths[valid] = np.diff(bounds)
    return binary_array(_starts(lengths), data)


def binary_array(starts: Ints, data: Bytes, like: Array | None = None) -> Array:
    """An Arrow binary array from the bounds of its rows; NULL where `like` is."""
    valid = None if like is None or not like.null_count else pc.is_valid(like).buffers()[1]
    offsets = np.ascontiguousarray(starts, np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(starts) - 1, [valid, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    )


_HEX = np.zeros(256, np.uint8)
_HEX[np.frombuffer(b"0123456789ABCDEF", np.uint8)] = np.arange(16)
_HEX[np.frombuffer(b"abcdef", np.uint8)] = np.arange(10, 16)


def _starts(lengths: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(lengths)])


def _fixed(data: Bytes, width: int, rows: int) -> Array:
    return binary_array(np.arange(rows + 1, dtype=np.int64) * width, data)


def _without_lead(digits: Any, lead: npt.NDArray[np.int64]) -> Array:
    width = digits.shape[1]
    wanted = np.arange(width) >= lead[:, None]
    return binary_array(_starts(width - lead), np.ascontiguousarray(digits)[wanted])


def _parts(values: Array) -> tuple[Ints, Bytes]:
    """Bounds of the rows, from 0, and the bytes between the first and the last; a NULL has none."""
    if values.null_count:
        values = pc.fill_null(values, b"")
    _, offsets, data = values.buffers()
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    content = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return bounds - bounds[0], content[bounds[0] : bounds[-1]]
