"""Runs one window in a process that the test stops: `-m support.stopped_driver`, with the replication as JSON on stdin.

Its lines are Binlake's log, and at the end `ended`, or the error.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from binlake.config import Replication
from binlake.errors import BinlakeError
from binlake.lake import lease
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.job.runner import run_window


def _no_spark() -> SparkSession:
    raise AssertionError("a window of this process must not need Spark")


def main() -> None:
    """Run the window with leases of two seconds, and exit at once."""
    replication = Replication.model_validate_json(sys.stdin.readline())
    lease.LEASE_S, lease.RENEW_S = 2.0, 0.3
    try:
        run_window(StageContext(replication, "stopped", _no_spark))
        print("ended", flush=True)
    except BinlakeError as error:
        print(type(error).__name__, error, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
