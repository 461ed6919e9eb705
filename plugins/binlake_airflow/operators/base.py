"""What all operators of Binlake share: a child process that does the work, and waiting without a worker.

After a wait, a task starts again from the beginning: it first checks what is already done (DESIGN 2).

The child's lines go to the task's log, and it never outlives the task's kill. Its input stays open while the task wants
it to go on: it is also closed if the task's process dies.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseOperator
from airflow.sdk.bases.skipmixin import SkipMixin
from airflow.sdk.exceptions import AirflowException

from binlake.common.spans import PARENT_VARIABLE, are_traces_wanted
from binlake.config import Replication, load_replication
from binlake.errors import LeaseHeld
from binlake_airflow.jobs import MODULE
from binlake_airflow.operators.connections import read_connections
from binlake_airflow.telemetry import notes

# Longer than an apply's (target.graceful-stop-timeout-s, 10), shorter than Airflow's own (60).
_GRACE_S = 20.0


class JobProcess:
    """Runs `python -m binlake.spark_jobs.commands.main` with the interpreter of the task; `log` gets each line."""

    def __init__(self, log: Callable[[str], None], command: Sequence[str] = (sys.executable, "-m", MODULE)) -> None:
        self._log = log
        self._command = list(command)
        self._child: subprocess.Popen[str] | None = None
        self.last_line = ""

    def run(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str] | None = None,
        after_line: Callable[[], None] = lambda: None,
    ) -> int:
        """Run to the end; returns the exit status (negative: killed by that signal). `last_line`: the last output.

        `after_line` is called after each line of output; if it raises, the child is killed.
        """
        self._child = subprocess.Popen(
            [*self._command, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=None if env is None else dict(env),
        )
        with self._child as child:
            try:
                for line in child.stdout or ():
                    self._log(line.rstrip())
                    self.last_line = line.strip() or self.last_line
                    after_line()
            except BaseException:
                self.kill()
                raise
        return self._child.returncode

    def close_input(self) -> None:
        """Tell the child that it need not go on; what it does now, it ends."""
        if self._child is not None and self._child.stdin is not None:
            self._child.stdin.close()

    def kill(self) -> None:
        """Terminate the child, and kill it if it does not end in time."""
        child = self._child
        if child is None or child.poll() is not None:
            return
        child.terminate()
        try:
            child.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            child.kill()


# The trigger ends in time by itself; Airflow's own limit is only for a triggerer that was down meanwhile.
_TRIGGER_GRACE_S = 600.0


class BinlakeOperator(BaseOperator, SkipMixin):
    """Works for `replication`, described by `replication_file`; waits up to `wait_s` for another process.

    `applies`: the operator writes to the target, so it also waits for the holder of the target's lease.
    """

    ui_color = "#e0f0f5"
    template_fields: Sequence[str] = ("replication_file",)
    # With this the scheduler honours a skip when a run is cleared.
    inherits_from_skipmixin = True
    locks: Sequence[str] = ()
    """The lake's locks that the operator takes."""
    applies = False
    feed = ""
    """The feed, for a feed's stage."""
    records_failures = True
    """Whether a failure counts for the replication and is recorded in the lake."""

    def __init__(self, *, replication: str, replication_file: str, wait_s: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.replication = replication
        self.replication_file = replication_file
        self.wait_s = wait_s
        self._process: JobProcess | None = None

    @abstractmethod
    def attempt(self, context: Mapping[str, Any], until: float) -> Any:
        """Do the work and return the XCom value. It may call `wait_for(until, …)`. Raises BinlakeError."""

    def execute(self, context: Mapping[str, Any]) -> Any:
        """The first attempt."""
        return self._attempt_and_record(context, time.time() + self.wait_s)

    def go_on(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> Any:
        """The next attempt, after the other process has ended or the time is up."""
        if event["held_by"]:
            self.log.warning("wait_gave_up", after_s=self.wait_s, held_by=event["held_by"])
        return self._attempt_and_record(context, float(event["until"]))

    def wait_for(self, until: float, **conditions: Any) -> None:
        """Release the worker until the other process has ended (see FreeTrigger), unless the time is already up."""
        if time.time() >= until:
            return
        # Imported late: triggers are not needed for DAG parsing.
        from binlake_airflow.operators.waiting import FreeTrigger

        trigger = FreeTrigger(replication_file=self.replication_file, until=until, **conditions)
        left = timedelta(seconds=until - time.time() + _TRIGGER_GRACE_S)
        self.defer(trigger=trigger, method_name=self.go_on.__name__, timeout=left)

    def on_kill(self) -> None:
        """End the child process, if there is one."""
        if self._process is not None:
            self._process.kill()

    def run_child(self, arguments: Sequence[str], env: Mapping[str, str] | None = None, module: str = MODULE) -> str:
        """Run `python -m module` with `arguments` in a child process of this interpreter; returns how it ended."""
        self._process = JobProcess(self.log.info, command=build_command(module))
        whole = {**os.environ, **self.read_secrets(), **find_trace_parent(), **(env or {})}
        status = self._process.run(arguments, whole, self.look_at_child)
        return f"exit status {status}, last line: {self._process.last_line}"

    def look_at_child(self) -> None:
        """Called after each line that the child process writes."""

    def read_settings(self) -> Replication:
        """The replication by the present content of its file, without secrets."""
        return load_replication(self.replication_file, secrets=False)

    def read_secrets(self) -> dict[str, str]:
        """The environment with Airflow's connections that the file names. Raises ConfigError."""
        return read_connections(self.read_settings())

    def _attempt_and_record(self, context: Mapping[str, Any], until: float) -> Any:
        """Call `_attempt_under_locks`; record the error of a failure for the run's note, the page and notifiers."""
        began = time.time()
        try:
            return self._attempt_under_locks(context, until)
        except AirflowException:
            # A task tells Airflow with such an exception that it skips.
            raise
        except Exception as error:
            notes.record_failure(
                error,
                settings=self.read_settings,
                task_id=self.task_id,
                context=context,
                since_s=began,
                records=self.records_failures,
                feed=self.feed,
            )
            raise

    def _attempt_under_locks(self, context: Mapping[str, Any], until: float) -> Any:
        if self._find_lock_holder():
            self.wait_for(until, locks=list(self.locks))
        try:
            return self.attempt(context, until)
        except LeaseHeld as error:
            self.log.info("lease_held", error=str(error))
            self.wait_for(until, locks=list(self.locks), lease=self.applies)
            raise

    def _find_lock_holder(self) -> str:
        # Imported late: the lake's modules are not needed for DAG parsing.
        from binlake.lake.lock import lock_holder
        from binlake.lake.paths import LakePaths

        holder = lock_holder(LakePaths.of(self.read_settings()), self.locks) if self.locks else ""
        if holder:
            self.log.info("lake_lock_held", held_by=holder)
        return holder


def find_trace_parent() -> dict[str, str]:
    """The environment that makes a child's spans part of Airflow's trace, if Airflow samples this task's."""
    if not are_traces_wanted():
        return {}
    # Imported late: DAG files import this module.
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    # Without `[traces] otel_on` Airflow's context names a span that nobody exports, and is not sampled.
    if trace.get_current_span().get_span_context().trace_flags.sampled:
        TraceContextTextMapPropagator().inject(carrier)
    return {PARENT_VARIABLE: carrier["traceparent"]} if "traceparent" in carrier else {}


def build_command(module: str) -> tuple[str, ...]:
    """The command that starts the Python module `module` with the task's interpreter."""
    return sys.executable, "-m", "binlake.common.program", module
