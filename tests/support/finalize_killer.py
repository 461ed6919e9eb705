"""Finalize one window, killed at any step: `-m support.finalize_killer FILE LO HI`, for `support.killer`."""

from __future__ import annotations

import functools
import signal
import sys
from typing import TYPE_CHECKING
from unittest import mock

from support.killer import serve
from support.windows import at, signal_me

from binlake.config import load_replication
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.stages import finalize
from binlake.target import apply_window

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(config: str, lo: str, hi: str) -> None:
    """Read lines from the input until it ends."""
    replication = load_replication(config)

    def work(step: str, number: int) -> None:
        hook = at(step, number, signal_me(signal.SIGKILL))
        with mock.patch.object(finalize, "apply_window", functools.partial(apply_window, hook=hook)):
            finalize.run(StageContext(replication, "killed", _no_spark), Bounds(int(lo), int(hi)))

    serve(work)


def _no_spark() -> SparkSession:
    raise AssertionError("finalize must not need Spark")


if __name__ == "__main__":
    main(*sys.argv[1:])
