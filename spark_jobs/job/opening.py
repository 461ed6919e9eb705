"""Builds a job's or command's context from its arguments: the replication, and where Spark runs if it is needed."""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from binlake.config import Replication
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.job.results import SparkNeeded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def build_context(replication: Replication, job: str, args: argparse.Namespace, run_id: str = "") -> StageContext:
    """The context of the stages that the command `job` runs; if `run_id` is empty, one is generated."""
    make = build_session_factory(f"binlake-{job}-{replication.name}", args)
    # These commands read ranges of any length, so they start a Spark where none is named.
    return StageContext(replication, run_id or f"{job}-{uuid.uuid4().hex[:12]}", make, large_on_spark=True)


def build_session_factory(app: str, args: argparse.Namespace) -> Callable[[], SparkSession]:
    """How this job gets its session: from a Connect server, a given master, spark-submit's settings, or not at all."""
    if args.without_spark or args.spark_later:
        return _refuse_session
    if args.remote:
        return lambda: _connect(args.remote)
    return lambda: _start(app, args.master)


def _refuse_session() -> SparkSession:
    raise SparkNeeded


def _start(app: str, master: str | None) -> SparkSession:
    # Imported at first use: most runs need no Spark, whose import takes a second.
    from binlake.spark_jobs.engine.session import start_classic_session

    return start_classic_session(app, master)


def _connect(remote: str) -> SparkSession:
    # Imported at first use: the client loads gRPC, which a session in this process does not need.
    from binlake.spark_jobs.engine.connect import connect_session

    return connect_session(remote)
