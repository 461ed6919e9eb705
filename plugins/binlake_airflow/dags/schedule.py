"""Turns the text of `[airflow] schedule` into a timetable of Airflow: cron text, a preset, `every Ns`, or nothing."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import CronTriggerTimetable, DeltaTriggerTimetable

from binlake.config.problems import EVERY, PRESETS, is_cron
from binlake.errors import ConfigError

_SECONDS = {"s": 1, "m": 60, "h": 3600}

Schedule = CronTriggerTimetable | DeltaTriggerTimetable | str | None


def parse_schedule(text: str, key: str = "airflow.schedule") -> Schedule:
    """The timetable of `text`, in UTC; None for an empty text (triggered by hand only). Raises ConfigError.

    `key` is the text's key in the configuration.
    """
    text = text.strip()
    if not text or text in PRESETS:
        return text or None
    every = EVERY.fullmatch(text)
    if every:
        return DeltaTriggerTimetable(timedelta(seconds=int(every["count"]) * _SECONDS[every["unit"]]))
    if not is_cron(text):
        raise ConfigError(
            f"`{key}` is not understood: {text!r}",
            hint="use cron text (`*/5 * * * *`), `every 10s`, `@continuous`, or leave it empty for no schedule",
        )
    return CronTriggerTimetable(text, timezone="UTC")
