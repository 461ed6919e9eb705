"""A process that repeats the same work, each time in a child that is killed at a requested step.

The process imports everything once, and forks for each line that it reads. It has one thread, so no child starts with a
lock that nobody will release. It answers each line with minus the number of the signal that ended the child, or the
exit code.
"""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from deploy.local.process import ONE_THREAD

_TOO_LONG_S = 300
_TESTS = Path(__file__).resolve().parents[1]


class Killer:
    """The process `-m support.MODULE ARGUMENTS`, which calls `serve`."""

    def __init__(self, module: str, *arguments: object) -> None:
        # As Binlake's programs start: without the modules that only other programs need.
        command = [sys.executable, "-m", "binlake.common.program", f"support.{module}", *map(str, arguments)]
        env = {**os.environ, **ONE_THREAD, "PYTHONPATH": f"{_TESTS}{os.pathsep}{_TESTS.parent}"}
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def __enter__(self) -> Killer:
        self._wait_for("ready")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(timeout=300)

    def kill_at(self, step: str, number: int) -> None:
        """Let a child work until it is killed when it reaches `step` for the `number`-th time."""
        assert self._child.stdin is not None
        self._child.stdin.write(f"{step} {number}\n")
        self._child.stdin.flush()
        self._wait_for("-9")

    def _wait_for(self, wanted: str) -> None:
        """Wait for this line; skip log lines."""
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.strip() == wanted:
                return
            assert not line.strip().lstrip("-").isdigit(), f"the child ended with {line} instead of being killed"
        raise AssertionError("the process has ended")


def serve(work: Callable[[str, int], None]) -> None:
    """Run `work(step, number)` in a child for each line `STEP NUMBER`, until the input ends."""
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"the forking process has {len(threads)} threads instead of 1"
    print("ready", flush=True)
    for line in sys.stdin:
        step, number = line.rstrip("\n").rsplit(" ", 1)
        pid = os.fork()
        if pid == 0:
            # A child that hangs prints its stack before the test times out.
            faulthandler.dump_traceback_later(_TOO_LONG_S, exit=True)
            try:
                work(step, int(number))
            except BaseException:  # noqa: BLE001 - the process ends here, whatever it was
                # The child should have been killed: print the error that came instead.
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
