"""The DAG `<name>`: one run is one window; `binlake.pipeline` lists its tasks (the stages) and their order. In layout
`fused` a scheduled run continues with the next windows for `run-for-s` seconds.

Runs never overlap, and missed runs are not caught up one by one: a late run takes a larger window, which plan decides.
If the source is gone, the task `recover` runs in place of the window (S3-10).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import DAG, Param, TaskGroup

from binlake.config.sinkuri import mask_sink_uri
from binlake.health.orchestration import SYNC
from binlake.pipeline import Stage, label_sink, list_locks, parse_feed_sink
from binlake_airflow.dags.dagparts import (
    ReplicationFile,
    build_deadline_alert,
    build_empty_dag,
    build_moment_param,
    parse_schedule,
)
from binlake_airflow.jobs import FUSED
from binlake_airflow.operators.commands import RecoverOperator
from binlake_airflow.operators.sparkstages import RUNTIMES
from binlake_airflow.operators.stages import RECOVER, StageOperator
from binlake_airflow.telemetry import assets

# Airflow's backfill of dates is for `<name>.backfill`: here the checkpoint, not a date, determines the next window.
_RUN_TYPES = ("scheduled", "manual", "operator_triggered", "asset_triggered", "asset_materialization")


def build_sync_dag(file: ReplicationFile) -> DAG:
    """The DAG of windows. Raises ConfigError if the schedule is not valid."""
    replication = file.replication
    stages = replication.list_stages()
    with build_empty_dag(
        file,
        SYNC,
        summary=f"Windows of {replication.name}: {' -> '.join(stage.task for stage in stages)}",
        doc=_describe_run(stages, recovers=replication.target is not None),
        params=_build_params(),
        schedule=parse_schedule(replication.airflow.schedule),
        deadline=build_deadline_alert(file),
        allowed_run_types=_RUN_TYPES,
    ) as dag:
        if replication.airflow.layout == "fused":
            whole = Stage(FUSED, "all stages of one window in one Spark session")
            first = _add_task(file, whole, stages)
        else:
            first = _add_tasks(file, stages)
            if replication.airflow.follows_process:
                # Beside the stages, which follow it; what needs the window's outcome comes after it.
                first = _add_task(file, Stage(FUSED, _ONE_PROCESS), stages)
        if replication.target is not None:
            first >> RecoverOperator(
                task_id=RECOVER, beside_window=True, **file.build_command_arguments(), doc_md=_RECOVER
            )
    return dag


_ONE_PROCESS = "the process that runs all stages of the window; the tasks of the stages end with them"
_RECOVER = (
    "Only when PD does not answer: finishes the window that is open at the target (consistent = false), from the lake "
    "or the relay files, and ends. Otherwise it is skipped, or writes nothing."
)


def _add_tasks(file: ReplicationFile, stages: Sequence[Stage]) -> StageOperator:
    tasks: dict[str, StageOperator] = {}
    sinks = dict.fromkeys(stage.sink for stage in stages)
    groups = {
        sink: TaskGroup(label_sink(sink).replace(" ", "_"), prefix_group_id=False, tooltip=_format_tooltip(file, sink))
        for sink in sinks
    }
    for stage in stages:
        with groups[stage.sink]:
            tasks[stage.task] = _add_task(file, stage, stages)
        for before in stage.after:
            tasks[before] >> tasks[stage.task]
    return tasks[stages[0].task]


def _format_tooltip(file: ReplicationFile, sink: str | None) -> str:
    """The tooltip of a feed's group: what it sends, and where."""
    feed = parse_feed_sink(sink)
    if not feed:
        return ""
    section = file.replication.require_feed(feed)
    return f"feed {feed}: {', '.join(section.rules)} to {mask_sink_uri(section.sink_uri)}"


def _add_task(file: ReplicationFile, stage: Stage, stages: Sequence[Stage]) -> StageOperator:
    # The replication's asset stands for its tables: at the target, or the mirrors if there is no target. Feeds have
    # their own assets.
    mover = next((sink.moved_by for sink in file.replication.list_sinks() if sink.holds_tables), "")
    return RUNTIMES[file.replication.airflow.engine](
        task_id=stage.task,
        stage=stage.name,
        feed=stage.feed,
        locks=list_locks(_select_blocking_stages(stages) if stage.name == FUSED else [stage]),
        spark_conn_id=file.replication.airflow.spark_conn_id,
        bounds_from=stage.bounds_from,
        follows=FUSED if file.replication.airflow.follows_process else "",
        moves_assets=mover if stage.name in (mover, FUSED) else "",
        doc_md=stage.summary,
        **file.build_task_arguments(),
        **_build_asset_arguments(
            file.replication.name, stage, mover, [one.feed for one in stages if one.name == "publish"]
        ),
    )


def _select_blocking_stages(stages: Sequence[Stage]) -> Sequence[Stage]:
    """The stages whose locks block a whole window; a feed that another process works on blocks only itself."""
    own = [stage for stage in stages if not stage.feed]
    return own if any(stage.sink for stage in own) else stages


_NOTIFYING = ("plan", "land", "finalize", "publish", FUSED)


def _build_asset_arguments(replication: str, stage: Stage, mover: str, feeds: Sequence[str]) -> Mapping[str, Any]:
    # The asset is an inlet because it stores in Airflow when a lag or silence was last notified.
    inlets = [assets.build_replication_asset(replication)] if stage.name in _NOTIFYING else []
    outlets = [assets.build_replication_alias(replication)] if stage.name in (mover, FUSED) and mover else []
    published = feeds if stage.name == FUSED else [stage.feed] if stage.name == "publish" else []
    return {
        "inlets": inlets,
        "outlets": [*outlets, *(assets.build_feed_alias(replication, feed) for feed in published)],
    }


_FEEDS = (
    " A feed that fails stops no other sink. A feed in state error is skipped, with its reason, until an operator "
    "resumes it on the replication's page or with `binlake changefeed resume`."
)


def _build_params() -> dict[str, Param]:
    return {
        "start_ts": build_moment_param("start_ts", "Where a new replication starts, exclusive; empty = as configured"),
        "stop_ts": build_moment_param("stop_ts", "Where this run stops, inclusive; empty = at the pumps' watermark"),
    }


def _describe_run(stages: Sequence[Stage], *, recovers: bool) -> str:
    rows = "\n".join(f"| `{stage.task}` | {stage.summary} |" for stage in stages)
    more = f"\n| `{RECOVER}` | {_RECOVER} |" if recovers else ""
    feeds = _FEEDS if any(stage.feed for stage in stages) else ""
    return (
        "One run is one window (lo, hi] of commit_ts; the next run continues where it ended. In layout `fused` a "
        "scheduled run continues with the next windows for a while. If a pump or another "
        f"writer blocks a run, it waits without occupying a worker.{feeds}\n\n"
        f"| Task | What it does |\n|---|---|\n{rows}{more}"
    )
