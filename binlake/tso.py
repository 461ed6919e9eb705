"""Timestamps of the oracle: ts = physical milliseconds << 18 | logical (MISSION S0-16)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Protocol

LOGICAL_BITS = 18
MAX_LOGICAL = (1 << LOGICAL_BITS) - 1
MAX_TS = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """PD's clock, or its substitute."""

    def fetch_ts(self, count: int = 1) -> int:
        """The last of `count` fresh timestamps. Raises SourceUnavailable."""


def compose(physical_ms: int, logical: int = 0) -> int:
    """The ts of `physical_ms` (Unix milliseconds) and `logical` (0 to 2^18 - 1)."""
    return physical_ms << LOGICAL_BITS | logical


def extract_physical(ts: int) -> int:
    """Unix milliseconds of `ts`."""
    return ts >> LOGICAL_BITS


def compute_skew_ms(ts: int, asked_s: float, answered_s: float) -> int:
    """The clock that gave `ts` minus this machine's, which was at `asked_s` before and `answered_s` after (Unix s)."""
    return extract_physical(ts) - int(1000 * (asked_s + answered_s) / 2)


def extract_logical(ts: int) -> int:
    """The logical part of `ts`."""
    return ts & MAX_LOGICAL


def to_datetime(ts: int) -> datetime:
    """The UTC time of `ts`, to the millisecond."""
    return _EPOCH + timedelta(milliseconds=extract_physical(ts))


def from_datetime(moment: datetime) -> int:
    """The least ts at or after `moment` (which must carry a zone)."""
    return compose(-((_EPOCH - moment) // timedelta(milliseconds=1)))


def commit_date(ts: int) -> str:
    """The UTC day of `ts` as YYYY-MM-DD, the lake's coarse partition."""
    return to_datetime(ts).strftime("%Y-%m-%d")


FIRST_TS = compose(1_262_304_000_000)
"""2010-01-01, before TiDB existed: no source has a lower commit_ts; only 0 ("before everything") is accepted."""
LAST_TS = compose(4_102_444_800_000) - 1
"""The end of the year 2099."""

FUTURE_SLACK = compose(10_000)
"""How far a timestamp from PD may lie above one requested shortly before."""


def require_plausible(ts: int, text: str) -> int:
    """`ts`, which was read from `text`, if a source can have it or if it is 0; else raises ValueError.

    The error for a number such as 20261121 says that a date needs dashes.
    """
    if ts == 0 or FIRST_TS <= ts <= LAST_TS:
        return ts
    if ts > MAX_TS or ts < 0:
        raise ValueError(f"{text[:80]!r} is beyond the range of a commit_ts")
    when = to_datetime(ts).strftime("%Y-%m-%d %H:%M:%S")
    raise ValueError(
        f"{text[:80]!r} would be the commit_ts of {when}, when no source wrote; a time is written like 2026-11-21 or"
        " 2026-11-21T12:00:00Z"
    )


def parse_ts(text: str) -> int:
    """A commit_ts or start_ts in decimal; 0 = before everything. Raises ValueError for one that no source can have."""
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text[:80]!r} is not a commit_ts")
    return require_plausible(int(text) if len(text) <= len(str(MAX_TS)) else MAX_TS + 1, text)


def parse(text: str) -> int:
    """A commit_ts in decimal, or the last ts in the millisecond of a time (ISO 8601; UTC if it has no zone or ends with
    ` UTC`).

    Raises ValueError for a text that is neither, and for a ts that no source can have.
    """
    if text.isascii() and text.isdigit():
        return parse_ts(text)
    try:
        time = datetime.fromisoformat(text.removesuffix(" UTC"))
    except ValueError as error:
        raise ValueError(f"{text[:80]!r} is neither a commit_ts nor a time (ISO 8601)") from error
    since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH
    return require_plausible(compose(since // timedelta(milliseconds=1), MAX_LOGICAL), text)
