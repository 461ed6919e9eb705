"""Operations on whole Arrow columns: numbers of distinct values, bytes from bounds, varints, tables of bytes.

Rule: no Python object per value; every function takes and returns whole columns. A dictionary has exactly the values
that occur, each once, in order of first appearance: Arrow keeps the whole dictionary of an array that is sliced or
filtered, and `dictionary_encode` returns such an array as it is, so whoever walks its dictionary finds values of rows
that are not there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_RENUMBER_ABOVE = 1 << 31
"""Codes are renumbered above this number of combinations, far below the numbers whose product would overflow."""


def encode_dictionary(values: Any) -> Any:
    """`values`, an array or chunked array of any kind, as one dictionary array; NULL has no number."""
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    plain = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    return plain.dictionary_encode()


def number_values(rows: pa.Table, names: Sequence[str]) -> tuple[Ints, pa.Table]:
    """Number the distinct values of the columns `names`: (each row's number, the values by number)."""
    codes: Ints = np.zeros(rows.num_rows, np.int64)
    most = 1
    for name in names:
        encoded = encode_dictionary(rows[name])
        codes = codes * len(encoded.dictionary) + np.asarray(encoded.indices)
        most *= len(encoded.dictionary)
        if most > _RENUMBER_ABOVE:
            # Number only the combinations that occur, so that the codes do not overflow.
            codes, most = _renumber(codes), rows.num_rows
    codes = _renumber(codes)
    some = np.zeros(int(codes.max(initial=-1)) + 1, np.int64)
    some[codes] = np.arange(rows.num_rows)
    return codes, rows.select(list(names)).take(pa.array(some))


def _renumber(codes: Ints) -> Ints:
    """Number distinct codes from 0 on, without a gap."""
    numbers: Ints = np.asarray(encode_dictionary(pa.array(codes)).indices).astype(np.int64)
    return numbers


Array = Any
"""A pyarrow Array (pyarrow has no stubs)."""
Bytes = NDArray[np.uint8]
Part = Any
"""A part of each row: an Array, or bytes that are equal in all rows."""

_MOST_VARINT_BYTES = 10
MOST_BYTES = (1 << 31) - 1
"""The maximum size of a column in bytes."""
_HEX = np.zeros(256, np.uint8)
_HEX[np.frombuffer(b"0123456789ABCDEF", np.uint8)] = np.arange(16)
_HEX[np.frombuffer(b"abcdef", np.uint8)] = np.arange(10, 16)


def decode_hex(texts: Array) -> Array:
    """Convert texts of hex digits to bytes; NULL stays NULL."""
    texts = pc.cast(texts, pa.binary())
    offsets, data = split_binary_array(texts)
    values = _HEX[data]
    return build_binary_array(offsets // 2, (values[0::2] << np.uint8(4)) | values[1::2], texts)


def encode_varints(unsigned: NDArray[np.uint64]) -> Array:
    """Encode numbers as varints: groups of seven bits, lowest first."""
    lengths = np.ones(len(unsigned), np.int64)
    for size in range(1, _MOST_VARINT_BYTES):
        longer = unsigned >> np.uint64(7 * size) != 0
        if not longer.any():
            break
        lengths += longer
    starts = compute_starts(lengths)
    data = np.empty(int(starts[-1]), np.uint8)
    at = np.arange(len(unsigned))
    for size in range(int(lengths.max(initial=0))):
        at = at[lengths[at] > size] if size else at
        group = (unsigned[at] >> np.uint64(7 * size)) & np.uint64(0x7F)
        data[starts[at] + size] = group.astype(np.uint8) | ((lengths[at] > size + 1).astype(np.uint8) << 7)
    return build_binary_array(starts, data)


@dataclass(frozen=True)
class ByteTable:
    """Replaces bytes by the texts in `others`; other bytes stay."""

    others: Mapping[int, bytes]

    @cached_property
    def lengths(self) -> Ints:
        """The length of each replacement."""
        return np.array([len(self.others.get(byte, b" ")) for byte in range(256)], np.int64)

    @cached_property
    def changed(self) -> NDArray[np.bool_]:
        """Whether each byte is replaced."""
        return np.array([byte in self.others for byte in range(256)])

    @cached_property
    def texts(self) -> Bytes:
        """The replacements, one row per byte, padded with zeros."""
        width = int(self.lengths.max())
        rows = [self.others.get(byte, bytes([byte])).ljust(width, bytes(1)) for byte in range(256)]
        return np.frombuffer(b"".join(rows), np.uint8).reshape(256, width)

    def apply(self, values: Array) -> Array:
        """Each value with every byte replaced. NULL stays NULL."""
        offsets, data = split_binary_array(values)
        if not self.changed[data].any():
            return values
        lengths = self.lengths[data]
        starts = compute_starts(lengths)
        out = np.empty(int(starts[-1]), np.uint8)
        at: Any = slice(None)
        for place in range(int(lengths.max())):
            at = np.flatnonzero(lengths > place) if place else at
            out[starts[:-1][at] + place] = self.texts[data[at], place]
        return build_binary_array(starts[offsets], out, values)


def map_distinct(values: Array, make: Callable[[Any], Any], kind: Any) -> Array:
    """`make` of each value, called once per distinct value; NULL stays NULL. `kind`: the type of the result."""
    coded = encode_dictionary(values)
    made = pa.array([make(value) for value in coded.dictionary.to_pylist()], kind)
    return made.take(coded.indices)


def join_parts(parts: Sequence[Part]) -> Array:
    """The parts of each row concatenated, at least one of them an Array; NULL where a part is NULL."""
    merged: list[Part] = []
    for part in parts:
        if isinstance(part, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += part
        else:
            merged.append(part)
    if len(merged) == 1:
        return merged[0]
    columns = [pa.scalar(part, pa.binary()) if isinstance(part, bytes) else part for part in merged]
    return pc.binary_join_element_wise(*columns, b"")


def scatter(values: Array, valid: Any) -> Array:
    """Put `values` (none NULL) at the rows that are `valid` (numpy); other rows are empty. Copies no bytes."""
    bounds, data = split_binary_array(values)
    lengths = np.zeros(len(valid), np.int64)
    lengths[valid] = np.diff(bounds)
    return build_binary_array(compute_starts(lengths), data)


def build_binary_array(starts: Ints, data: Bytes, like: Array | None = None) -> Array:
    """Build an Arrow binary array from the bounds of its rows, with NULL where `like` is NULL.

    Raises ArrowCapacityError for more bytes than the offsets can address, as Arrow's own functions do.
    """
    if starts[-1] > MOST_BYTES:
        raise pa.ArrowCapacityError(f"a column of {int(starts[-1])} bytes is too large")
    valid = None if like is None or not like.null_count else pc.is_valid(like).buffers()[1]
    offsets = np.ascontiguousarray(starts, np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(starts) - 1, [valid, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    )


def build_fixed_width_array(data: Bytes, width: int, rows: int) -> Array:
    """Build an array of `rows` values of `width` bytes each."""
    return build_binary_array(np.arange(rows + 1, dtype=np.int64) * width, data)


def encode_fixed_numbers(values: NDArray[np.generic], kind: str) -> Array:
    """Numbers as eight bytes of numpy's type `kind`."""
    return build_fixed_width_array(values.astype(kind).view(np.uint8), 8, len(values))


def compute_starts(lengths: Ints) -> Ints:
    """The start of each value, and the end of the last one."""
    return np.concatenate([[0], np.cumsum(lengths)])


def split_binary_array(values: Array) -> tuple[Ints, Bytes]:
    """The bounds of the rows, starting at 0, and their bytes; a NULL has no bytes."""
    if values.null_count:
        values = pc.fill_null(values, b"")
    _, offsets, data = values.buffers()
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    content = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return bounds - bounds[0], content[bounds[0] : bounds[-1]]
