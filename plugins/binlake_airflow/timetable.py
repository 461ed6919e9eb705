"""The timetable of `<name>.backfill`: time intervals for Airflow's own backfill, without scheduled runs.

An interval [a, b) stands for the commit_ts of that time, so the intervals of a backfill join without gaps. It is a pure
function of its arguments, because it runs in the scheduler.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable

from binlake import tso


class BackfillIntervals(CronDataIntervalTimetable):
    """The intervals of a cron text between the dates of a backfill."""

    description = "Triggered by a user, or by Airflow's backfill of dates"

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        """The next interval of a backfill; None for the scheduler, which asks without catchup."""
        if not restriction.catchup:
            return None
        return super().next_dagrun_info(
            last_automated_data_interval=last_automated_data_interval, restriction=restriction
        )

    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        """A manual run has no interval: its params contain the range."""
        return DataInterval.exact(run_after)  # type: ignore[arg-type]


def compute_range_of_times(start: datetime, end: datetime) -> tuple[int, int]:
    """The range (lo, hi] of commit_ts for the time [start, end)."""
    # Airflow's times are pendulum's, whose differences are not plain timedeltas.
    lo, hi = (tso.from_datetime(datetime.fromtimestamp(moment.timestamp(), UTC)) for moment in (start, end))
    return lo - 1, hi - 1
