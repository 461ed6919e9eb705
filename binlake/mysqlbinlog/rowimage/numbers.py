"""Numbers and times as the log has them, converted to the numbers that TiDB stores: one value, or those of many rows.

Temporal types of MySQL 5.6 are big-endian numbers with an offset, so that bytes compare like values; older ones are
decimal digits or seconds (MySQL `my_time.cc`, MariaDB KB "Rows_event_v1"). Values of many rows are read at once from
words of the rows' bytes (`LaneReader`); the result is valid for every row that has a value, and for NULLs it may be any
number.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from binlake.mysqlbinlog.rowimage.lanes import Ints, Uints
from binlake.mysqlbinlog.rowimage.shape import DATETIME2, TIME2, TIMESTAMP2, ValueLayout
from binlake.rows.schema import mysqltypes as t

_TIME_SPAN = 839 * 3600
"""Offset in seconds of MariaDB's older TIME with fractions."""
_MICRO = 1_000_000
FRACTION_UNITS = (1, 10_000, 100, 1)
"""Microseconds per unit of a fraction of 0 to 3 bytes."""
LaneReader = Callable[[NDArray[Any], Ints], Ints]
"""(words, offsets) -> numbers; unsigned ones as signed ones with the same bits."""
_DAY, _LAST_DAY = 86_400, 49_711
"""Seconds in a day; the number of days since 1970 that 32 bits of seconds cover."""


def number_reader(layout: ValueLayout, unsigned: bool) -> Callable[[bytes], int]:
    """The reader of `layout`'s values: integers, YEAR, BIT, ENUM, SET, packed times, durations in nanoseconds."""
    if layout.tp in t.INTEGERS:
        return lambda raw: int.from_bytes(raw, "little", signed=not unsigned)
    if layout.tp in (t.ENUM, t.SET):
        return lambda raw: int.from_bytes(raw, "little")
    if layout.tp == t.BIT:
        return lambda raw: int.from_bytes(raw, "big")
    if layout.tp == t.YEAR:
        return lambda raw: raw[0] + 1900 if raw[0] else 0
    if layout.tp in t.DATES:
        return _read_date
    return _TEMPORALS[layout.tp](layout)


def decode_float(raw: bytes) -> float:
    """The value of a FLOAT or a DOUBLE."""
    value: float = struct.unpack("<f" if len(raw) == 4 else "<d", raw)[0]
    return value


def pack_time(year: int, month: int, day: int, clock: int, micro: int = 0) -> int:
    """TiDB's packed time; `clock`: hour << 12 | minute << 6 | second."""
    return (((year * 13 + month) << 5 | day) << 17 | clock) << 24 | micro


def count_fraction_bytes(layout: ValueLayout) -> int:
    """Size in bytes of the fraction of a temporal type of MySQL 5.6."""
    return (layout.first + 1) // 2


def _read_date(raw: bytes) -> int:
    number = int.from_bytes(raw, "little")
    return pack_time(number >> 9, number >> 5 & 15, number & 31, 0)


def _pack_moment(seconds: int, micro: int) -> int:
    """Seconds of Unix time in UTC; zero is the zero date."""
    if not seconds and not micro:
        return 0
    at = datetime.fromtimestamp(seconds, UTC)
    return pack_time(at.year, at.month, at.day, at.hour << 12 | at.minute << 6 | at.second, micro)


def _build_timestamp2_reader(layout: ValueLayout) -> Callable[[bytes], int]:
    unit = FRACTION_UNITS[count_fraction_bytes(layout)]
    return lambda raw: _pack_moment(int.from_bytes(raw[:4], "big"), int.from_bytes(raw[4:], "big") * unit)


def _build_datetime2_reader(layout: ValueLayout) -> Callable[[bytes], int]:
    unit = FRACTION_UNITS[count_fraction_bytes(layout)]
    return lambda raw: int.from_bytes(raw[:5], "big") - (1 << 39) << 24 | int.from_bytes(raw[5:], "big") * unit


def _build_time2_reader(layout: ValueLayout) -> Callable[[bytes], int]:
    size = count_fraction_bytes(layout)
    bits, unit, offset = 8 * size, FRACTION_UNITS[size], 1 << 23 + 8 * size

    def read(raw: bytes) -> int:
        number = int.from_bytes(raw, "big") - offset
        clock, micro = abs(number) >> bits, (abs(number) & (1 << bits) - 1) * unit
        return _compute_duration(number < 0, clock >> 12 & 0x3FF, clock >> 6 & 63, clock & 63, micro)

    return read


def _compute_duration(negative: bool, hours: int, minutes: int, seconds: int, micro: int) -> int:
    nanos = (((hours * 60 + minutes) * 60 + seconds) * _MICRO + micro) * 1000
    return -nanos if negative else nanos


def _build_old_timestamp_reader(layout: ValueLayout) -> Callable[[bytes], int]:
    if not layout.first:
        return lambda raw: _pack_moment(int.from_bytes(raw, "little"), 0)
    unit = 10 ** (6 - layout.first)
    return lambda raw: _pack_moment(int.from_bytes(raw[:4], "big"), int.from_bytes(raw[4:], "big") * unit)


def _build_old_datetime_reader(layout: ValueLayout) -> Callable[[bytes], int]:
    unit = 10 ** (6 - layout.first)

    def read_digits(raw: bytes) -> int:
        date, clock = divmod(int.from_bytes(raw, "little"), _MICRO)
        return pack_time(date // 10_000, date // 100 % 100, date % 100, _pack_clock(clock))

    def read_units(raw: bytes) -> int:
        seconds, micro = divmod(int.from_bytes(raw, "big") * unit, _MICRO)
        days, second = divmod(seconds, 86_400)
        clock = second // 3600 << 12 | second // 60 % 60 << 6 | second % 60
        return pack_time(days // 32 // 13, days // 32 % 13, days % 32, clock, micro)

    return read_units if layout.first else read_digits


def _pack_clock(digits: int) -> int:
    return digits // 10_000 << 12 | digits // 100 % 100 << 6 | digits % 100


def _build_old_time_reader(layout: ValueLayout) -> Callable[[bytes], int]:
    unit = 10 ** (6 - layout.first)

    def read_digits(raw: bytes) -> int:
        number = int.from_bytes(raw, "little", signed=True)
        digits = abs(number)
        return _compute_duration(number < 0, digits // 10_000, digits // 100 % 100, digits % 100, 0)

    return (
        (lambda raw: (int.from_bytes(raw, "big") * unit - _TIME_SPAN * _MICRO) * 1000) if layout.first else read_digits
    )


_TEMPORALS: dict[int, Callable[[ValueLayout], Callable[[bytes], int]]] = {
    TIMESTAMP2: _build_timestamp2_reader,
    DATETIME2: _build_datetime2_reader,
    TIME2: _build_time2_reader,
    t.TIMESTAMP: _build_old_timestamp_reader,
    t.DATETIME: _build_old_datetime_reader,
    t.DURATION: _build_old_time_reader,
}


def build_lane_reader(layout: ValueLayout, unsigned: bool) -> LaneReader | None:
    """The reader of `layout`'s numbers for many rows; None if only the plain reader supports it."""
    if layout.tp in t.INTEGERS and not unsigned:
        return _build_signed_reader(8 * layout.size)
    if layout.tp in t.INTEGERS | {t.ENUM, t.SET}:
        return _build_unsigned_reader(8 * layout.size)
    if layout.tp == t.BIT:
        return _build_big_endian_reader(8 * layout.size)
    if layout.tp == t.YEAR:
        return _read_years
    if layout.tp in t.DATES:
        return _read_dates
    if layout.tp in (t.TIMESTAMP, t.DATETIME, t.DURATION) and layout.first:
        return None
    return _TEMPORAL_LANES[layout.tp](layout)


def encode_comparable_floats(words: NDArray[Any], at: Ints, size: int) -> Uints:
    """FLOATs of 4 or DOUBLEs of 8 bytes as TiDB writes them, a word each."""
    raw = words[at]
    if size == 4:
        single = raw.astype(np.uint32).view(np.float32)
        # The bytes at a NULL's offset may not be a number.
        with np.errstate(invalid="ignore"):
            raw = single.astype(np.float64).view(np.uint64)
    sign = np.uint64(1 << 63)
    comparable: Uints = np.where(raw >= sign, ~raw, raw | sign).byteswap()
    return comparable


def _build_unsigned_reader(bits: int) -> LaneReader:
    mask = np.uint64((1 << bits) - 1)
    return lambda words, at: (words[at] & mask).view(np.int64)


def _build_signed_reader(bits: int) -> LaneReader:
    spare = 64 - bits
    return lambda words, at: (words[at] << np.uint64(spare)).view(np.int64) >> spare


def _build_big_endian_reader(bits: int) -> LaneReader:
    spare = np.uint64(64 - bits)
    return lambda words, at: (words[at].byteswap() >> spare).view(np.int64)


def _read_years(words: NDArray[Any], at: Ints) -> Ints:
    year = (words[at] & np.uint64(0xFF)).view(np.int64)
    return np.where(year == 0, 0, year + 1900)


def _read_dates(words: NDArray[Any], at: Ints) -> Ints:
    number = (words[at] & np.uint64(0xFFFFFF)).view(np.int64)
    months = (number >> 9) * 13 + (number >> 5 & 15)
    return (months << 5 | number & 31) << 41


def _build_datetime2_lanes(layout: ValueLayout) -> LaneReader:
    size = count_fraction_bytes(layout)
    unit, spare, mask = FRACTION_UNITS[size], 24 - 8 * size, (1 << 8 * size) - 1

    def read(words: NDArray[Any], at: Ints) -> Ints:
        number = words[at].byteswap()
        whole = (number >> np.uint64(24)).view(np.int64) - (1 << 39) << 24
        return whole | (number.view(np.int64) >> spare & mask) * unit if size else whole

    return read


def _build_timestamp2_lanes(layout: ValueLayout) -> LaneReader:
    size = count_fraction_bytes(layout)
    unit, spare, mask = FRACTION_UNITS[size], 32 - 8 * size, (1 << 8 * size) - 1

    def read(words: NDArray[Any], at: Ints) -> Ints:
        number = words[at].byteswap()
        seconds = (number >> np.uint64(32)).view(np.int64)
        return _pack_moments(seconds, (number.view(np.int64) >> spare & mask) * unit)

    return read


def _pack_moments(seconds: Ints, micro: Ints) -> Ints:
    days = seconds // _DAY
    second = seconds - days * _DAY
    minute = second // 60
    hour = minute // 60
    clock = hour << 12 | (minute - hour * 60) << 6 | second - minute * 60
    packed = (_compute_packed_days()[days] << 17 | clock) << 24 | micro
    return np.where(seconds | micro == 0, 0, packed)


@cache
def _compute_packed_days() -> Ints:
    """The date part of TiDB's packed time, by days since 1970."""
    days = np.arange(_LAST_DAY).astype("datetime64[D]")
    months = days.astype("datetime64[M]")
    years = days.astype("datetime64[Y]")
    month = (months - years.astype("datetime64[M]")).astype(np.int64) + 1
    day = (days - months.astype("datetime64[D]")).astype(np.int64) + 1
    ordinals: Ints = ((years.astype(np.int64) + 1970) * 13 + month) << 5 | day
    return ordinals


def _build_time2_lanes(layout: ValueLayout) -> LaneReader:
    size = count_fraction_bytes(layout)
    bits, unit = 8 * size, FRACTION_UNITS[size]
    spare, offset, mask = np.uint64(64 - 24 - bits), 1 << 23 + bits, (1 << bits) - 1

    def read(words: NDArray[Any], at: Ints) -> Ints:
        number = (words[at].byteswap() >> spare).view(np.int64) - offset
        size_of = np.abs(number)
        clock, micro = size_of >> bits, (size_of & mask) * unit
        return _compute_durations(number, clock >> 12 & 0x3FF, clock >> 6 & 63, clock & 63, micro)

    return read


def _compute_durations(sign: Ints, hours: Ints, minutes: Ints, seconds: Ints, micro: Ints | int) -> Ints:
    nanos = (((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + micro) * 1000
    return np.where(sign < 0, -nanos, nanos)


def _build_old_timestamp_lanes(_layout: ValueLayout) -> LaneReader:
    return lambda words, at: _pack_moments((words[at] & np.uint64(0xFFFFFFFF)).view(np.int64), np.zeros_like(at))


def _build_old_datetime_lanes(_layout: ValueLayout) -> LaneReader:
    def read(words: NDArray[Any], at: Ints) -> Ints:
        date, clock = np.divmod(words[at].view(np.int64), 1_000_000)
        months = date // 10_000 * 13 + date // 100 % 100
        packed = clock // 10_000 << 12 | clock // 100 % 100 << 6 | clock % 100
        moments: Ints = ((months << 5 | date % 100) << 17 | packed) << 24
        return moments

    return read


def _build_old_time_lanes(_layout: ValueLayout) -> LaneReader:
    def read(words: NDArray[Any], at: Ints) -> Ints:
        number = (words[at] << np.uint64(40)).view(np.int64) >> 40
        digits = np.abs(number)
        return _compute_durations(number, digits // 10_000, digits // 100 % 100, digits % 100, 0)

    return read


_TEMPORAL_LANES: dict[int, Callable[[ValueLayout], LaneReader]] = {
    TIMESTAMP2: _build_timestamp2_lanes,
    DATETIME2: _build_datetime2_lanes,
    TIME2: _build_time2_lanes,
    t.TIMESTAMP: _build_old_timestamp_lanes,
    t.DATETIME: _build_old_datetime_lanes,
    t.DURATION: _build_old_time_lanes,
}
