"""Write many values at once as Arrow texts: the vectorized counterpart of `values` and the modules it uses.

The texts equal those of the plain functions exactly. For values that only a plain function can write, it is called once
per distinct value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from binlake.base.arrowcolumns import encode_dictionary
from binlake.rows.codec.lanes import Bools, Bytes, Ints, Uints
from binlake.rows.codec.values import name_error_value

_ZERO, _MINUS = ord("0"), ord("-")
_HEX: NDArray[np.uint16] = np.frombuffer("".join(f"{n:02X}" for n in range(256)).encode(), np.uint16)


def format_numbers(values: NDArray[Any]) -> pa.Array:
    """Numbers as decimal texts."""
    return pa.array(values).cast(pa.string())


def build_text_array(offsets: NDArray[np.int32], data: Bytes | bytes, null: Bools | None = None) -> pa.Array:
    """The texts in `data` between neighbouring `offsets`, NULL where `null` is True."""
    valid = None if null is None else pa.py_buffer(np.packbits(~null, bitorder="little"))
    return pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data), valid)


def repeat_names(names: Sequence[str], count: int) -> pa.Array:
    """`names`, repeated `count` times."""
    encoded = [name.encode() for name in names]
    sizes = np.tile(np.fromiter(map(len, encoded), np.int32, len(encoded)), count)
    return build_text_array(
        np.concatenate((np.zeros(1, np.int32), sizes.cumsum(dtype=np.int32))), b"".join(encoded) * count
    )


def cut_texts(data: Bytes, starts: Ints, ends: Ints) -> pa.Array:
    """The bytes of `data` from each start to its end; both must ascend, and slices must not overlap."""
    if not len(starts):
        return pa.array([], pa.string())
    bounds = np.empty(2 * len(starts), np.int32)
    bounds[::2], bounds[1::2] = starts, ends
    # Every second piece lies between two slices.
    return build_text_array(bounds, data).take(pa.array(np.arange(0, len(bounds), 2)))


def read_text_bytes(texts: pa.Array) -> tuple[NDArray[np.int32], Bytes]:
    """(offsets from 0, bytes) of a whole text array."""
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    values = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return bounds - bounds[0], values[bounds[0] : bounds[-1]]


def format_hex(texts: pa.Array) -> pa.Array:
    """Each byte as two upper-case hex digits."""
    offsets, data = read_text_bytes(texts)
    return build_text_array(offsets * np.int32(2), np.ascontiguousarray(_HEX[data]).view(np.uint8))


def put_digits(letters: Bytes, at: int, values: NDArray[Any], width: int) -> None:
    """Write unsigned `values` into the columns `at` to `at + width` - 1 of `letters`, with leading zeros."""
    rest = values
    for column in range(at + width - 1, at, -1):
        rest, letters[:, column] = rest // 10, rest % 10 + _ZERO
    letters[:, at] = rest + _ZERO


def build_even_texts(letters: Bytes) -> pa.Array:
    """One text per row of `letters`."""
    rows, width = letters.shape
    return build_text_array(np.arange(0, rows * width + 1, width, dtype=np.int32), letters.reshape(-1))


def build_ragged_texts(letters: Bytes, starts: Ints) -> pa.Array:
    """One text per row of `letters`, from the row's start column to its last column."""
    width = letters.shape[1]
    kept = np.arange(width) >= starts[:, None]
    offsets = np.zeros(len(letters) + 1, np.int32)
    np.cumsum(width - starts, out=offsets[1:])
    return build_text_array(offsets, letters[kept])


def build_signed_texts(letters: Bytes, starts: Ints, negative: Bools) -> pa.Array:
    """Like `build_ragged_texts`, with a minus before negative ones; column 0 must be free for it."""
    rows = np.flatnonzero(negative)
    letters[rows, starts[rows] - 1] = _MINUS
    return build_ragged_texts(letters, starts - negative)


def format_moments(packed: Uints, fsp: int) -> pa.Array:
    """`temporal.format_moment` of packed times up to year 9999 and 999999 microseconds."""
    letters = _fill_pattern(len(packed), f"____-__-__ __:__:__{'.______' if fsp else ''}")
    clock = (packed >> 24).astype(np.uint32)
    _put_date(letters, packed)
    put_digits(letters, 11, clock >> 12 & 31, 2)
    put_digits(letters, 14, clock >> 6 & 63, 2)
    put_digits(letters, 17, clock & 63, 2)
    if fsp:
        put_digits(letters, 20, (packed & 0xFFFFFF).astype(np.uint32), 6)
    return build_even_texts(np.ascontiguousarray(letters[:, : 20 + fsp]) if fsp else letters)


def format_dates(packed: Uints) -> pa.Array:
    """`temporal.format_date` of packed times up to year 9999."""
    letters = _fill_pattern(len(packed), "____-__-__")
    _put_date(letters, packed)
    return build_even_texts(letters)


def _put_date(letters: Bytes, packed: Uints) -> None:
    days = (packed >> 41).astype(np.uint32)
    months = days >> 5
    put_digits(letters, 0, months // 13, 4)
    put_digits(letters, 5, months % 13, 2)
    put_digits(letters, 8, days & 31, 2)


def format_durations(nanoseconds: Ints, fsp: int) -> pa.Array:
    """`temporal.format_duration` of durations below 1000 hours."""
    size = np.abs(nanoseconds).view(np.uint64)
    seconds, rest = size // 1_000_000_000, size % 1_000_000_000
    hours, seconds = (seconds // 3600).astype(np.uint32), (seconds % 3600).astype(np.uint32)
    letters = _fill_pattern(len(size), f"____:__:__{'.______' if fsp else ''}")
    put_digits(letters, 1, hours, 3)
    put_digits(letters, 5, seconds // 60, 2)
    put_digits(letters, 8, seconds % 60, 2)
    if fsp:
        put_digits(letters, 11, (rest // 1000).astype(np.uint32), 6)
        letters = letters[:, : 11 + fsp]
    return build_signed_texts(letters, np.where(hours > 99, 1, 2), nanoseconds < 0)


def format_years(values: Ints) -> pa.Array:
    """Years of four digits."""
    letters = np.empty((len(values), 4), np.uint8)
    put_digits(letters, 0, values.astype(np.uint32), 4)
    return build_even_texts(letters)


def format_bits(values: Uints, width: int) -> pa.Array:
    """`values.format_bit` of values that fit BIT(width)."""
    size = (max(width, 1) + 7) // 8
    body = np.ascontiguousarray(values.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 8 - size :])
    return build_even_texts(np.ascontiguousarray(_HEX[body]).view(np.uint8))


def format_enums(values: Uints, names: Sequence[str]) -> pa.Array:
    """`values.format_enum` of ordinals."""
    index = np.where(values <= len(names), values, 0).astype(np.int64)
    return pa.array([name_error_value(names), *names], pa.string()).take(pa.array(index))


def format_each(values: NDArray[Any], show: Callable[[Any], str]) -> pa.Array:
    """Texts from a plain function, which is called once for each distinct value."""
    coded = encode_dictionary(pa.array(values))
    return pa.array([show(value.as_py()) for value in coded.dictionary], pa.string()).take(coded.indices)


def merge_texts(kinds: Sequence[tuple[Ints, pa.Array]], count: int) -> pa.Array:
    """Merge several arrays to `count` texts; each array comes with the positions of its texts in the result."""
    for _, texts in kinds:
        if len(texts) == count:
            return texts
    index, base = np.zeros(count, np.int64), 0
    for places, texts in kinds:
        index[places] = np.arange(base, base + len(texts))
        base += len(texts)
    return pa.concat_arrays([texts for _, texts in kinds]).take(pa.array(index))


def _fill_pattern(rows: int, pattern: str) -> Bytes:
    return np.tile(np.frombuffer(pattern.encode(), np.uint8), (rows, 1))
