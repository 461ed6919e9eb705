"""Read one column of many rows at once: the vectorized counterpart of `binlake.rows.codec.readers`.

A lane reader either gives the same texts as the plain reader or marks the datum as not good; the plain reader then
reads that row. Get a reader by `lane_reader_of` or `handle_reader_of`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from binlake.rows.codec import datum as d
from binlake.rows.codec import texts as x
from binlake.rows.codec.floats import FLOAT_MAX, double_text, float_text
from binlake.rows.codec.lanes import Bools, Ints, Spots, Uints, zigzag
from binlake.rows.codec.readers import Reader, reader_of
from binlake.rows.codec.values import set_text
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


def lane_reader_of(column: ColumnInfo) -> LaneReader:
    """The reader of `column` for many rows."""
    if column.tp in t.STRINGS:
        return _binaries if column.is_binary else _texts
    make = _MAKERS.get(column.tp)
    if make is not None:
        return make(column)
    return _integers(column) if column.tp in t.INTEGERS else _read_each(reader_of(column))


def handle_reader_of(column: ColumnInfo) -> LaneReader:
    """The reader of a handle datum: there an unsigned key may be stored as signed, and a TIME has a different flag.

    tidb-binlog 1.11, confirmed by the captures.
    """
    usual = lane_reader_of(column)
    if column.tp == t.DURATION:
        return _handle_durations(column)
    if column.tp in t.INTEGERS and column.unsigned:
        signed = _signed_as(True)
        return lambda spots: signed(spots) if (spots.flags == d.VARINT).all() else usual(spots)
    return usual


def _handle_durations(column: ColumnInfo) -> LaneReader:
    def read(spots: Spots) -> Cells:
        words: Uints = spots.lanes.words(spots.at + 1).byteswap()
        nanoseconds, good = (words ^ np.uint64(_SIGN)).view(np.int64), spots.flags == d.DURATION
        return _duration_cells(column, nanoseconds, spots.at + 9, good)

    return read


def has_plain_texts(column: ColumnInfo) -> bool:
    """True when no text of the column needs an escape in JSON."""
    return column.is_binary or column.tp not in t.STRINGS | {t.ENUM, t.SET, t.JSON}


def _integers(column: ColumnInfo) -> LaneReader:
    if not column.unsigned:
        return _signed_as(False)

    def read(spots: Spots) -> Cells:
        values, after, good = spots.uvarints(d.UVARINT)
        return Cells(x.number_texts(values), after, good)

    return read


def _signed_as(unsigned: bool) -> LaneReader:
    def read(spots: Spots) -> Cells:
        values, after, good = spots.uvarints(d.VARINT)
        signed = zigzag(values)
        return Cells(x.number_texts(signed.view(np.uint64) if unsigned else signed), after, good)

    return read


def _texts(spots: Spots) -> Cells:
    starts, ends, good = spots.slices()
    texts = x.cut_texts(spots.lanes.data, starts, ends)
    data = x.text_bytes(texts)[1]
    if data.size and data.max() >= 0x80 and not _is_utf8(texts):
        good &= np.fromiter(map(_decodes, texts.cast(pa.binary()).to_pylist()), np.bool_, len(texts))
    return Cells(texts, ends, good)


def _is_utf8(texts: pa.Array) -> bool:
    try:
        texts.cast(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _decodes(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _binaries(spots: Spots) -> Cells:
    starts, ends, good = spots.slices()
    return Cells(x.hex_texts(x.cut_texts(spots.lanes.data, starts, ends)), ends, good)


def _moments(column: ColumnInfo) -> LaneReader:
    fsp = min(column.fsp, 6)

    def read(spots: Spots) -> Cells:
        values, after, good = spots.uvarints(d.UVARINT)
        good &= (values >> 46 < _YEARS) & ((values & 0xFFFFFF < 1_000_000) | (fsp == 0))
        return Cells(x.moment_texts(values, fsp), after, good)

    return read


def _dates(_column: ColumnInfo) -> LaneReader:
    def read(spots: Spots) -> Cells:
        values, after, good = spots.uvarints(d.UVARINT)
        return Cells(x.date_texts(values), after, good & (values >> 46 < _YEARS))

    return read


def _durations(column: ColumnInfo) -> LaneReader:
    def read(spots: Spots) -> Cells:
        values, after, good = spots.uvarints(d.VARINT)
        return _duration_cells(column, zigzag(values), after, good)

    return read


def _duration_cells(column: ColumnInfo, nanoseconds: Ints, after: Ints, good: Bools) -> Cells:
    good = good & (nanoseconds < _MOST_HOURS) & (nanoseconds > -_MOST_HOURS)
    return Cells(x.duration_texts(np.where(good, nanoseconds, 0), min(column.fsp, 6)), after, good)


def _years(_column: ColumnInfo) -> LaneReader:
    def read(spots: Spots) -> Cells:
        values, after, good = spots.uvarints(d.VARINT)
        years = zigzag(values)
        return Cells(x.year_texts(years), after, good & (years >= 0) & (years < 10_000))

    return read


def _bits(column: ColumnInfo) -> LaneReader:
    width = max(column.flen, 1)

    def read(spots: Spots) -> Cells:
        values, after, good = spots.uvarints(d.UVARINT)
        if width < 64:
            good &= values >> width == 0
        return Cells(x.bit_texts(values, width), after, good)

    return _read_each(reader_of(column)) if width > 64 else read


def _enums(column: ColumnInfo) -> LaneReader:
    def read(spots: Spots) -> Cells:
        values, after, good = spots.uvarints(d.UVARINT)
        return Cells(x.named_texts(values, column.elems), after, good)

    return read


def _sets(column: ColumnInfo) -> LaneReader:
    def read(spots: Spots) -> Cells:
        values, after, good = spots.uvarints(d.UVARINT)
        return Cells(x.each_texts(values, lambda value: set_text(value, column.elems)), after, good)

    return read


def _floats(column: ColumnInfo) -> LaneReader:
    single = column.tp == t.FLOAT

    def read(spots: Spots) -> Cells:
        bits: Uints = spots.lanes.words(spots.at + 1).byteswap()
        values = np.where(bits >= _SIGN, bits & ~np.uint64(_SIGN), ~bits).view(np.float64)
        good = (spots.flags == d.FLOAT) & np.isfinite(values)
        if single:
            good &= np.abs(values) <= FLOAT_MAX
        values = np.where(good, values, 0)
        return Cells(_single_texts(values) if single else _double_texts(values), spots.at + 9, good)

    return read


def _double_texts(values: NDArray[np.float64]) -> pa.Array:
    whole = (np.abs(values) < 1e15) & (np.rint(values) == values) & ~((values == 0) & np.signbit(values))
    return _float_texts(values, whole, (1e-4, 1e9), double_text)


def _single_texts(values: NDArray[np.float64]) -> pa.Array:
    singles = values.astype(np.float32)
    # From 2**24 on, the shortest text of a float32 differs from the text of its integer.
    whole = (np.abs(singles) < 1 << 24) & (np.rint(singles) == singles) & ~((singles == 0) & np.signbit(singles))
    return _float_texts(singles, whole, (1e-4, 1 << 24), float_text)


def _float_texts(
    values: NDArray[Any], whole: Bools, limits: tuple[float, float], show: Callable[[float], str]
) -> pa.Array:
    # Outside the limits Arrow and TiDB write exponents differently.
    size = np.abs(values)
    plain = ~whole & (size >= limits[0]) & (size < limits[1])
    places = [np.flatnonzero(kind) for kind in (whole, plain, ~whole & ~plain)]
    kinds = [
        x.number_texts(values[places[0]].astype(np.int64)),
        x.number_texts(values[places[1]]),
        x.each_texts(values[places[2]], show),
    ]
    return x.merged_texts(list(zip(places, kinds, strict=True)), len(values))


def _decimals(column: ColumnInfo) -> LaneReader:
    scale, plain = max(column.decimal, 0), _read_each(reader_of(column))

    def read(spots: Spots) -> Cells:
        precision, frac, after, good = spots.decimal_layout()
        layouts = np.where(good, precision << 8 | frac, 0)
        parts: list[tuple[Ints, pa.Array]] = []
        for layout in np.unique(layouts).tolist():
            places = np.flatnonzero(layouts == layout)
            use_plain = layout == 0 or places.size < _FEW
            chosen = spots.only(places)
            cells = plain(chosen) if use_plain else _decimals_of(chosen, layout >> 8, layout & 0xFF, scale)
            after[places], good[places] = cells.next, cells.good
            parts.append((places, cells.texts))
        return Cells(x.merged_texts(parts, len(spots)), after, good)

    return read


def _decimals_of(spots: Spots, precision: int, frac: int, scale: int) -> Cells:
    """Read decimals of one layout: write the digits group by group, then remove leading zeros."""
    size = d.decimal_size(precision, frac)
    good = spots.at + 3 + size <= spots.ends
    body = spots.lanes.byte(spots.at[:, None] + np.arange(3, 3 + size))
    negative = body[:, 0] < 0x80
    body ^= np.where(negative, 0xFF, 0).astype(np.uint8)[:, None]
    body[:, 0] ^= 0x80
    digits, fits = _decimal_digits(body, precision, frac)
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
    return Cells(x.signed_texts(letters, shown.argmax(axis=1) + 1, negative), spots.at + 3 + size, good)


def _decimal_digits(body: NDArray[np.uint8], precision: int, frac: int) -> tuple[NDArray[np.uint8], Bools]:
    digits = np.empty((len(body), precision), np.uint8)
    good, at, column = np.ones(len(body), np.bool_), 0, 0
    for size, count in d.decimal_groups(precision, frac):
        value: NDArray[np.uint32] = np.zeros(len(body), np.uint32)
        for byte in range(at, at + size):
            value = value << np.uint32(8) | body[:, byte]
        good &= value < 10**count
        x.put_digits(digits, column, value, count)
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
                texts[n], end = reader(spots.lanes.row(row), at - start)
            except (IndexError, ValueError, KeyError, OverflowError):
                continue
            after[n], good[n] = end + start, True
        return Cells(pa.array(texts, pa.string()), after, good)

    return read


_MAKERS: dict[int, Callable[[ColumnInfo], LaneReader]] = {
    t.FLOAT: _floats,
    t.DOUBLE: _floats,
    t.NEWDECIMAL: _decimals,
    t.DATETIME: _moments,
    t.TIMESTAMP: _moments,
    t.DATE: _dates,
    t.NEWDATE: _dates,
    t.DURATION: _durations,
    t.YEAR: _years,
    t.BIT: _bits,
    t.ENUM: _enums,
    t.SET: _sets,
}
