"""Converts the log's bytes of a number or a time to the number that TiDB stores, one value at a time.

Temporal types of MySQL 5.6 are big-endian numbers with an offset, so that bytes compare like values; older ones are
decimal digits or seconds (MySQL `my_time.cc`, MariaDB KB "Rows_event_v1").
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime

from binlake.mysqlbinlog.rowimage.shape import DATETIME2, TIME2, TIMESTAMP2, ValueLayout
from binlake.rows.schema import mysqltypes as t

_TIME_SPAN = 839 * 3600
"""Offset in seconds of MariaDB's older TIME with fractions."""
_MICRO = 1_000_000
FRACTION_UNITS = (1, 10_000, 100, 1)
"""Microseconds per unit of a fraction of 0 to 3 bytes."""


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
