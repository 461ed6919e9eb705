"""Dates, times and durations: TiDB's packed forms, their texts, and conversions from and to other types as TiDB does.

Zero dates and zero parts are ordinary values (tidb-binlog 1.12). A conversion rounds one half always up. Sources: TiDB
7.5 types/time.go (ParseTime, ParseDuration, ParseTimeFromNum, RoundFrac), the recorded capture `zones`.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import ROUND_FLOOR, Decimal

from binlake.common.redaction import redact_value

_DATETIME = re.compile(r"(\d{1,4})-(\d{1,2})-(\d{1,2})(?:[ T](\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,6}))?)?")
_DURATION = re.compile(r"(-?)(\d{1,3}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,6}))?")
_SECOND = 1_000_000_000
_DIGITS = re.compile(r"(\d{14}|\d{12}|\d{8}|\d{6})(?:\.(\d*))?")
_PARTS = re.compile(r"(\d{4})\D(\d{1,2})\D(\d{1,2})(?:[ T]+(\d{1,2}):(\d{1,2})(?::(\d{1,2}))?(?:\.(\d*))?)?")
_CLOCK = re.compile(r"(-?)(?:(\d{1,2}) )?(\d{1,3}):(\d{1,2})(?::(\d{1,2}))?(?:\.(\d*))?")
_PLAIN_NUMBER = re.compile(r"-?\d+(?:\.\d*)?")
ZERO = "0000-00-00 00:00:00"
"""The zero DATETIME."""
_FIRST_DATE = 101
"""The smallest number that TiDB reads as a date: 2000-01-01."""


def format_date(packed: int) -> str:
    """YYYY-MM-DD of a packed time."""
    ymd = packed >> 41
    months = ymd >> 5
    return f"{months // 13:04d}-{months % 13:02d}-{ymd & 31:02d}"


def format_moment(packed: int, fsp: int) -> str:
    """YYYY-MM-DD HH:MM:SS[.ffffff] of a packed time with `fsp` digits; raises ValueError beyond 63 bits."""
    ymd, hms = packed >> 41, packed >> 24
    months = ymd >> 5
    if packed >> 63:
        raise ValueError(f"packed time {packed} has too many bits")
    text = (
        f"{months // 13:04d}-{months % 13:02d}-{ymd & 31:02d} "
        f"{(hms >> 12) & 31:02d}:{(hms >> 6) & 63:02d}:{hms & 63:02d}"
    )
    return f"{text}.{packed & 0xFFFFFF:06d}"[: 20 + fsp] if fsp else text


def format_duration(nanoseconds: int, fsp: int) -> str:
    """[-]HH:MM:SS[.ffffff] of a duration in nanoseconds."""
    sign, rest = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    seconds, nanos = divmod(rest, _SECOND)
    text = f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{nanos // 1000:06d}"[: len(text) + 1 + fsp] if fsp else text


def pack_moment(text: str) -> int:
    """The packed time of a date or datetime text; raises ValueError for other text."""
    year, month, day, (hour, minute, second), micro = parse_moment_parts(text)
    ymd = (year * 13 + month) << 5 | day
    return (ymd << 17 | hour << 12 | minute << 6 | second) << 24 | micro


def parse_moment_parts(text: str) -> tuple[int, int, int, tuple[int, int, int], int]:
    """(year, month, day, (hour, minute, second), microsecond) of a date or datetime text, zero parts allowed.

    Raises ValueError for other text and for parts out of range.
    """
    match = _DATETIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{redact_value(text)} is not a date or datetime")
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    if month > 12 or day > 31 or hour > 23 or minute > 59 or second > 59:
        raise ValueError(f"{redact_value(text)} has a part out of range")
    return year, month, day, (hour, minute, second), int((match[7] or "").ljust(6, "0"))


def parse_duration(text: str) -> int:
    """Nanoseconds of a TIME text; raises ValueError for other text."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{redact_value(text)} is not a time")
    hours, minutes, seconds = (int(part) for part in match.groups()[1:4])
    if minutes > 59 or seconds > 59:
        raise ValueError(f"{redact_value(text)} has a part out of range")
    nanos = (hours * 3600 + minutes * 60 + seconds) * _SECOND + int((match[5] or "").ljust(6, "0")) * 1000
    return -nanos if match[1] else nanos


def convert_to_zone(text: str, zone: tzinfo) -> str:
    """Convert a TIMESTAMP's text (UTC) to local time in `zone`; a zero date stays zero."""
    return text if _has_zero_part(text) else _convert_zone(text, UTC, zone)


def convert_to_utc(text: str, zone: tzinfo) -> str:
    """Convert local time in `zone` to the TIMESTAMP (UTC) that TiDB stores; if the hour occurs twice, to the first."""
    return text if _has_zero_part(text) else _convert_zone(text, zone, UTC)


def round_moment(text: str, fsp: int) -> str:
    """A date or datetime text, rounded to `fsp` fractional digits of seconds."""
    whole, _, fraction = (text if len(text) > 10 else f"{text} 00:00:00").partition(".")
    if _has_zero_part(text) or len(fraction) <= fsp:
        return f"{whole}.{fraction:0<{fsp}}"[: 20 + fsp] if fsp else whole
    micros = _round_half_up(Decimal(f"0.{fraction}") * 10**fsp) * 10 ** (6 - fsp)
    value = datetime.fromisoformat(whole) + timedelta(microseconds=micros)
    return _format_datetime(value, fsp)


def parse_moment(text: str) -> str:
    """Parse the text of a DATETIME as TiDB does; raises ValueError for an unsupported form."""
    text = text.strip()
    match = _DIGITS.fullmatch(text)
    moment = _parse_digits(match[1]) if match else _parse_parts(text)
    fraction = (match[2] if match else text.partition(".")[2]) or ""
    parse_moment_parts(moment)
    return f"{moment}.{fraction}" if fraction else moment


def convert_number_to_moment(number: Decimal) -> str:
    """The DATETIME of a number like 20210102030405; raises ValueError if the number is not a date."""
    if number == 0:
        return ZERO
    whole, _, fraction = format(number, "f").partition(".")
    width = next((width for width in (6, 8, 12, 14) if len(whole) <= width), 0)
    if number < _FIRST_DATE or not width:
        raise ValueError(f"{number} is not a date")
    moment = parse_moment(whole.rjust(width, "0") + (f".{fraction}" if fraction else ""))
    if _has_zero_part(moment):
        raise ValueError(f"{number} is not a date")
    return moment


def convert_moment_to_number(text: str) -> Decimal:
    """YYYYMMDDHHMMSS[.ffffff] of a datetime's text, YYYYMMDD of a date's."""
    return Decimal(re.sub(r"[-: ]", "", text))


def convert_clock_to_number(text: str) -> Decimal:
    """[-]HHMMSS[.ffffff] of a TIME text."""
    return Decimal(text.replace(":", ""))


def parse_clock(text: str) -> str:
    """Parse the text of a TIME as TiDB does; raises ValueError for an unsupported form."""
    text = text.strip()
    match = _CLOCK.fullmatch(text)
    if match is None:
        if len(text) > 10 and "-" in text[1:]:
            return parse_moment(text)[11:]
        if _PLAIN_NUMBER.fullmatch(text) is None:
            raise ValueError(f"{redact_value(text)} is not a time")
        return convert_number_to_clock(Decimal(text))
    hours = int(match[2] or 0) * 24 + int(match[3])
    clock = f"{match[1]}{hours:02d}:{int(match[4]):02d}:{int(match[5] or 0):02d}"
    return f"{clock}.{match[6]}" if match[6] else clock


def convert_number_to_clock(number: Decimal) -> str:
    """The TIME of a number like 123456 (12:34:56); raises ValueError if the number is not a time."""
    sign, whole, fraction = "-" if number < 0 else "", *format(abs(number), "f").partition(".")[::2]
    digits = whole.rjust(6, "0")
    if len(digits) > 7:
        raise ValueError(f"{number} is not a time")
    clock = f"{sign}{int(digits[:-4]):02d}:{digits[-4:-2]}:{digits[-2:]}"
    parse_duration(clock)
    return f"{clock}.{fraction}" if fraction else clock


def round_clock(text: str, fsp: int) -> str:
    """A TIME text, rounded to `fsp` fractional digits: one half rounds up, so -00:00:00.5 becomes 00:00:00."""
    whole, _, fraction = text.partition(".")
    seconds = Decimal(abs(parse_duration(whole)) // 10**9) + Decimal(f"0.{fraction or 0}")
    units = _round_half_up((-seconds if text.startswith("-") else seconds) * 10**fsp)
    rest, part = divmod(abs(units), 10**fsp)
    clock = f"{'-' if units < 0 else ''}{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{clock}.{part:0{fsp}d}" if fsp else clock


def add_clock_to_day(day: date, clock: str) -> str:
    """The DATETIME of a TIME on `day`; a TIME below 00:00 or above 24:00 falls on another day."""
    micros = parse_duration(clock) // 1000
    return _format_datetime(datetime(day.year, day.month, day.day) + timedelta(microseconds=micros), 6)


def _convert_zone(text: str, source: tzinfo, target: tzinfo) -> str:
    whole, _, fraction = text.partition(".")
    value = datetime.fromisoformat(whole).replace(tzinfo=source).astimezone(target)
    if value.astimezone(source).replace(tzinfo=None) != datetime.fromisoformat(whole):
        raise ValueError(f"{whole} does not exist in the time zone {source}")
    shifted = f"{value.year:04d}-{value:%m-%d %H:%M:%S}"
    return f"{shifted}.{fraction}" if fraction else shifted


def _has_zero_part(text: str) -> bool:
    return text.startswith("0000") or "-00" in text[:10]


def _round_half_up(value: Decimal) -> int:
    return int((value + Decimal("0.5")).to_integral_value(ROUND_FLOOR))


def _format_datetime(value: datetime, fsp: int) -> str:
    text = f"{value.year:04d}-{value:%m-%d %H:%M:%S}"
    return text + (f".{value.microsecond:06d}"[: fsp + 1] if fsp else "")


def _parse_digits(digits: str) -> str:
    if len(digits) in (6, 12):
        digits = ("20" if int(digits[:2]) < 70 else "19") + digits
    clock = digits[8:].ljust(6, "0")
    return f"{digits[:4]}-{digits[4:6]}-{digits[6:8]} {clock[:2]}:{clock[2:4]}:{clock[4:]}"


def _parse_parts(text: str) -> str:
    match = _PARTS.fullmatch(text)
    if match is None:
        raise ValueError(f"{redact_value(text)} is not a date")
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    return f"{year:04d}-{month:02d}-{day:02d} {hour:02d}:{minute:02d}:{second:02d}"
