"""The schedule of a replication as text (C-06)."""

from datetime import timedelta

import pytest
from airflow.sdk import CronTriggerTimetable, DeltaTriggerTimetable

from binlake.errors import ConfigError
from binlake_airflow.dags.dagparts import parse_schedule


@pytest.mark.parametrize(("text", "seconds"), [("every 10s", 10), ("every 1 m", 60), (" every 2h ", 7200)])
def test_every_gives_an_interval(text: str, seconds: int) -> None:
    assert parse_schedule(text) == DeltaTriggerTimetable(timedelta(seconds=seconds))


@pytest.mark.parametrize("text", ["*/1 * * * *", "0 3 * * 1-5", "@hourly"])
def test_cron_text_is_cron_in_utc(text: str) -> None:
    assert parse_schedule(text) == CronTriggerTimetable(text, timezone="UTC")


def test_presets_and_none_are_accepted() -> None:
    assert parse_schedule("@continuous") == "@continuous"
    assert parse_schedule("") is None


@pytest.mark.parametrize("text", ["every 0s", "every ten seconds", "hourly", "* * *", "99 * * * *"])
def test_other_text_is_one_clear_error(text: str) -> None:
    with pytest.raises(ConfigError, match=r"airflow\.schedule"):
        parse_schedule(text)
