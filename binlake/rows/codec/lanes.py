"""Bytes of many rows at once: read at many positions, and written as Arrow texts; `datum` and `values`, vectorized.

Reading never raises for invalid bytes. Each result says for which positions it is valid (`good`). The others are left
to the plain reader, and only that reports what is wrong with a row. A result may include bytes after a row's end, so
callers must compare the next position with `ends`. Texts equal those of the plain functions exactly; for values that
only a plain function can write, it is called once per distinct value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from binlake.common.arrowcolumns import encode_dictionary
from binlake.rows.codec import datum as d
from binlake.rows.codec.values import name_error_value, skip

Ints = NDArray[np.int64]
Uints = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
Bools = NDArray[np.bool_]

# A reader may read a word at the end of the last row, and a number of ten bytes after it.
PAD = bytes(32)
_MOST_SPREAD = 1 << 30
"""Most bytes between the first and the last row of a lane: Arrow's text offsets end at 2 GiB."""
_STOPS, _BITS = np.uint64(0x8080808080808080), np.uint64(0x7F7F7F7F7F7F7F7F)
# Groups of 7 bits are joined in pairs, three times: 8 groups of 7 bits, then 4 of 14, then 2 of 28.
_HALVES = tuple(
    (np.uint64(shift), np.uint64(mask))
    for shift, mask in ((1, 0x00FF00FF00FF00FF), (2, 0x0000FFFF0000FFFF), (4, 0x00000000FFFFFFFF))
)
_DIGIT_BYTES = np.asarray((0, 1, 1, 2, 2, 3, 3, 4, 4), np.int64)
_ZERO, _MINUS = ord("0"), ord("-")
_HEX: NDArray[np.uint16] = np.frombuffer("".join(f"{n:02X}" for n in range(256)).encode(), np.uint16)


class Numbers(NamedTuple):
    """The numbers read, the positions after them, and for which of them both are valid."""

    values: Uints
    next: Ints
    good: Bools


class Lanes:
    """Rows as spans of one buffer; `starts` and `ends` are the positions of each row in it.

    The buffer has `PAD` more bytes after the end of the last row.
    """

    def __init__(self, data: Bytes, starts: Ints, ends: Ints) -> None:
        self.data, self.starts, self.ends = data, starts, ends
        self._words: NDArray[Any] = np.ndarray(len(data) - 7, "<u8", data, strides=(1,))

    @classmethod
    def of(cls, rows: Sequence[bytes] | pa.BinaryArray) -> Lanes:
        """Concatenate `rows`; the rows of an Arrow array are not copied."""
        if isinstance(rows, pa.Array):
            return cls._from_array(rows)
        sizes = np.fromiter(map(len, rows), np.int64, len(rows))
        ends = sizes.cumsum()
        return cls(np.frombuffer(b"".join((*rows, PAD)), np.uint8), ends - sizes, ends)

    @classmethod
    def _from_array(cls, rows: pa.BinaryArray) -> Lanes:
        rows = rows.cast(pa.binary())
        _, offsets, values = rows.buffers()
        bounds = np.frombuffer(offsets, np.int32)[rows.offset : rows.offset + len(rows) + 1].astype(np.int64)
        data = np.frombuffer(values or b"", np.uint8)[bounds[0] : bounds[-1] + len(PAD)]
        bounds -= bounds[0]
        if len(data) < bounds[-1] + len(PAD):
            data = np.concatenate((data, np.zeros(len(PAD), np.uint8)))
        return cls(data, bounds[:-1], bounds[1:])

    def __len__(self) -> int:
        return len(self.starts)

    def read_row(self, number: int) -> bytes:
        """The bytes of a row."""
        return self.data[self.starts[number] : self.ends[number]].tobytes()

    def slice_rows(self, first: int, last: int) -> Lanes:
        """The rows `first` to `last` - 1; the starts of these rows must ascend."""
        starts, ends = self.starts[first:last], self.ends[first:last]
        low, high = (int(starts[0]), int(ends[-1])) if len(starts) else (0, 0)
        if high - low > _MOST_SPREAD:
            return Lanes.of([self.read_row(number) for number in range(first, last)])
        return Lanes(self.data[low : high + len(PAD)], starts - low, ends - low)

    def read_bytes(self, at: Ints) -> Bytes:
        """The byte at each position."""
        return self.data.take(at, mode="clip")

    def read_words(self, at: Ints) -> Uints:
        """The 8 bytes from each position on, little endian."""
        return self._words[at]

    def read_uvarints(self, at: Ints) -> Numbers:
        """The unsigned LEB128 number of at most 64 bits at each position."""
        word = self.read_words(at)
        stops = ~word & _STOPS
        first = stops & -stops
        bits = first - 1
        size = (np.bitwise_count(bits).astype(np.int64) + 1) >> 3
        x: Uints = word & bits & _BITS
        for shift, mask in _HALVES:
            x = (x & mask) | ((x & ~mask) >> shift)
        good = np.ones(len(at), np.bool_)
        long = np.flatnonzero(stops == 0)
        if long.size:
            self._add_long_numbers(at[long], long, x, size, good)
        return Numbers(x, at + size, good)

    def _add_long_numbers(self, at: Ints, which: Ints, values: Uints, size: Ints, good: Bools) -> None:
        ninth, tenth = self.read_bytes(at + 8).astype(np.uint64), self.read_bytes(at + 9).astype(np.uint64)
        more = ninth >= 0x80
        values[which] |= (ninth & 0x7F) << 56 | np.where(more, (tenth & 1) << 63, 0).astype(np.uint64)
        size[which] = np.where(more, 10, 9)
        good[which] = ~more | (tenth <= 1)


def decode_zigzag(values: Uints) -> Ints:
    """Decode zig-zag numbers to signed ones."""
    return ((values >> 1) ^ -(values & 1)).view(np.int64)


@dataclass(frozen=True, slots=True)
class Spots:
    """One datum in each of the rows `which`: its flag is at position `at`, its row ends at `ends`."""

    lanes: Lanes
    which: Ints
    at: Ints
    ends: Ints

    def __len__(self) -> int:
        return len(self.at)

    def select(self, index: Ints) -> Spots:
        """Some of the spots."""
        return Spots(self.lanes, self.which[index], self.at[index], self.ends[index])

    @property
    def flags(self) -> Bytes:
        """The flag of each datum."""
        return self.lanes.read_bytes(self.at)

    def read_uvarints(self, flag: int) -> Numbers:
        """The numbers after `flag`; not good where the datum has another flag."""
        numbers = self.lanes.read_uvarints(self.at + 1)
        return numbers._replace(good=numbers.good & (self.flags == flag))

    def read_slices(self) -> tuple[Ints, Ints, Bools]:
        """(start, end, good) of the bytes of compact strings; if not good, start and end are equal and inside the
        row."""
        codes, start, good = self.read_uvarints(d.COMPACT)
        size = (codes >> 1).view(np.int64)
        good &= ((codes & 1) == 0) & (size <= self.ends - start) & (start <= self.ends)
        start = np.minimum(start, self.ends)
        return start, np.where(good, start + size, start), good

    def read_decimal_layout(self) -> tuple[Ints, Ints, Ints, Bools]:
        """(precision, scale, position after the decimal, good) of binary decimals."""
        precision = self.lanes.read_bytes(self.at + 1).astype(np.int64)
        frac = self.lanes.read_bytes(self.at + 2).astype(np.int64)
        whole = precision - frac
        good = (self.flags == d.DECIMAL) & (whole >= 0) & (precision <= 81) & (precision > 0)
        size = whole // 9 * 4 + _DIGIT_BYTES[whole % 9] + frac // 9 * 4 + _DIGIT_BYTES[frac % 9]
        return precision, frac, self.at + 3 + size, good

    def skip_datums(self) -> tuple[Ints, Bools]:
        """(position after the datum, good) for datums with any flag."""
        flags = self.flags
        after, good = self.at + 1, flags == d.NIL
        for flag in np.unique(flags).tolist():
            if flag != d.NIL:
                index = np.flatnonzero(flags == flag)
                after[index], good[index] = self.select(index)._skip_flag(flag)
        return after, good

    def _skip_flag(self, flag: int) -> tuple[Ints, Bools]:
        if flag in (d.VARINT, d.UVARINT):
            return self.read_uvarints(flag)[1:]
        if flag == d.COMPACT:
            return self.read_slices()[1:]
        if flag in (d.INT, d.UINT, d.FLOAT, d.DURATION):
            return self.at + 9, np.ones(len(self), np.bool_)
        if flag == d.DECIMAL:
            return self.read_decimal_layout()[2:]
        return self._skip_each()

    def _skip_each(self) -> tuple[Ints, Bools]:
        after, good = self.at.copy(), np.zeros(len(self), np.bool_)
        starts = self.lanes.starts[self.which]
        for n, (row, pos) in enumerate(zip(self.which.tolist(), (self.at - starts).tolist(), strict=True)):
            try:
                after[n] = skip(self.lanes.read_row(row), pos)
                good[n] = True
            except (IndexError, ValueError):
                continue
        return np.where(good, after + starts, self.at), good


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
