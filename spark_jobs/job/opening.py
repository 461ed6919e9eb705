"""What a job or command works with, as its arguments say: the replication, and where Spark runs if it is needed."""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Callable

from pyspark.sql import SparkSession

from binlake.config import Replication
from spark_jobs.job.context import StageContext
from spark_jobs.job.results import SparkNeeded
from spark_jobs.job.session import classic_session


def context_of(replication: Replication, job: str, args: argparse.Namespace, run_id: str = "") -> StageContext:
    """What the stages that the command `job` runs work with; `run_id` "" makes one up."""
    make = session_factory(f"binlake-{job}-{replication.name}", args)
    return StageContext(replication, run_id or f"{job}-{uuid.uuid4().hex[:12]}", make)


def session_factory(app: str, args: argparse.Namespace) -> Callable[[], SparkSession]:
    """How this job gets its session: a Connect server, a given master, what spark-submit set, or not at all."""
    if args.without_spark:
        return _refuse_session
    if args.remote:
        return lambda: _connected(args.remote)
    return lambda: classic_session(app, args.master)


def _refuse_session() -> SparkSession:
    raise SparkNeeded


def _connected(remote: str) -> SparkSession:
    # At first use: its client loads gRPC, of which a session in this process has no use.
    from spark_jobs.job.connect import connect_session

    return connect_session(remote)
