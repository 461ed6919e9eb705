"""Spark sessions inside this process, with the settings that Binlake needs and the reason for each."""

from __future__ import annotations

import os
import re
import sys
from functools import lru_cache

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from binlake.base.installation import archive_options, list_delta_jars, require_one_pyspark

CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalogImplementation": "in-memory",
    # With the default, a plain udf over a Parquet scan hangs forever in 4.2.0 (SPARK-58241).
    "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled": "false",
    # Commit dates and timestamps are UTC everywhere.
    "spark.sql.session.timeZone": "UTC",
    # Small windows on few cores: 200 shuffle partitions cost seconds a stage.
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    # A window compiles about 90 classes, the same ones each time; the default cache of 100 would evict them in between.
    "spark.sql.codegen.cache.maxEntries": "1000",
    "spark.databricks.delta.snapshotPartitions": "1",
    # The same as the driver uses: snappy takes three times the bytes.
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Land pulls once, and windows are applied under a fence: a task must never run in two copies (hazards R-02).
    "spark.speculation": "false",
}
_LOOPBACK = "127.0.0.1"


def name_jobs(session: SparkSession, group: str, description: str) -> None:
    """Name the next jobs of this thread on Spark's pages: by group and description, or by tag on a Connect server."""
    if is_remote():
        # A tag has no spaces or commas; those of this thread only add up.
        session.clearTags()
        session.addTag(re.sub(r"[\s,]+", "_", group))
    else:
        session.sparkContext.setJobGroup(group, description)


@lru_cache(maxsize=1)
def find_pages(session: SparkSession) -> str:
    """The address of Spark's own pages; empty if there are none, or if a Connect server does not tell their port."""
    if not is_remote():
        return session.sparkContext.uiWebUrl or ""
    names = ("spark.ui.enabled", "spark.driver.host", "spark.ui.port")
    enabled, host, port = (session.conf.get(name, "") for name in names)
    return f"http://{host}:{port}" if enabled == "true" and host and port not in ("", "0") else ""


def is_alone(master: str) -> bool:
    """Whether `master` runs all tasks on this machine."""
    return master.startswith("local")


def start_classic_session(app: str, master: str | None = None, conf: dict[str, str] | None = None) -> SparkSession:
    """A session in this process. If `master` is None, spark-submit sets it; `conf` overrides the defaults."""
    require_one_pyspark()
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ.setdefault(name, sys.executable)
    builder = SparkSession.builder.appName(app)
    if master is not None:
        builder = builder.master(master).config("spark.jars", ",".join(list_delta_jars()))
        # Added before the user's own options, not in place of them. No row of a window passes through the JVM, so the
        # optimizing compiler costs as much as all jobs and does not earn it (bench/README.md).
        java = f"-XX:TieredStopAtLevel=1 {archive_options()}".strip()
        builder = builder.config("spark.driver.defaultJavaOptions", java)
        if is_alone(master):
            # Executors of a cluster call the driver: there Spark's own settings say at which address.
            os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
            builder = builder.config("spark.driver.bindAddress", _LOOPBACK)
            # On other masters the workers' machines need not have this package (see engine/package.py).
            builder = builder.config("spark.python.daemon.module", "binlake.spark_jobs.engine.pyworkers")
    for key, value in {**CONF, **(conf or {})}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session
