"""A child process whose lines go to the task's log, and which never outlives the task's kill."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from binlake_airflow.jobs import MODULE

# Longer than an apply's (target.graceful-stop-timeout-s, 10), shorter than Airflow's own (60).
_GRACE_S = 20.0


class JobProcess:
    """Runs `python -m spark_jobs.commands.main` with the interpreter of the task; `log` gets each line."""

    def __init__(self, log: Callable[[str], None], command: Sequence[str] = (sys.executable, "-m", MODULE)) -> None:
        self._log = log
        self._command = list(command)
        self._child: subprocess.Popen[str] | None = None
        self.last_line = ""

    def run(self, arguments: Sequence[str], env: Mapping[str, str] | None = None) -> int:
        """Run to the end; returns the exit status (negative: killed by that signal). `last_line`: the last output."""
        self._child = subprocess.Popen(
            [*self._command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=None if env is None else dict(env),
        )
        with self._child as child:
            for line in child.stdout or ():
                self._log(line.rstrip())
                self.last_line = line.strip() or self.last_line
        return self._child.returncode

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
