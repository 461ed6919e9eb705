"""How a replication runs under Airflow: its DAGs, who is told, and what they share with other work."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from binlake.sections.values import NameList, Section

ImportPath = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")]
"""`package.module.name`."""


class Notify(Section):
    """Notification when a run fails or a deadline passes: any notifier of Airflow's providers, or a callable."""

    notifier: ImportPath = Field(
        description="import path of a notifier class, or of a callable that takes Airflow's context; imported when used"
    )
    kwargs: dict[str, Any] = Field(
        {}, repr=False, description="its arguments; `env:NAME` reads the environment where it is called"
    )


class NotifyOnLag(Notify):
    """Notification when landing or the SQL sink lags behind the source."""

    seconds: int = Field(ge=1, description="lag that is too much: now less the commit time of the position")
    repeat_s: int = Field(3600, ge=1, description="told again after so many seconds, while it lasts")


class NotifyOnSilence(NotifyOnLag):
    """Notification when commit time goes on, but no transaction arrives any more."""

    seconds: int = Field(
        ge=1,
        description="seconds of commit time without a transaction that are too many: more than the quietest time has",
    )


class BackfillRuns(Section):
    """Runs of `<name>.backfill` that Airflow's own backfill makes, one for each interval between two dates."""

    interval: str = Field("@daily", description="cron text or preset; an interval [a, b) is the commit_ts of that time")


class VerifyRuns(Section):
    """The DAG `<name>.verify`."""

    schedule: str = Field("", description="as airflow.schedule; empty = by hand only")
    against: Literal["lake", "source"] = Field("lake", description="what a scheduled run compares the target with")
    sample: float = Field(1.0, gt=0, le=1, description="part of the rows that it compares; another part the next time")


class MaintainRuns(Section):
    """The DAG `<name>.maintain`."""

    schedule: str = Field("@daily", description="as airflow.schedule; empty = by hand only")


class Airflow(Section):
    """How the DAGs of this replication run."""

    schedule: str = Field(
        "*/1 * * * *", description="cron text, `@continuous`-like presets, or `every Ns`; empty = none"
    )
    layout: Literal["stages", "fused"] = Field("stages", description="a task per stage, or all stages in one task")
    engine: Literal["connect", "submit"] = Field("submit", description="a warm Spark Connect server, or spark-submit")
    spark_conn_id: str = Field("spark_default", description="Airflow connection of the Spark provider")
    retries: int = Field(2, ge=0, description="tries again after a transient error")
    retry_delay_s: float = Field(5.0, ge=0, description="seconds between tries")
    wait_s: float = Field(
        300.0, ge=0, description="seconds a task waits without a worker for a pump, a lease or a lock; 0 = not at all"
    )
    idle_s: int = Field(
        60,
        ge=0,
        description="a window that landed nothing goes no further, unless a stretch of so many seconds of commit time"
        " ends in it; the next one takes it along; 0 = every window goes to every sink",
    )
    pool: str = Field("default_pool", min_length=1, description="pool of all tasks; it must exist in Airflow")
    owner: str = Field("binlake", min_length=1, description="owner of all DAGs")
    tags: NameList = Field((), description="tags beside `binlake`, the DAG's kind and the engine")
    deadline_s: int | None = Field(
        None, ge=1, description="a run of the sync that has not ended so long after it was queued calls on-failure"
    )
    on_failure: Notify | None = Field(
        None,
        description="absent = Airflow's own pages tell; also told when a table is set aside, or differs behind a DDL",
    )
    on_lag: NotifyOnLag | None = Field(None, description="absent = metrics tell")
    on_silence: NotifyOnSilence | None = Field(None, description="absent = metrics and the page tell")
    backfill: BackfillRuns = Field(BackfillRuns())
    verify: VerifyRuns = Field(VerifyRuns())
    maintain: MaintainRuns = Field(MaintainRuns())
