"""From the text of `[airflow] schedule` to a timetable of Airflow: cron text, a preset, `every Ns`, or nothing."""

from __future__ import annotations

import re
from datetime import timedelta

from airflow.sdk import CronTriggerTimetable, DeltaTriggerTimetable
from croniter import croniter

from binlake.errors import ConfigError

_EVERY = re.compile(r"every (?P<count>[1-9][0-9]*) ?(?P<unit>[smh])")
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_PRESETS = frozenset({"@once", "@continuous"})
_CRON_PRESETS = frozenset({"@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly"})

Schedule = CronTriggerTimetable | DeltaTriggerTimetable | str | None


def parse_schedule(text: str, key: str = "airflow.schedule") -> Schedule:
    """The timetable of `text`, in UTC; None for an empty text (triggered by hand only). Raises ConfigError.

    `key` is where the text stands in the configuration.
    """
    text = text.strip()
    if not text or text in _PRESETS:
        return text or None
    every = _EVERY.fullmatch(text)
    if every:
        return DeltaTriggerTimetable(timedelta(seconds=int(every["count"]) * _SECONDS[every["unit"]]))
    if text not in _CRON_PRESETS and not croniter.is_valid(text):
        raise ConfigError(
            f"`{key}` is not understood: {text!r}",
            hint="cron text (`*/5 * * * *`), `every 10s`, `@continuous`, or empty for no schedule",
        )
    return CronTriggerTimetable(text, timezone="UTC")
