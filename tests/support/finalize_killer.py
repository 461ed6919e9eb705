"""Runs finalize in processes that are killed at a step: `-m support.finalize_killer FILE LO HI`, lines `STEP NUMBER`.

One process imports everything and forks for each line, before any thread of a native library has started in it. It
answers each line with the exit code, minus the signal that ended the child.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from unittest import mock

from pyspark.sql import SparkSession
from support.windows import at, signal_me

from binlake.config import load_replication
from binlake.target import apply_window
from spark_jobs.finalize import stage as finalize
from spark_jobs.job.context import Bounds, StageContext


def main(config: str, lo: str, hi: str) -> None:
    """Serve lines until the input ends."""
    replication = load_replication(config)
    print("ready", flush=True)
    for line in sys.stdin:
        step, number = line.split()
        pid = os.fork()
        if pid == 0:
            hook = at(step, int(number), signal_me(signal.SIGKILL))
            try:
                with mock.patch.object(finalize, "apply_window", functools.partial(apply_window, hook=hook)):
                    finalize.run(StageContext(replication, "killed", _no_spark), Bounds(int(lo), int(hi)))
            finally:
                os._exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _no_spark() -> SparkSession:
    raise AssertionError("finalize needs no Spark")


if __name__ == "__main__":
    main(*sys.argv[1:])
