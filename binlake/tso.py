"""Timestamps of the oracle: ts = physical milliseconds << 18 | logical (MISSION S0-16)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

LOGICAL_BITS = 18
MAX_LOGICAL = (1 << LOGICAL_BITS) - 1
MAX_TS = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def compose(physical_ms: int, logical: int = 0) -> int:
    """The ts of `physical_ms` (Unix milliseconds) and `logical` (0 to 2^18 - 1)."""
    return physical_ms << LOGICAL_BITS | logical


def physical(ts: int) -> int:
    """Unix milliseconds of `ts`."""
    return ts >> LOGICAL_BITS


def logical(ts: int) -> int:
    """The logical part of `ts`."""
    return ts & MAX_LOGICAL


def to_datetime(ts: int) -> datetime:
    """The UTC time of `ts`, to the millisecond."""
    return _EPOCH + timedelta(milliseconds=physical(ts))


def from_datetime(moment: datetime) -> int:
    """The least ts at or after `moment` (which must carry a zone)."""
    return compose(-((_EPOCH - moment) // timedelta(milliseconds=1)))


def commit_date(ts: int) -> str:
    """The UTC day of `ts` as YYYY-MM-DD, the lake's coarse partition."""
    return to_datetime(ts).strftime("%Y-%m-%d")
