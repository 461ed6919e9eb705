"""What all operators of Binlake share: a child process that does the work, and waiting without a worker.

A task runs again from its start when what it waited for is free: it checks first what is done (DESIGN 2).
"""

from __future__ import annotations

import os
import sys
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseOperator
from airflow.sdk.bases.skipmixin import SkipMixin
from airflow.sdk.exceptions import AirflowException

from binlake.config import Replication, load_replication
from binlake.errors import LeaseHeld
from binlake_airflow.jobs import MODULE
from binlake_airflow.operators.process import JobProcess
from binlake_airflow.telemetry import failures

# The trigger ends by itself at its time; Airflow's own limit is for a triggerer that was down meanwhile.
_TRIGGER_GRACE_S = 600.0


class BinlakeOperator(BaseOperator, SkipMixin):
    """Does something for `replication`, described by `replication_file`; waits up to `wait_s` for a process in its way.

    `applies`: it writes to the target, so a holder of the lease there is in its way, too.
    """

    ui_color = "#e0f0f5"
    # Lets the scheduler honour a skip when a run is cleared.
    inherits_from_skipmixin = True
    locks: Sequence[str] = ()
    """Locks of the lake that it takes."""
    applies = False
    feed = ""
    """The feed whose stage it is."""
    records_failures = True
    """Whether a failure is one of the replication: it leaves an event in the lake."""

    def __init__(self, *, replication: str, replication_file: str, wait_s: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.replication = replication
        self.replication_file = replication_file
        self.wait_s = wait_s
        self._process: JobProcess | None = None

    @abstractmethod
    def attempt(self, context: Mapping[str, Any], until: float) -> Any:
        """Do it; what to keep as XCom. It may call `wait_for(until, …)`. Raises BinlakeError."""

    def execute(self, context: Mapping[str, Any]) -> Any:
        """The first attempt."""
        return self._attempted(context, time.time() + self.wait_s)

    def go_on(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> Any:
        """The next one, when the way was free or the time was up."""
        if event["held_by"]:
            self.log.warning("wait_gave_up", after_s=self.wait_s, held_by=event["held_by"])
        return self._attempted(context, float(event["until"]))

    def wait_for(self, until: float, **asked: Any) -> None:
        """Leave the worker until the way is free (see FreeTrigger), unless the time is up already."""
        if time.time() >= until:
            return
        # Imported late: triggers are not needed for DAG parsing.
        from binlake_airflow.operators.waiting import FreeTrigger

        trigger = FreeTrigger(replication_file=self.replication_file, until=until, **asked)
        left = timedelta(seconds=until - time.time() + _TRIGGER_GRACE_S)
        self.defer(trigger=trigger, method_name=self.go_on.__name__, timeout=left)

    def on_kill(self) -> None:
        """End the child process, if there is one."""
        if self._process is not None:
            self._process.kill()

    def run_child(self, arguments: Sequence[str], env: Mapping[str, str] | None = None, module: str = MODULE) -> str:
        """Run `python -m module` with `arguments` in a child process of this interpreter; how it ended."""
        self._process = JobProcess(self.log.info, command=command_of(module))
        status = self._process.run(arguments, {**os.environ, **(env or {})})
        return f"exit status {status}, last line: {self._process.last_line}"

    def settings(self) -> Replication:
        """The replication as its file has it now, without secrets."""
        return load_replication(self.replication_file, secrets=False)

    def _attempted(self, context: Mapping[str, Any], until: float) -> Any:
        """`_guarded`; what fails leaves its text for the run's note, the page and notifiers."""
        began = time.time()
        try:
            return self._guarded(context, until)
        except AirflowException:
            # This is how a task says to Airflow that it skips.
            raise
        except Exception as error:
            failures.record_failure(error, settings=self.settings, task_id=self.task_id, context=context, since_s=began,
                          records=self.records_failures, feed=self.feed)  # fmt: skip
            raise

    def _guarded(self, context: Mapping[str, Any], until: float) -> Any:
        if self._lock_holder():
            self.wait_for(until, locks=list(self.locks))
        try:
            return self.attempt(context, until)
        except LeaseHeld as error:
            self.log.info("lease_held", error=str(error))
            self.wait_for(until, locks=list(self.locks), lease=self.applies)
            raise

    def _lock_holder(self) -> str:
        # Imported late: the lake's modules are not needed for DAG parsing.
        from binlake.lake.lock import lock_holder
        from binlake.lake.paths import LakePaths

        held = lock_holder(LakePaths.of(self.settings()), self.locks) if self.locks else ""
        if held:
            self.log.info("lake_lock_held", held_by=held)
        return held


def command_of(module: str) -> tuple[str, ...]:
    """How the Python module `module` is started: by the interpreter of the task."""
    return sys.executable, "-m", "binlake.base.program", module
