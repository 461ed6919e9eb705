"""What the DAGs of one replication share: names, defaults, params, docs, notifications, timetables.

The text of `[airflow] schedule` is cron text, a preset, `every Ns`, or nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import (
    DAG,
    CronTriggerTimetable,
    DeltaTriggerTimetable,
    ExceptionRetryPolicy,
    Param,
    RetryAction,
    RetryRule,
)
from airflow.sdk.definitions.callback import SyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

from binlake.config import Replication
from binlake.config.problems import EVERY, PRESETS, is_cron
from binlake.errors import ConfigError, Permanent, Transient, UnknownOutcome
from binlake.health.orchestration import SYNC
from binlake_airflow.actions import ACT
from binlake_airflow.telemetry import addresses
from binlake_airflow.telemetry.alerts import OnFailure, notify_failure

# The stub of airflow.sdk leaves these out.


KINDS = (SYNC, "bootstrap", "backfill", "restore", "recover", "audit", "verify", "maintain", ACT)
"""Kinds of DAGs of a replication."""
START = datetime(2024, 1, 1, tzinfo=UTC)
TS_PATTERN = "^[0-9]{1,20}$"
_TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2})?)?"
MOMENT_PATTERN = f"^([0-9]{{1,20}}|{_TIME})$"
"""A commit_ts as decimal text (a JSON number loses digits above 2^53, hazards R-46), or a time."""


def build_dag_id(replication: str, kind: str) -> str:
    """`<name>` for the sync, `<name>.<kind>` for the others: a name has no dot."""
    return replication if kind == SYNC else f"{replication}.{kind}"


@dataclass(frozen=True)
class ReplicationFile:
    """One replication file and the replication that it describes."""

    path: Path
    replication: Replication

    def build_dag_id(self, kind: str) -> str:
        """The id of its DAG of this kind."""
        return build_dag_id(self.replication.name, kind)

    def build_task_arguments(self) -> dict[str, Any]:
        """Arguments that every operator takes."""
        airflow = self.replication.airflow
        return {
            "replication": self.replication.name,
            "replication_file": str(self.path),
            "wait_s": airflow.wait_s,
        }

    def build_command_arguments(self) -> dict[str, Any]:
        """Arguments that every operator of a command takes."""
        airflow = self.replication.airflow
        return {**self.build_task_arguments(), "engine": airflow.engine, "spark_conn_id": airflow.spark_conn_id}


def build_empty_dag(
    file: ReplicationFile, kind: str, *, summary: str, doc: str, params: Mapping[str, Param], **more: Any
) -> DAG:
    """An empty DAG of `kind`; one run at a time."""
    airflow = file.replication.airflow
    return DAG(
        dag_id=file.build_dag_id(kind),
        start_date=START,
        catchup=False,
        max_active_runs=1,
        # The sync DAG is created as Airflow is configured, usually paused. The other DAGs run when they are triggered
        # or scheduled by the configuration; if they were paused, a triggered run would wait.
        is_paused_upon_creation=None if kind == SYNC else False,
        params=dict(params),
        default_args=_build_task_defaults(file),
        tags=["binlake", kind, file.replication.name, airflow.engine, *airflow.tags],
        description=summary,
        doc_md=_format_dag_doc(file, kind, doc),
        on_failure_callback=OnFailure(str(file.path)) if airflow.on_failure is not None else None,
        # The DAG file registers the DAG by name; a check of the files must not register a second one.
        auto_register=False,
        **more,
    )


def _format_dag_doc(file: ReplicationFile, kind: str, doc: str) -> str:
    return f"### {kind} of replication `{file.replication.name}`\n\n{doc}\n\n{_PAUSED}\n\n{_describe_source(file)}"


def build_deadline_alert(file: ReplicationFile) -> DeadlineAlert | None:
    """A run that takes too long is notified like a failure."""
    seconds = file.replication.airflow.deadline_s
    if seconds is None:
        return None
    callback = SyncCallback(notify_failure, kwargs={"replication_file": str(file.path)})
    return DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, timedelta(seconds=seconds), callback)


def build_moment_param(title: str, description: str) -> Param:
    """A point in commit time, empty by default."""
    text = f"{description}. A commit_ts in decimal, or a time: 2026-11-21T12:00:00Z (UTC when it names no zone)."
    return Param(None, type=["null", "string"], pattern=MOMENT_PATTERN, title=title, description=text)


def build_text_param(title: str, description: str, pattern: str) -> Param:
    """Text that may be left empty."""
    return Param(None, type=["null", "string"], pattern=pattern, title=title, description=description)


_PAUSED = "While this DAG is paused, a triggered run waits without saying so: unpause the DAG first."


def _build_task_defaults(file: ReplicationFile) -> dict[str, Any]:
    airflow = file.replication.airflow
    return {
        "owner": airflow.owner,
        "pool": airflow.pool,
        "priority_weight": airflow.priority,
        # Not Airflow's `downstream`: it would prefer the first stages of some window to the last ones of another.
        "weight_rule": "absolute",
        "retries": airflow.retries,
        "retry_delay": timedelta(seconds=airflow.retry_delay_s),
        "retry_policy": ExceptionRetryPolicy(
            rules=[
                RetryRule(Permanent, RetryAction.FAIL, reason="the same call fails again until something is changed"),
                RetryRule(Transient, RetryAction.RETRY, reason="waiting helps"),
                # A rerun of a stage first checks what is done: manifest, digest, ledger (DESIGN 2).
                RetryRule(UnknownOutcome, RetryAction.RETRY, reason="the next try checks what was done"),
            ]
        ),
    }


def _describe_source(file: ReplicationFile) -> str:
    replication, target = file.replication, file.replication.target
    sink = f"{target.db_type} at {target.host}:{target.port}" if target else "none"
    # Secrets are left out, because OpenLineage's provider sends this text to other systems.
    pds = ", ".join(addresses.extract_host_and_port(url) for url in replication.source.pd_urls)
    return (
        f"Configured by `{file.path.name}`.\n\n- source: PD at {pds}\n"
        f"- SQL sink: {sink}\n- lake: `{addresses.strip_secrets(replication.lake.path)}`\n"
    )


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
