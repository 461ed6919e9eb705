"""The operator of a stage of a window, whatever runs Spark for it (`sparkstages`).

A task gets its bounds from the XCom of the previous stage, starts the job by module name and returns the job's
StageResult. The job does the stage's work and ensures that it can be repeated.
"""

from __future__ import annotations

import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog
from airflow.triggers.base import StartTriggerArgs

from binlake.errors import BinlakeError, ConfigError, IncompleteWindow, SourceUnavailable
from binlake.pipeline import STOPPED, name_feed_sink, name_task
from binlake_airflow.actions import ACT
from binlake_airflow.jobs import (
    FUSED,
    TOLD,
    EndedStages,
    StageJob,
    find_feed_of_result,
    is_idle,
    parse_moment,
    prepare_result_for_xcom,
    pull_result,
    read_results,
)
from binlake_airflow.operators.base import BinlakeOperator
from binlake_airflow.operators.links import LINKS
from binlake_airflow.telemetry import metrics
from binlake_airflow.telemetry.reports import (
    find_changed_tables,
    report_blocked,
    report_run,
    report_source_gone,
    report_stages,
)

log = structlog.get_logger(__name__)
_QUIET_S = 3.0
WRITING = ("bootstrap", "backfill", "restore", "recover", "verify", "maintain", ACT)
"""The side DAGs whose runs may wait for the locks of a window: `audit` only reads."""


class Waiters:
    """Asks Airflow, every 3 s at most, whether anybody waits for the end of this run."""

    def __init__(self, context: Mapping[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._ti, self._dag_id = context["ti"], context["ti"].dag_id
        self._clock = clock
        self._next = 0.0

    def find_reason_to_end(self) -> str:
        """Empty if nobody waits, or if it was asked a moment ago."""
        if self._clock() < self._next:
            return ""
        self._next = self._clock() + _QUIET_S
        try:
            return self._ask()
        except Exception:  # the windows are done, and stay so
            log.warning("waiters_not_known", exc_info=True)
            return "Airflow did not say who waits"

    def _ask(self) -> str:
        if self._ti.get_dag(self._dag_id).is_paused:
            return "the DAG is paused"
        if self._ti.get_dr_count(self._dag_id, states=["queued"]):
            return "another run of the DAG waits"
        # They wait for locks and leases, which these windows would take again at once.
        running = (kind for kind in WRITING if self._ti.get_dr_count(f"{self._dag_id}.{kind}", states=["running"]))
        kind = next(running, "")
        return f"{self._dag_id}.{kind} is running" if kind else ""


Results = list[dict[str, Any]]
Tables = Sequence[Sequence[str]]
# As text: only the triggerer loads it.
_FOLLOWING = "binlake_airflow.operators.following.StageTrigger"
RECOVER = "recover"
"""The task that replaces a window whose source is gone."""


class StageOperator(BinlakeOperator):
    """One stage of the window of `replication_file`, or all of them (`stage` = `window`).

    `bounds_from` names the task whose result holds the bounds (None: the stage finds them itself); `spark_conn_id` the
    connection of the Spark provider; `feed` the feed, for a feed's stage; `moves_assets` the stage after which assets
    are updated; `locks` the lake's locks that the stage takes: the task waits for their holder without a worker;
    `follows` the task whose process runs the stage: this one then starts and ends in the triggerer.
    Returns the StageResult as a dict with commit_ts as strings; the fused window returns `{"results": [...]}`.

    A scheduled run of the fused window may have several windows, one after the other in the same child process; each is
    reported while the next one runs.
    """

    operator_extra_links = LINKS

    def __init__(
        self,
        *,
        stage: str,
        spark_conn_id: str,
        bounds_from: str | None = None,
        moves_assets: str = "",
        feed: str = "",
        locks: Sequence[str] = (),
        follows: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.follows = follows
        if follows and stage != FUSED:
            self.start_from_trigger = True
            self.start_trigger_args = StartTriggerArgs(_FOLLOWING, self.run_alone.__name__, {"process": follows})
        self.stage = stage
        self.moves_assets = moves_assets
        self.spark_conn_id = spark_conn_id
        self.bounds_from = bounds_from
        self.feed = feed
        self.locks = tuple(locks)
        self.applies = stage in ("finalize", FUSED)
        self._results: Results = []
        self._changed: Tables = ()
        self._look: Callable[[], None] = _look_away

    @property
    def results(self) -> Sequence[Mapping[str, Any]]:
        """The results of the stages that this try has run so far."""
        return self._results

    @abstractmethod
    def run_spark(self, job: StageJob, result: Path) -> str:
        """Run `job` with Spark so that its outcome is in `result`; returns how it ended, as text for people."""

    def attempt(self, context: Mapping[str, Any], until: float) -> dict[str, Any]:
        """Run the stage. Raises the job's error by its class; if it stopped (blocked, …), later tasks are skipped."""
        self._results, self._changed = [], ()
        try:
            results = self._run(self.build_job(context), context)
        except SourceUnavailable as error:
            outcome = self._handle_source_gone(context, error)
            if outcome is None:
                raise
            return outcome
        except BinlakeError as error:
            self._report_feed(error)
            self._leave_results(context)
            raise
        if results:
            self._wait_for_pumps(results[0], context, until)
            self._report(results, context)
        report_run(self, self._results, context)
        value = self._build_value()
        skipped = self._find_tasks_to_skip(self._results[0], context)
        if skipped:
            # Skipping ends the task here, before Airflow stores its return value.
            context["ti"].xcom_push(key="return_value", value=value)
            self.skip(context["ti"], skipped)
        return value

    def run_alone(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> Any:
        """Run the stage itself: the process that the task follows has ended, and the task was cleared."""
        self.log.info("stage_runs_alone", process=self.follows, **event)
        return self.execute(context)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """What the stage read and wrote; called only by the OpenLineage provider."""
        del task_instance
        from binlake_airflow.telemetry import lineage

        return lineage.build_lineage_of_stages(self.read_settings(), self._results, self._changed)

    def look_at_child(self) -> None:
        """Report the windows that have ended while the next one runs."""
        self._look()

    def _report(self, results: Results, context: Mapping[str, Any]) -> None:
        """Report the results of one window, or of one stage."""
        shown = [prepare_result_for_xcom(result) for result in results]
        changed = find_changed_tables(self, shown, context)
        report_stages(self, shown, changed, context)
        self._results += results
        self._changed = sorted({(db, table) for tables in (self._changed, changed) for db, table in tables})

    def _build_value(self) -> dict[str, Any]:
        """The XCom value of all results."""
        shown = [prepare_result_for_xcom(result) for result in self._results]
        return {"results": shown} if self.stage == FUSED else shown[0]

    def _leave_results(self, context: Mapping[str, Any]) -> None:
        """Before a failure: leave the windows that ended before it where a successful run has them."""
        if self._results:
            report_run(self, self._results, context)
            context["ti"].xcom_push(key="return_value", value=self._build_value())

    def build_job(self, context: Mapping[str, Any]) -> StageJob:
        """The job of this task instance."""
        params = context["params"]
        pace = self._find_pace(context)
        bounds = pull_result(context["ti"], self.bounds_from) if self.bounds_from else {}
        if bounds is None:
            raise ConfigError(
                f"task `{self.bounds_from}` returned no bounds", hint="clear the run from that task onwards"
            )
        return StageJob(
            stage=self.stage,
            replication=self.replication_file,
            run_id=context["run_id"],
            try_number=context["ti"].try_number,
            began_s=context["dag_run"].start_date.timestamp(),
            lo=bounds.get("lo"),
            hi=bounds.get("hi"),
            start_ts=parse_moment(params.get("start_ts")),
            stop_ts=parse_moment(params.get("stop_ts")),
            feed=self.feed or None,
            tells_stages=bool(self.follows) and self.stage == FUSED,
            **pace,
        )

    def _find_pace(self, context: Mapping[str, Any]) -> dict[str, float]:
        """How long the job runs windows; a run that a person started has one, and is not kept from its end."""
        if self.stage != FUSED or context["dag_run"].run_type != "scheduled":
            return {}
        airflow = self.read_settings().airflow
        return {"run_for_s": airflow.most_run_s, "run_every_s": airflow.run_every_s}

    def _run(self, job: StageJob, context: Mapping[str, Any]) -> Results:
        """Run the job; returns the results that have not been reported yet."""
        with tempfile.TemporaryDirectory(prefix="binlake-") as folder:
            result = Path(folder) / "result.json"
            self._look = self._build_look(result, job, context)
            if not job.needs_spark:
                how = self.run_child(job.build_arguments(result))
            elif self.read_settings().window.most_local_bytes is None:
                # No stage may use Spark, so there need not be one, nor a connection to it.
                how = self.run_child(job.build_arguments(result, without_spark=True))
            else:
                how = self.run_spark(job, result)
            self._look()
            results = read_results(result, how)
        for one in results:
            self.log.info("stage_result", **{key: value for key, value in one.items() if key != "detail"})
        return results

    def _build_look(self, result: Path, job: StageJob, context: Mapping[str, Any]) -> Callable[[], None]:
        if not (job.run_for_s or job.tells_stages):
            return _look_away
        waiters, windows, stages = Waiters(context), EndedStages(result), EndedStages(result, stages=True)
        told: dict[str, Any] = {}
        if job.tells_stages:
            context["ti"].xcom_push(key=TOLD, value=told)

        def look() -> None:
            for [one] in stages.read_new():
                self._tell_stage(one, told, context)
            for results in windows.read_new():
                self._report(results, context)
                reason = waiters.find_reason_to_end()
                if reason and self._process is not None:
                    self.log.info("run_ends", reason=reason)
                    self._process.close_input()

        return look

    def _tell_stage(self, result: Mapping[str, Any], told: dict[str, Any], context: Mapping[str, Any]) -> None:
        """Let the task of the stage end with `result`: its first one of the run, unless the stage has to wait."""
        feed = find_feed_of_result(result)
        task = name_task(result["stage"], name_feed_sink(feed) if feed else None)
        if task not in told and result["state"] not in STOPPED:
            told[task] = prepare_result_for_xcom(result)
            context["ti"].xcom_push(key=TOLD, value=told)

    def _report_feed(self, error: BinlakeError) -> None:
        """Report the state of a feed after `error`, as its task ends without a result."""
        if not self.feed:
            return
        # Imported late: the lake's modules are not needed for DAG parsing.
        from binlake.feed.state import stops_feed

        metrics.send_feed_state(self.replication, self.feed, "error" if stops_feed(error) else "normal")

    def _find_tasks_to_skip(self, first: Mapping[str, Any], context: Mapping[str, Any]) -> list[Any]:
        """The tasks that have nothing to do after this result; `recover` runs only if plan could not reach PD."""
        after = list(self.get_flat_relatives(upstream=False))
        if self.stage == "land" and self._is_idle(first, context):
            self.log.info("window_empty", next="the sinks apply it together with a later window")
            return after
        if self.stage != FUSED and first["state"] in STOPPED:
            if self.feed:
                self.log.warning("feed_skipped", feed=self.feed, reason=first["detail"].get("reason", ""))
            return after
        return [task for task in after if task.task_id == RECOVER]

    def _is_idle(self, landed: Mapping[str, Any], context: Mapping[str, Any]) -> bool:
        settings, stop_ts = self.read_settings(), parse_moment(context["params"].get("stop_ts"))
        return stop_ts is None and is_idle(landed, settings.airflow.idle_s, settings.list_stop_points())

    def _wait_for_pumps(self, first: Mapping[str, Any], context: Mapping[str, Any], until: float) -> None:
        """Wait while the plan is blocked or `stop_ts` is beyond the pumps; then fail with a clear error (R-35)."""
        if first["stage"] != "plan":
            return
        stop_ts = parse_moment(context["params"].get("stop_ts"))
        missing = stop_ts is not None and int(first["hi"] if first["state"] == "ready" else first["lo"]) < int(stop_ts)
        if first["state"] == "blocked" or (missing and first["state"] == "waiting"):
            report_blocked(first, context, self.log)
            # The wait ends this process, so report to metrics now that the plan waits.
            metrics.send_waiting(self.replication, first)
            self.wait_for(until, lo=first["lo"], stop_ts=stop_ts, cause=str(first["detail"].get("reason", "")))
        if missing and first["state"] in STOPPED:
            raise IncompleteWindow(
                f"stop_ts {stop_ts} cannot be reached yet: {first['detail'].get('reason', first['state'])}",
                where={"replication": self.replication, "landed_ts": first["lo"]},
                hint="trigger the DAG again when the pumps are past it",
            )
        if missing:
            self.log.warning(
                "run_ends_below_stop_ts", hi=first["hi"], stop_ts=stop_ts, hint="trigger again for the rest"
            )

    def _handle_source_gone(self, context: Mapping[str, Any], error: SourceUnavailable) -> dict[str, Any] | None:
        """The XCom value if PD does not answer; then only `recover` runs, which looks for an open window (S3-10).

        None for another error, or if recovery is impossible.
        """
        # Imported late: not needed for DAG parsing.
        from binlake.cluster.placement import is_pd_reachable

        after = list(self.get_flat_relatives(upstream=False))
        others = [task for task in after if task.task_id != RECOVER]
        if len(others) == len(after) or is_pd_reachable(self.read_settings().source):
            return None
        self.log.warning("source_gone", error=str(error))
        value = {"stage": self.stage, "state": "unavailable", "blocked_by": "pd", "reason": error.message}
        report_source_gone(value, context)
        context["ti"].xcom_push(key="return_value", value=value)
        # Ends the task here, unless only `recover` follows.
        self.skip(context["ti"], others)
        return value


def _look_away() -> None:
    """A child with one window reports it at its end."""
