"""The operators of a window: one abstract stage, and one class per way of running Spark.

A task gets its bounds from the XCom of the stage before it, starts the job by module name and returns the job's
StageResult. What a stage does, and that it may be run again, is the job's affair.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk import BaseHook, BaseOperator
from airflow.sdk.bases.skipmixin import SkipMixin
from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException

from binlake.errors import ConfigError, IncompleteWindow
from binlake_airflow import sparkconnect
from binlake_airflow.jobs import FUSED, MODULE, STOPPED, Job, read_results
from binlake_airflow.process import JobProcess

JARS_ENV = "BINLAKE_JARS"
DRIVER_MEMORY_ENV = "BINLAKE_DRIVER_MEMORY"
_DEFAULT_JARS = Path(__file__).resolve().parents[2] / ".local" / "jars"
# A driver lives for one stage: without the optimising compiler it costs half the CPU (stack facts, "Spark and Delta").
_LOCAL_DRIVER = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

Results = list[dict[str, Any]]


class StageOperator(BaseOperator, SkipMixin):
    """One stage of the window of `replication_file`, or all of them (`stage` = `window`).

    `bounds_from` names the task whose result holds the bounds (None: the stage finds them itself); `spark_conn_id` the
    connection of the Spark provider. Returns the StageResult as a dict with commit_ts as strings; the fused window
    returns `{"results": [...]}`.
    """

    ui_color = "#e0f0f5"
    # Lets the scheduler honour a skip by the plan when a run is cleared.
    inherits_from_skipmixin = True

    def __init__(
        self,
        *,
        stage: str,
        replication: str,
        replication_file: str,
        spark_conn_id: str,
        bounds_from: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.stage = stage
        self.replication = replication
        self.replication_file = replication_file
        self.spark_conn_id = spark_conn_id
        self.bounds_from = bounds_from
        self._process: JobProcess | None = None

    @abstractmethod
    def run_spark(self, job: Job, result: Path) -> str:
        """Run `job` with Spark so that its outcome is in `result`; how it ended, for people."""

    def execute(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """Run the stage. Raises the job's error by its class; a stage that stopped (blocked, …) skips what follows."""
        results = self._run(self.job(context))
        self._show(results[0], context)
        value = {"results": results} if self.stage == FUSED else results[0]
        if self.stage != FUSED and results[0]["state"] in STOPPED:
            # Skipping ends the task here, before Airflow keeps what it returns.
            context["ti"].xcom_push(key="return_value", value=value)
            self.skip(context["ti"], self.get_flat_relatives(upstream=False))
        return value

    def job(self, context: Mapping[str, Any]) -> Job:
        """The job of this task instance."""
        params = context["params"]
        found = context["ti"].xcom_pull(task_ids=self.bounds_from) if self.bounds_from else {}
        if found is None:
            raise ConfigError(f"task `{self.bounds_from}` left no bounds", hint="clear the run from that task on")
        return Job(
            stage=self.stage,
            replication=self.replication_file,
            run_id=context["run_id"],
            try_number=context["ti"].try_number,
            began_s=context["dag_run"].start_date.timestamp(),
            lo=found.get("lo"),
            hi=found.get("hi"),
            start_ts=params.get("start_ts"),
            stop_ts=params.get("stop_ts"),
        )

    def on_kill(self) -> None:
        """End the child process, if there is one."""
        if self._process is not None:
            self._process.kill()

    def _run(self, job: Job) -> Results:
        with tempfile.TemporaryDirectory(prefix="binlake-") as folder:
            result = Path(folder) / "result.json"
            how = self.run_spark(job, result) if job.needs_spark else self.run_child(job.arguments(result))
            results = read_results(result, how)
        for one in results:
            self.log.info("stage %s", " ".join(f"{key}={value}" for key, value in one.items() if key != "detail"))
        return results

    def run_child(self, arguments: Sequence[str], env: Mapping[str, str] | None = None) -> str:
        """Run the job in a child process of this interpreter; how it ended."""
        self._process = JobProcess(self.log.info)
        status = self._process.run(arguments, {**os.environ, **(env or {})})
        return f"exit status {status}, last line: {self._process.last_line}"

    def _show(self, first: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Put the window and who blocks it where the run's page shows them; refuse what a person asked in vain."""
        ti = context["ti"]
        ti.xcom_push(key="window", value=f"{first['lo']}-{first['hi']}")
        if first["blocked_by"]:
            ti.xcom_push(key="blocked_by", value=first["blocked_by"])
            self.log.warning("blocked by %s: %s", first["blocked_by"], first["detail"].get("reason", ""))
        if first["stage"] == "plan":
            self._check_asked(first, context["params"].get("stop_ts"))

    def _check_asked(self, plan: Mapping[str, Any], stop_ts: str | None) -> None:
        """Whoever asked for a range gets it or hears why not; a retry may find the pumps further on (hazards R-35)."""
        if stop_ts is None or int(plan["hi"] if plan["state"] == "ready" else plan["lo"]) >= int(stop_ts):
            return
        if plan["state"] in STOPPED:
            raise IncompleteWindow(
                f"stop_ts {stop_ts} cannot be reached yet: {plan['detail'].get('reason', plan['state'])}",
                where={"replication": self.replication, "landed_ts": plan["lo"]},
                hint="trigger again when the pumps have passed it",
            )
        self.log.warning("this run ends at %s, below stop_ts %s: trigger again for the rest", plan["hi"], stop_ts)


class SubmitStageOperator(StageOperator):
    """Runs the stage by `spark-submit` in client mode, on the master of the connection."""

    _hook: SparkSubmitHook | None = None

    def run_spark(self, job: Job, result: Path) -> str:
        """Submit and wait."""
        self._hook = self.hook(job, result)
        try:
            self._hook.submit(application_file())
        except AirflowException as error:
            return str(error)
        return "exit status 0"

    def hook(self, job: Job, result: Path) -> SparkSubmitHook:
        """The provider's hook with all that must be known before the driver starts; the job sets the rest itself."""
        master = _connection(self.spark_conn_id, "a Spark master").host or ""
        local = master.startswith("local")
        conf = {"spark.driver.extraJavaOptions": _LOCAL_DRIVER, "spark.ui.enabled": "false"} if local else {}
        return SparkSubmitHook(
            conn_id=self.spark_conn_id,
            name=f"binlake-{self.replication}-{job.stage}",
            conf=conf,
            jars=",".join(jars()),
            driver_memory=os.environ.get(DRIVER_MEMORY_ENV),
            application_args=job.arguments(result),
            env_vars=_driver_env(local),
        )

    def on_kill(self) -> None:
        """Kill the driver."""
        super().on_kill()
        if self._hook is not None:
            self._hook.on_kill()


class ConnectStageOperator(StageOperator):
    """Runs the stage as a client of a warm Spark Connect server."""

    _session_url: str | None = None

    def run_spark(self, job: Job, result: Path) -> str:
        """Run the client in a child process, in the stage's session; a retry first ends what earlier tries left."""
        url, now = self._server_url(), time.time()
        if job.try_number > 1:
            for session in sparkconnect.sessions_between(self.replication, job.stage, job.began_s, now):
                sparkconnect.interrupt(sparkconnect.with_session(url, session), self.log.warning)
        session = sparkconnect.session_id(self.replication, job.stage, now)
        self._session_url = sparkconnect.with_session(url, session)
        return self.run_child(job.arguments(result, remote=self._session_url))

    def on_kill(self) -> None:
        """End the client, then what it left on the server."""
        super().on_kill()
        if self._session_url is not None:
            sparkconnect.interrupt(self._session_url, self.log.warning)

    def _server_url(self) -> str:
        _connection(self.spark_conn_id, "a Spark Connect server")
        return str(SparkConnectHook(self.spark_conn_id).get_connection_url())


RUNTIMES: dict[str, type[StageOperator]] = {"submit": SubmitStageOperator, "connect": ConnectStageOperator}


def application_file() -> str:
    """The file of `spark_jobs.main`, found without importing it. Raises ConfigError."""
    spec = find_spec(MODULE)
    if spec is None or spec.origin is None:
        raise ConfigError(f"module {MODULE} is not installed", hint="install binlake where the tasks run")
    return spec.origin


def jars() -> list[str]:
    """The Delta jars of `BINLAKE_JARS` or the project's `.local/jars`. Raises ConfigError."""
    folder = Path(os.environ.get(JARS_ENV) or _DEFAULT_JARS)
    found = sorted(str(jar) for jar in folder.glob("*.jar"))
    if not found:
        raise ConfigError("no Delta jars found", where={"folder": folder}, hint=f"run `make setup`, or set {JARS_ENV}")
    return found


def _connection(conn_id: str, what: str) -> Any:
    # The provider's hook takes a missing connection for `yarn` in silence.
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        raise ConfigError(
            "the Airflow connection is not defined",
            where={"spark_conn_id": conn_id},
            hint=f"define it as {what}, or set AIRFLOW_CONN_{conn_id.upper()}",
        ) from None


def _driver_env(local: bool) -> dict[str, str]:
    python = {name: os.environ.get(name, sys.executable) for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")}
    # A virtual environment need not be activated: its spark-submit is found after the machine's own.
    path = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])
    address = {"SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")} if local else {}
    return {"PATH": path, **python, **address}
