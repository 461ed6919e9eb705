"""The source's session of a DDL, as far as row values depend on it (hazards R-29).

TiDB converts stored values in the time zone of the session that sent the DDL. Only jobs that convert values contain the
time zone (`reorg_meta.location`); for others the configuration may give it (`source.time-zone`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, date, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from binlake import tso
from binlake.rows.schema.job import DdlJob, Json

_SYSTEM = frozenset({"", "local", "system"})
_MINUTE = 60
_STRICT = 1 << 21 | 1 << 22
"""STRICT_TRANS_TABLES, STRICT_ALL_TABLES: the same bits in TiDB, MySQL and MariaDB."""
_FEEDER_FIELDS = ("family", "sql_mode", "moment")
"""The session fields, besides the zone, that a feeder's job contains."""


@dataclass(frozen=True)
class SourceSession:
    """`zone`: `+08:00` or `America/New_York`; `day`: the date there while the source converted (2024-05-06).

    Empty = not known. `guessed`: texts may have been other bytes at the source (`source.invalid-text`).
    `lenient`: a TiDB's job says that values which do not fit were no error (in a feeder's job `sql_mode` says it).
    For a MySQL or MariaDB that a feeder reads, `family` says which of the two it is, `sql_mode` has its bits, and
    `moment` is the time of the statement there, in seconds of Unix time.
    """

    zone: str = ""
    day: str = ""
    guessed: bool = False
    family: str = ""
    sql_mode: int = 0
    moment: str = ""
    lenient: bool = False

    @property
    def is_lenient(self) -> bool:
        """True if values that did not fit were changed, not refused."""
        return not self.sql_mode & _STRICT if self.family else self.lenient

    @property
    def tz(self) -> tzinfo | None:
        """The time zone; None if it is not known, or if this machine does not know its name."""
        return read_zone(self.zone)

    @property
    def date(self) -> date | None:
        """The day as a date, or None if it is not known."""
        return date.fromisoformat(self.day) if self.day else None

    def to_dict(self) -> Json:
        """Plain values for JSON; empty if nothing is known."""
        return {name: value for name, value in asdict(self).items() if value}

    @classmethod
    def from_dict(cls, raw: Json) -> SourceSession:
        """Parse what `to_dict` gave."""
        return cls(**raw)

    @classmethod
    def of(cls, job: DdlJob, commit_ts: int, configured: str = "") -> SourceSession:
        """The session of `job`; `configured` is the time zone to use if the job does not contain it."""
        parsed = json.loads(job.text)
        zone = _read_location(parsed) or configured
        feeder_fields = {key: value for key, value in (parsed.get("feeder") or {}).items() if key in _FEEDER_FIELDS}
        if feeder_fields:
            return cls(zone, **feeder_fields)
        tz, lenient = read_zone(zone), _reads_lenient(parsed)
        if tz is None:
            return cls(zone, lenient=lenient)
        days = {tso.to_datetime(ts).astimezone(tz).date() for ts in (job.start_ts, commit_ts)}
        return cls(zone, days.pop().isoformat() if len(days) == 1 else "", lenient=lenient)


def _reads_lenient(job: Json) -> bool:
    """Whether a job of TiDB names an sql_mode without a strict mode."""
    mode = (job.get("reorg_meta") or {}).get("sql_mode")
    return mode is not None and not int(mode) & _STRICT


def read_zone(text: str) -> tzinfo | None:
    """Parse the time zone `+08:00`, `UTC` or `America/New_York`; None for a name that this machine does not know."""
    if text[:1] in ("+", "-"):
        hours, _, minutes = text[1:].partition(":")
        offset = timedelta(hours=int(hours), minutes=int(minutes))
        return timezone(-offset if text[0] == "-" else offset)
    if text.upper() in ("UTC", "ETC/UTC"):
        return UTC
    try:
        return ZoneInfo(text) if text else None
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def _read_location(job: Json) -> str:
    """The time zone of `reorg_meta.location`; empty if the job has none, or has the server's unnamed system zone."""
    location = (job.get("reorg_meta") or {}).get("location")
    if not location:
        return ""
    name, seconds = location.get("name") or "", int(location.get("offset") or 0)
    if seconds or not name:
        minutes = abs(seconds) // _MINUTE
        return f"{'-' if seconds < 0 else '+'}{minutes // 60:02d}:{minutes % 60:02d}"
    return "" if name.lower() in _SYSTEM else str(name)
