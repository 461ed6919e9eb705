"""Encodes Arrow columns in Avro's binary encoding: one binary array per column (Avro 1.12, "Binary Encoding")."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from binlake.base.arrowcolumns import (
    Array,
    Ints,
    build_binary_array,
    build_fixed_width_array,
    compute_starts,
    encode_varints,
    split_binary_array,
)


def encode_longs(values: Ints) -> Array:
    """Encode numbers as zig-zag varints, for both `int` and `long`."""
    return encode_varints(((values << 1) ^ (values >> 63)).view(np.uint64))


def encode_sizes(values: Array) -> Array:
    """The length in bytes of each value, as Avro writes it before `bytes` and `string`; a NULL's length is 0."""
    lengths = pc.fill_null(pc.binary_length(values), 0)
    return encode_longs(np.asarray(lengths).astype(np.int64))


def encode_doubles(values: npt.NDArray[np.float64]) -> Array:
    """Eight bytes each, little-endian."""
    return build_fixed_width_array(values.astype("<f8").view(np.uint8), 8, len(values))


def encode_floats(values: npt.NDArray[np.float32]) -> Array:
    """Four bytes each, little-endian."""
    return build_fixed_width_array(values.astype("<f4").view(np.uint8), 4, len(values))


def encode_branches(valid: Array, null_branch: int) -> Array:
    """Each row's branch number in the union of `null` and another type, in one byte."""
    null, value = 2 * null_branch, 2 * (1 - null_branch)
    return build_fixed_width_array(np.where(np.asarray(valid), value, null).astype(np.uint8), 1, len(valid))


def encode_decimals(decimals: Array) -> Array:
    """The unscaled two's complement of decimals (128 or 256 bits, none NULL), big-endian, in the fewest bytes."""
    width = decimals.type.byte_width
    raw = np.frombuffer(decimals.buffers()[1], np.uint8)
    first = decimals.offset * width
    digits = raw[first : first + len(decimals) * width].reshape(-1, width)[:, ::-1]
    sign = np.where(digits[:, :1] >= 0x80, 0xFF, 0).astype(np.uint8)
    # A leading byte that is only the sign is dropped if the next byte begins with the same sign.
    spare = (digits[:, :-1] == sign) & ((digits[:, 1:] ^ sign) < 0x80)
    return _drop_leading_bytes(digits, np.logical_and.accumulate(spare, axis=1).sum(axis=1))


def shorten_bits(values: Array) -> Array:
    """Big-endian numbers without leading zero bytes; 0 is one byte (reference 2.3, BIT). NULL stays NULL."""
    offsets, data = split_binary_array(values)
    rows = np.repeat(np.arange(len(values)), np.diff(offsets))
    last = np.zeros(len(data), bool)
    last[offsets[1:][np.diff(offsets) > 0] - 1] = True
    # A byte is needed if its row has a nonzero byte at or before it.
    nonzero_seen = np.cumsum(data != 0)
    before = np.concatenate([[0], nonzero_seen])[offsets[:-1]]
    needed = (nonzero_seen > before[rows]) | last
    lengths = np.bincount(rows[needed], minlength=len(values))
    return build_binary_array(compute_starts(lengths.astype(np.int64)), data[needed], values)


def _drop_leading_bytes(digits: Any, lead: npt.NDArray[np.int64]) -> Array:
    width = digits.shape[1]
    needed = np.arange(width) >= lead[:, None]
    return build_binary_array(compute_starts(width - lead), np.ascontiguousarray(digits)[needed])
