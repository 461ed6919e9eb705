"""The operators of stages, one for each way of running Spark: `spark-submit`, and a warm Connect server."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk.exceptions import AirflowException

from binlake.common.installation import format_short_lived_options, list_delta_jars
from binlake.errors import Transient
from binlake_airflow.jobs import StageJob, needs_spark_after_all
from binlake_airflow.operators.base import find_trace_parent
from binlake_airflow.operators.spark import (
    DRIVER_MEMORY_ENV,
    ConnectSessions,
    build_driver_env,
    find_application_file,
    find_connect_url,
    find_spark_master,
    split_token,
)
from binlake_airflow.operators.stages import StageOperator


class SubmitStageOperator(StageOperator):
    """Runs the stage with `spark-submit` in client mode, on the master of the connection.

    It first runs the stage as a plain process, which can process a small window alone: starting a JVM costs more than
    such a window.
    """

    _hook: SparkSubmitHook | None = None

    def run_spark(self, job: StageJob, result: Path) -> str:
        """Run the stage without Spark, or submit it if that is not possible; and wait."""
        hook = self.build_hook(job, result)
        if self.read_settings().window.most_local_bytes != 0:
            how = self.run_child(job.build_arguments(result, spark_later=True))
            if not needs_spark_after_all(result):
                return how
            self.log.info("spark_needed", stage=job.stage)
        self._hook = hook
        try:
            self._hook.submit(find_application_file())
        except AirflowException as error:
            return str(error)
        return "exit status 0"

    def build_hook(self, job: StageJob, result: Path) -> SparkSubmitHook:
        """The provider's hook with all settings needed before the driver starts; the job sets the rest itself."""
        master = find_spark_master(self.spark_conn_id)
        local = master.startswith("local")
        conf = (
            {"spark.driver.extraJavaOptions": format_short_lived_options(), "spark.ui.enabled": "false"}
            if local
            else {}
        )
        return SparkSubmitHook(
            conn_id=self.spark_conn_id,
            name=f"binlake-{self.replication}-{job.stage}",
            conf=conf,
            jars=",".join(list_delta_jars()),
            driver_memory=os.environ.get(DRIVER_MEMORY_ENV),
            # A JVM lives for one window.
            application_args=replace(job, run_for_s=0.0).build_arguments(result),
            env_vars=build_driver_env(local) | self.read_secrets() | find_trace_parent(),
        )

    def on_kill(self) -> None:
        """Kill the driver."""
        super().on_kill()
        if self._hook is not None:
            self._hook.on_kill()


class ConnectStageOperator(StageOperator):
    """Runs the stage as a client of a warm Spark Connect server."""

    _sessions: ConnectSessions | None = None

    def run_spark(self, job: StageJob, result: Path) -> str:
        """Run the client in a child process, in the stage's session; a retry first ends work left by earlier tries.

        If no server listens, the stage runs without Spark: most windows do not need it. Raises Transient if this does.
        """
        self._sessions = ConnectSessions(
            find_connect_url(self.spark_conn_id), self.replication, job.stage, self.log.warning
        )
        try:
            remote = self._sessions.open(job.try_number, job.began_s)
        except Transient as error:
            self.log.warning("spark_unavailable", stage=job.stage, error=str(error))
            how = self.run_child(job.build_arguments(result, without_spark=True))
            if needs_spark_after_all(result):
                raise
            return how
        shown, env = split_token(remote)
        return self.run_child(job.build_arguments(result, remote=shown), env)

    def on_kill(self) -> None:
        """End the client, then the work it left on the server."""
        super().on_kill()
        if self._sessions is not None:
            self._sessions.end()


RUNTIMES: dict[str, type[StageOperator]] = {"submit": SubmitStageOperator, "connect": ConnectStageOperator}
