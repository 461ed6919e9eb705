"""One DAG per replication file; its tasks are the stages that `binlake.pipeline` lists, wired as it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, ExceptionRetryPolicy, Param, RetryAction, RetryRule

from binlake.config import Replication, load_replication
from binlake.errors import ConfigError, Permanent, Transient, UnknownOutcome
from binlake.pipeline import Stage, stages_for
from binlake_airflow.jobs import FUSED, sources_of
from binlake_airflow.operators import RUNTIMES, StageOperator
from binlake_airflow.replications import find
from binlake_airflow.schedule import parse_schedule

_START = datetime(2024, 1, 1, tzinfo=UTC)
_TS_PATTERN = "^[0-9]{1,20}$"


@dataclass(frozen=True)
class Built:
    """The DAGs of a folder by id, and what is wrong with the files that give none."""

    dags: Mapping[str, DAG]
    broken: Mapping[Path, ConfigError]


def build_all(place: Path | None = None) -> Built:
    """The DAGs of all replication files in `place` (default: the configured folder)."""
    found = find(place)
    dags: dict[str, DAG] = {}
    broken = dict(found.broken)
    for path, replication in found.good.items():
        try:
            dags[replication.name] = build_dag(path)
        except ConfigError as error:
            broken[path] = ConfigError(error.message, hint=error.hint, where={"file": path, **error.where})
    return Built(dags, broken)


def build_dag(replication_file: str | Path) -> DAG:
    """The DAG of the replication described by the TOML file `replication_file`. Raises ConfigError.

    Its id is the replication's name. One run is one window; runs never overlap. What a backfill's own counter lets
    through is stopped by the lake's lock and the target's fence (DESIGN 3.7).
    """
    path = Path(replication_file).resolve()
    replication = load_replication(path, secrets=False)
    stages = stages_for(sql=replication.target is not None, mirror=replication.mirror.enabled)
    with DAG(
        dag_id=replication.name,
        schedule=parse_schedule(replication.airflow.schedule),
        start_date=_START,
        catchup=False,
        max_active_runs=1,
        params=_params(),
        default_args=_defaults(replication),
        tags=["binlake", "replication", replication.airflow.engine],
        description=f"Windows of {replication.name}: {' -> '.join(stage.name for stage in stages)}",
        doc_md=_doc(replication, path, stages),
        # The DAG file that wants it names it; whoever only checks the files must not show a second one.
        auto_register=False,
    ) as dag:
        if replication.airflow.layout == "fused":
            _task(replication, path, FUSED, "all stages of one window in one Spark session", None)
        else:
            _tasks(replication, path, stages)
    return dag


def _tasks(replication: Replication, path: Path, stages: Sequence[Stage]) -> None:
    sources = sources_of([stage.name for stage in stages])
    tasks: dict[str, StageOperator] = {}
    for stage in stages:
        task = _task(replication, path, stage.name, stage.summary, sources.get(stage.name))
        tasks[stage.name] = task
        for before in stage.after:
            tasks[before] >> task


def _task(replication: Replication, path: Path, name: str, summary: str, bounds_from: str | None) -> StageOperator:
    return RUNTIMES[replication.airflow.engine](
        task_id=name,
        stage=name,
        replication=replication.name,
        replication_file=str(path),
        spark_conn_id=replication.airflow.spark_conn_id,
        bounds_from=bounds_from,
        doc_md=summary,
    )


def _defaults(replication: Replication) -> dict[str, Any]:
    return {
        "owner": "binlake",
        "retries": replication.airflow.retries,
        "retry_delay": timedelta(seconds=replication.airflow.retry_delay_s),
        "retry_policy": ExceptionRetryPolicy(
            rules=[
                RetryRule(Permanent, RetryAction.FAIL, reason="the same call fails again until changed"),
                RetryRule(Transient, RetryAction.RETRY, reason="waiting helps"),
                # A stage that is run again looks first: manifest, digest, ledger (DESIGN 2).
                RetryRule(UnknownOutcome, RetryAction.RETRY, reason="the next try looks what was done"),
            ]
        ),
    }


def _params() -> dict[str, Param]:
    # Strings: a commit_ts is above 2^53, which JSON numbers in a browser cannot hold (hazards R-46).
    def timestamp(title: str, description: str) -> Param:
        return Param(None, type=["null", "string"], pattern=_TS_PATTERN, title=title, description=description)

    return {
        "start_ts": timestamp("start_ts", "commit_ts a new replication starts after; empty = as configured"),
        "stop_ts": timestamp("stop_ts", "commit_ts this run stops at, inclusive; empty = as far as the pumps are"),
    }


def _doc(replication: Replication, path: Path, stages: Sequence[Stage]) -> str:
    target = replication.target
    sink = f"{target.db_type} at {target.host}:{target.port}" if target else "none"
    rows = "\n".join(f"| `{stage.name}` | {stage.summary} |" for stage in stages)
    return (
        f"### Replication `{replication.name}`\n\nOne run is one window (lo, hi] of commit_ts. "
        f"Configured by `{path.name}`.\n\n- source: PD at {', '.join(replication.source.pd_urls)}\n- SQL sink: {sink}\n"
        f"- lake: `{replication.lake.path}`\n\n| Stage | What it does |\n|---|---|\n{rows}\n"
    )
