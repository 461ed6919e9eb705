"""Read one column of many rows at once: the vectorized counterpart of `binlake.rows.codec.tabledecoder`.

A lane reader either gives the same texts as the plain reader or marks the datum as not good; the plain reader then
reads that row. Get a reader by `build_lane_reader` or `build_handle_reader`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from binlake.rows.codec import datum as d
from binlake.rows.codec.datum import FLOAT_MAX, format_double, format_float
from binlake.rows.codec.lanes import (
    Bools,
    Ints,
    Spots,
    Uints,
    build_signed_texts,
    cut_texts,
    decode_zigzag,
    format_bits,
    format_dates,
    format_durations,
    format_each,
    format_enums,
    format_hex,
    format_moments,
    format_numbers,
    format_years,
    merge_texts,
    put_digits,
    read_text_bytes,
)
from binlake.rows.codec.tabledecoder import Reader, build_reader
from binlake.rows.codec.values import format_set
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.info import ColumnInfo


class Cells(NamedTuple):
    """A text per spot, the position after each datum, and whether both equal the plain reader's result."""

    texts: pa.Array
    next: Ints
    good: Bools


LaneReader = Callable[[Spots], Cells]
"""Datums that are not NULL -> their canonical texts."""

_YEARS = 13 * 10_000
_MOST_HOURS = 1000 * 3600 * 1_000_000_000
_FEW = 64
_SIGN = 1 << 63


def build_lane_reader(column: ColumnInfo) -> LaneReader:
    """The reader of `column` for many rows."""
    if column.tp in t.STRINGS:
        return _read_binaries if column.is_binary else _read_texts
    make = _MAKERS.get(column.tp)
    if make is not None:
        return make(column)
    return _build_integer_reader(column) if column.tp in t.INTEGERS else _read_each(build_reader(column))


def build_handle_reader(column: ColumnInfo) -> LaneReader:
    """The reader of a handle datum: there an unsigned key may be stored as signed, and a TIME has a different flag.

    tidb-binlog 1.11, confirmed by the captures.
    """
    usual = build_lane_reader(column)
    if column.tp == t.DURATION:
        return _build_handle_duration_reader(column)
    if column.tp in t.INTEGERS and column.unsigned:
        signed = _build_varint_reader(True)
        return lambda spots: signed(spots) if (spots.flags == d.VARINT).all() else usual(spots)
    return usual


def _build_handle_duration_reader(column: ColumnInfo) -> LaneReader:
    def read(spots: Spots) -> Cells:
        words: Uints = spots.lanes.read_words(spots.at + 1).byteswap()
        nanoseconds, good = (words ^ np.uint64(_SIGN)).view(np.int64), spots.flags == d.DURATION
        return _build_duration_cells(column, nanoseconds, spots.at + 9, good)

    return read


def has_plain_texts(column: ColumnInfo) -> bool:
    """True when no text of the column needs an escape in JSON."""
    return column.is_binary or column.tp not in t.STRINGS | {t.ENUM, t.SET, t.JSON}


def _build_integer_reader(column: ColumnInfo) -> LaneReader:
    if not column.unsigned:
        return _build_varint_reader(False)

    def read(spots: Spots) -> Cells:
        values, after, good = spots.read_uvarints(d.UVARINT)
        return Cells(format_numbers(values), after, good)

    return read


def _build_varint_reader(unsigned: bool) -> LaneReader:
    def read(spots: Spots) -> Cells:
        values, after, good = spots.read_uvarints(d.VARINT)
        signed = decode_zigzag(values)
        return Cells(format_numbers(signed.view(np.uint64) if unsigned else signed), after, good)

    return read


def _read_texts(spots: Spots) -> Cells:
    starts, ends, good = spots.read_slices()
    texts = cut_texts(spots.lanes.data, starts, ends)
    data = read_text_bytes(texts)[1]
    if data.size and data.max() >= 0x80 and not _is_utf8(texts):
        good &= np.fromiter(map(_can_decode, texts.cast(pa.binary()).to_pylist()), np.bool_, len(texts))
    return Cells(texts, ends, good)


def _is_utf8(texts: pa.Array) -> bool:
    try:
        texts.cast(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _can_decode(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _read_binaries(spots: Spots) -> Cells:
    starts, ends, good = spots.read_slices()
    return Cells(format_hex(cut_texts(spots.lanes.data, starts, ends)), ends, good)


def _build_moment_reader(column: ColumnInfo) -> LaneReader:
    fsp = min(column.fsp, 6)

    def read(spots: Spots) -> Cells:
        values, after, good = spots.read_uvarints(d.UVARINT)
        good &= (values >> 46 < _YEARS) & ((values & 0xFFFFFF < 1_000_000) | (fsp == 0))
        return Cells(format_moments(values, fsp), after, good)

    return read


def _build_date_reader(_column: ColumnInfo) -> LaneReader:
    def read(spots: Spots) -> Cells:
        values, after, good = spots.read_uvarints(d.UVARINT)
        return Cells(format_dates(values), after, good & (values >> 46 < _YEARS))

    return read


def _build_duration_reader(column: ColumnInfo) -> LaneReader:
    def read(spots: Spots) -> Cells:
        values, after, good = spots.read_uvarints(d.VARINT)
        return _build_duration_cells(column, decode_zigzag(values), after, good)

    return read


def _build_duration_cells(column: ColumnInfo, nanoseconds: Ints, after: Ints, good: Bools) -> Cells:
    good = good & (nanoseconds < _MOST_HOURS) & (nanoseconds > -_MOST_HOURS)
    return Cells(format_durations(np.where(good, nanoseconds, 0), min(column.fsp, 6)), after, good)


def _build_year_reader(_column: ColumnInfo) -> LaneReader:
    def read(spots: Spots) -> Cells:
        values, after, good = spots.read_uvarints(d.VARINT)
        years = decode_zigzag(values)
        return Cells(format_years(years), after, good & (years >= 0) & (years < 10_000))

    return read


def _build_bit_reader(column: ColumnInfo) -> LaneReader:
    width = max(column.flen, 1)

    def read(spots: Spots) -> Cells:
        values, after, good = spots.read_uvarints(d.UVARINT)
        if width < 64:
            good &= values >> width == 0
        return Cells(format_bits(values, width), after, good)

    return _read_each(build_reader(column)) if width > 64 else read


def _build_enum_reader(column: ColumnInfo) -> LaneReader:
    def read(spots: Spots) -> Cells:
        values, after, good = spots.read_uvarints(d.UVARINT)
        return Cells(format_enums(values, column.elems), after, good)

    return read


def _build_set_reader(column: ColumnInfo) -> LaneReader:
    def read(spots: Spots) -> Cells:
        values, after, good = spots.read_uvarints(d.UVARINT)
        return Cells(format_each(values, lambda value: format_set(value, column.elems)), after, good)

    return read


def _build_float_reader(column: ColumnInfo) -> LaneReader:
    single = column.tp == t.FLOAT

    def read(spots: Spots) -> Cells:
        bits: Uints = spots.lanes.read_words(spots.at + 1).byteswap()
        values = np.where(bits >= _SIGN, bits & ~np.uint64(_SIGN), ~bits).view(np.float64)
        good = (spots.flags == d.FLOAT) & np.isfinite(values)
        if single:
            good &= np.abs(values) <= FLOAT_MAX
        values = np.where(good, values, 0)
        return Cells(_format_singles(values) if single else _format_doubles(values), spots.at + 9, good)

    return read


def format_reals(values: NDArray[np.float64], *, single: bool) -> pa.Array:
    """The canonical texts of FLOAT (`single`) or DOUBLE values. Raises ValueError for one that no column holds."""
    if not (np.abs(values) <= FLOAT_MAX if single else np.isfinite(values)).all():
        raise ValueError("a number is not a value of its column")
    return _format_singles(values) if single else _format_doubles(values)


def _format_doubles(values: NDArray[np.float64]) -> pa.Array:
    whole = (np.abs(values) < 1e15) & (np.rint(values) == values) & ~((values == 0) & np.signbit(values))
    return _format_floats(values, whole, (1e-4, 1e9), format_double)


def _format_singles(values: NDArray[np.float64]) -> pa.Array:
    singles = values.astype(np.float32)
    # From 2**24 on, the shortest text of a float32 differs from the text of its integer.
    whole = (np.abs(singles) < 1 << 24) & (np.rint(singles) == singles) & ~((singles == 0) & np.signbit(singles))
    return _format_floats(singles, whole, (1e-4, 1 << 24), format_float)


def _format_floats(
    values: NDArray[Any], whole: Bools, limits: tuple[float, float], show: Callable[[float], str]
) -> pa.Array:
    # Outside the limits Arrow and TiDB write exponents differently.
    size = np.abs(values)
    plain = ~whole & (size >= limits[0]) & (size < limits[1])
    places = [np.flatnonzero(kind) for kind in (whole, plain, ~whole & ~plain)]
    kinds = [
        format_numbers(values[places[0]].astype(np.int64)),
        format_numbers(values[places[1]]),
        format_each(values[places[2]], show),
    ]
    return merge_texts(list(zip(places, kinds, strict=True)), len(values))


def _build_decimal_reader(column: ColumnInfo) -> LaneReader:
    scale, plain = max(column.decimal, 0), _read_each(build_reader(column))

    def read(spots: Spots) -> Cells:
        precision, frac, after, good = spots.read_decimal_layout()
        layouts = np.where(good, precision << 8 | frac, 0)
        parts: list[tuple[Ints, pa.Array]] = []
        for layout in np.unique(layouts).tolist():
            places = np.flatnonzero(layouts == layout)
            use_plain = layout == 0 or places.size < _FEW
            chosen = spots.select(places)
            cells = plain(chosen) if use_plain else _read_decimals(chosen, layout >> 8, layout & 0xFF, scale)
            after[places], good[places] = cells.next, cells.good
            parts.append((places, cells.texts))
        return Cells(merge_texts(parts, len(spots)), after, good)

    return read


def _read_decimals(spots: Spots, precision: int, frac: int, scale: int) -> Cells:
    """Read decimals of one layout: write the digits group by group, then remove leading zeros."""
    size = d.compute_decimal_size(precision, frac)
    good = spots.at + 3 + size <= spots.ends
    body = spots.lanes.read_bytes(spots.at[:, None] + np.arange(3, 3 + size))
    negative = body[:, 0] < 0x80
    body ^= np.where(negative, 0xFF, 0).astype(np.uint8)[:, None]
    body[:, 0] ^= 0x80
    digits, fits = _read_decimal_digits(body, precision, frac)
    good &= fits
    whole, tail = max(precision - frac, 1), max(frac, scale)
    letters = np.full((len(spots), 1 + whole + (1 + tail if tail else 0)), ord("0"), np.uint8)
    letters[:, 1 + whole - (precision - frac) : 1 + whole] = digits[:, : precision - frac]
    if tail:
        letters[:, 1 + whole] = ord(".")
        letters[:, 2 + whole : 2 + whole + frac] = digits[:, precision - frac :]
    shown = letters[:, 1 : 1 + whole] != ord("0")
    shown[:, -1] = True
    negative &= (digits != ord("0")).any(axis=1)
    return Cells(build_signed_texts(letters, shown.argmax(axis=1) + 1, negative), spots.at + 3 + size, good)


def _read_decimal_digits(body: NDArray[np.uint8], precision: int, frac: int) -> tuple[NDArray[np.uint8], Bools]:
    digits = np.empty((len(body), precision), np.uint8)
    good, at, column = np.ones(len(body), np.bool_), 0, 0
    for size, count in d.list_decimal_groups(precision, frac):
        value: NDArray[np.uint32] = np.zeros(len(body), np.uint32)
        for byte in range(at, at + size):
            value = value << np.uint32(8) | body[:, byte]
        good &= value < 10**count
        put_digits(digits, column, value, count)
        at, column = at + size, column + count
    return digits, good


def _read_each(reader: Reader) -> LaneReader:
    """A lane reader that calls the plain reader row by row."""

    def read(spots: Spots) -> Cells:
        texts: list[str | None] = [""] * len(spots)
        after, good = spots.at.copy(), np.zeros(len(spots), np.bool_)
        starts = spots.lanes.starts[spots.which].tolist()
        for n, (row, at, start) in enumerate(zip(spots.which.tolist(), spots.at.tolist(), starts, strict=True)):
            try:
                texts[n], end = reader(spots.lanes.read_row(row), at - start)
            except (IndexError, ValueError, KeyError, OverflowError):
                continue
            after[n], good[n] = end + start, True
        return Cells(pa.array(texts, pa.string()), after, good)

    return read


_MAKERS: dict[int, Callable[[ColumnInfo], LaneReader]] = {
    t.FLOAT: _build_float_reader,
    t.DOUBLE: _build_float_reader,
    t.NEWDECIMAL: _build_decimal_reader,
    t.DATETIME: _build_moment_reader,
    t.TIMESTAMP: _build_moment_reader,
    t.DATE: _build_date_reader,
    t.NEWDATE: _build_date_reader,
    t.DURATION: _build_duration_reader,
    t.YEAR: _build_year_reader,
    t.BIT: _build_bit_reader,
    t.ENUM: _build_enum_reader,
    t.SET: _build_set_reader,
}
