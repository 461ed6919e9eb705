"""The source's session of a DDL, as far as it decides the values of rows (hazards R-29).

TiDB converts stored values in the time zone of the session that sent the DDL. Its job contains it where it converts
(`reorg_meta.location`), and nowhere else; elsewhere the configuration may (`source.time-zone`).
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
_OF_FEEDER = ("family", "sql_mode", "moment")
"""What a feeder's job has of the session beside its zone."""


@dataclass(frozen=True)
class SourceSession:
    """`zone`: `+08:00` or `America/New_York`; `day`: the date there while the source converted (2024-05-06).

    Empty = not known. `guessed`: texts here may have been other bytes at the source (`source.invalid-text`).
    Of a MySQL or MariaDB that a feeder reads, `family` says which it is; `sql_mode` are its bits, `moment` is the
    time of the statement there, in seconds of Unix time.
    """

    zone: str = ""
    day: str = ""
    guessed: bool = False
    family: str = ""
    sql_mode: int = 0
    moment: str = ""

    @property
    def tz(self) -> tzinfo | None:
        """The zone; None where it is not known, or this machine does not know its name."""
        return read_zone(self.zone)

    @property
    def date(self) -> date | None:
        """The day as a date."""
        return date.fromisoformat(self.day) if self.day else None

    def to_dict(self) -> Json:
        """Plain values for JSON; empty where nothing is known."""
        return {name: value for name, value in asdict(self).items() if value}

    @classmethod
    def from_dict(cls, raw: Json) -> SourceSession:
        """The value of `to_dict`."""
        return cls(**raw)

    @classmethod
    def of(cls, job: DdlJob, commit_ts: int, configured: str = "") -> SourceSession:
        """That of `job`; `configured` is the zone where the job does not contain it."""
        parsed = json.loads(job.text)
        zone = _location(parsed) or configured
        own = {key: value for key, value in (parsed.get("feeder") or {}).items() if key in _OF_FEEDER}
        tz = read_zone(zone)
        if tz is None or own:
            return cls(zone, **own)
        days = {tso.to_datetime(ts).astimezone(tz).date() for ts in (job.start_ts, commit_ts)}
        return cls(zone, days.pop().isoformat() if len(days) == 1 else "")


def read_zone(text: str) -> tzinfo | None:
    """The zone of `+08:00`, `UTC` or `America/New_York`; None for a name that is not known here."""
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


def _location(job: Json) -> str:
    """The zone of `reorg_meta.location`; empty where there is none, or the server's own that has no name."""
    location = (job.get("reorg_meta") or {}).get("location")
    if not location:
        return ""
    name, seconds = location.get("name") or "", int(location.get("offset") or 0)
    if seconds or not name:
        minutes = abs(seconds) // _MINUTE
        return f"{'-' if seconds < 0 else '+'}{minutes // 60:02d}:{minutes % 60:02d}"
    return "" if name.lower() in _SYSTEM else str(name)
