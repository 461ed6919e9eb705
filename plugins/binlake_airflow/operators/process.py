"""A child process whose lines go to the task's log, and which never outlives the task's kill.

Its input stays open while the task wants it to go on: it is also closed if the task's process dies.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from binlake_airflow.jobs import MODULE

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
