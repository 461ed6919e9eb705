"""Packed times and durations, and their texts; zero dates and zero parts are ordinary values (tidb-binlog 1.12)."""

from __future__ import annotations

import re

from binlake.base.redaction import redact_value

_DATETIME = re.compile(r"(\d{1,4})-(\d{1,2})-(\d{1,2})(?:[ T](\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,6}))?)?")
_DURATION = re.compile(r"(-?)(\d{1,3}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,6}))?")
_SECOND = 1_000_000_000


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
