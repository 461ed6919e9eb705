"""How a replication runs and is shown under Airflow: its DAGs, notifications and pool, and the columns that pages mask.

Values of a masked column are shown only to those who may edit the replication's DAG.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from binlake.common.sections import NameList, Section

ImportPath = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")]
"""`package.module.name`."""


class NotifySection(Section):
    """Notification when a run fails or a deadline passes: any notifier of Airflow's providers, or a callable."""

    notifier: ImportPath = Field(
        description="import path of a notifier class, or of a callable that takes Airflow's context; imported when used"
    )
    kwargs: dict[str, Any] = Field(
        {},
        repr=False,
        description="its arguments; `env:NAME` is read from the environment of the process that calls the notifier",
    )


class NotifyOnLag(NotifySection):
    """Notification when landing or the SQL sink lags behind the source."""

    seconds: int = Field(
        ge=1, description="lag that triggers the notification: now minus the commit time of the position"
    )
    repeat_s: int = Field(3600, ge=1, description="seconds between repeated notifications while the lag lasts")


class NotifyOnSilence(NotifyOnLag):
    """Notification when commit time advances but no transactions arrive."""

    seconds: int = Field(
        ge=1,
        description="seconds of commit time without a transaction that trigger the notification; choose more than the"
        " quietest period",
    )


class BackfillRuns(Section):
    """Runs of `<name>.backfill` that Airflow's backfill creates, one for each interval between two dates."""

    interval: str = Field(
        "@daily", description="cron expression or preset; the interval [a, b) covers the commit_ts in that time"
    )


class VerifyRuns(Section):
    """The DAG `<name>.verify`."""

    schedule: str = Field("", description="as airflow.schedule; empty = manual runs only")
    against: Literal["lake", "source"] = Field("lake", description="what a scheduled run compares the target with")
    sample: float = Field(
        1.0, gt=0, le=1, description="share of the rows that one run compares; each run compares another share"
    )


class MaintainRuns(Section):
    """The DAG `<name>.maintain`."""

    schedule: str = Field("@daily", description="as airflow.schedule; empty = manual runs only")


class AirflowSection(Section):
    """How the DAGs of this replication run."""

    schedule: str = Field(
        "*/1 * * * *", description="cron expression, preset such as `@continuous`, or `every Ns`; empty = none"
    )
    layout: Literal["stages", "fused"] = Field(
        "stages", description="`stages`: one task per stage; `fused`: all stages in one task"
    )
    one_process: bool = Field(
        False,
        description="layout `stages`: one process runs all stages of a window, as in `fused`, as the task `window`; the"
        " stages' tasks occupy no worker and end when their stage has ended there",
    )
    engine: Literal["connect", "submit"] = Field(
        "submit", description="`connect`: a running Spark Connect server; `submit`: spark-submit"
    )
    spark_conn_id: str = Field("spark_default", description="Airflow connection of the Spark provider")
    run_for_s: float = Field(
        60.0,
        ge=0,
        description="layout `fused`, or one-process: a scheduled run continues with the next windows in the same"
        " process for this many seconds, while there are new transactions; half of deadline-s at most; 0 = one window",
    )
    run_every_s: float = Field(
        1.0, ge=0, description="least seconds between the beginnings of two windows of a run; more = less CPU, more lag"
    )
    retries: int = Field(2, ge=0, description="retries after a transient error")
    retry_delay_s: float = Field(5.0, ge=0, description="seconds between retries")
    wait_s: float = Field(
        300.0,
        ge=0,
        description="seconds for which a deferred task (which occupies no worker) waits for a pump, a lease or a"
        " lock; 0 = it never waits",
    )
    idle_s: int = Field(
        60,
        ge=0,
        description="an empty window ends after land, and the next window includes its range; once per this many"
        " seconds of commit time, an empty window goes to every sink; 0 = all windows do",
    )
    pool: str = Field("default_pool", min_length=1, description="pool of all tasks; it must exist in Airflow")
    priority: int = Field(
        1, ge=1, le=1000, description="priority_weight of all tasks: which of several replications gets a free slot"
    )
    owner: str = Field("binlake", min_length=1, description="owner of all DAGs")
    tags: NameList = Field((), description="tags in addition to `binlake`, the DAG's kind and the engine")
    deadline_s: int | None = Field(
        None, ge=1, description="a sync run that has not ended this long after it was queued calls on-failure"
    )
    on_failure: NotifySection | None = Field(
        None,
        description="called on a failure, and when a table is set aside or differs after a DDL; absent = shown only"
        " on Airflow's pages",
    )
    on_lag: NotifyOnLag | None = Field(None, description="absent = no notification, only metrics")
    on_silence: NotifyOnSilence | None = Field(
        None, description="absent = no notification, only metrics and the replication's page"
    )
    backfill: BackfillRuns = Field(BackfillRuns())
    verify: VerifyRuns = Field(VerifyRuns())
    maintain: MaintainRuns = Field(MaintainRuns())

    @property
    def follows_process(self) -> bool:
        """Whether the stages' tasks follow the process of the task of whole windows."""
        return self.layout == "stages" and self.one_process

    @property
    def most_run_s(self) -> float:
        """Seconds for which a scheduled run begins windows; 0 = it has one."""
        if self.layout != "fused" and not self.follows_process:
            return 0.0
        # A run that always took as long as the deadline would be reported each time.
        return self.run_for_s if self.deadline_s is None else min(self.run_for_s, self.deadline_s / 2)


class MaskSection(Section):
    """Columns whose values the pages and their files hide from those who may not edit the replication's DAG."""

    columns: tuple[str, ...] = Field(
        (),
        description="`db.table.column`, each part a name or a pattern with `*` and `?`, without regard to case; the"
        " names are those that the pages show",
    )

    @field_validator("columns")
    @classmethod
    def _require_three_parts(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in columns:
            if len(pattern.split(".")) != 3 or not all(pattern.split(".")):
                raise ValueError(f"{pattern!r} is not `db.table.column`: for a dot inside a name write `?`")
        return columns

    def find_hidden(self, db: str, table: str, names: Iterable[str]) -> frozenset[str]:
        """The columns of `names` that are hidden in this table."""
        patterns = [column for *place, column in self._split() if _matches(place, (db, table))]
        return frozenset(name for name in names if any(_matches([pattern], (name,)) for pattern in patterns))

    def touches(self, db: str, table: str) -> bool:
        """Whether a pattern fits the table, whatever columns it has."""
        return any(_matches(place, (db, table)) for *place, _ in self._split())

    def _split(self) -> list[list[str]]:
        return [pattern.split(".") for pattern in self.columns]


def _matches(patterns: Iterable[str], names: Iterable[str]) -> bool:
    # A bracket is a character of a name here, not a set.
    return all(
        fnmatchcase(name.casefold(), pattern.casefold().replace("[", "[[]"))
        for pattern, name in zip(patterns, names, strict=True)
    )
