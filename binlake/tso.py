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


def parse(text: str) -> int:
    """A commit_ts in decimal, or the last ts of a time's millisecond (ISO 8601; UTC when it names no zone, or ` UTC`).

    Raises ValueError for what is neither, or no ts can hold.
    """
    if text.isascii() and text.isdigit():
        found = int(text) if len(text) <= len(str(MAX_TS)) else MAX_TS + 1
    else:
        try:
            time = datetime.fromisoformat(text.removesuffix(" UTC"))
        except ValueError as error:
            raise ValueError(f"{text[:80]!r} is no commit_ts and no time (ISO 8601)") from error
        since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH
        found = compose(since // timedelta(milliseconds=1), MAX_LOGICAL)
    if not 0 <= found <= MAX_TS:
        raise ValueError(f"{text[:80]!r} is beyond what a commit_ts can say")
    return found
