"""A warm Spark Connect server: Binlake's settings, loopback only, code and Python of this virtual environment.

The first query of a JVM costs 17 to 30 s (stack facts, "Connect server"), so `start` runs one before any window does.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from binlake.common.installation import archive_options, list_delta_jars
from binlake.spark_jobs.engine.spark import CONF, SparkEngine, is_alone
from deploy.local.ports import HOST, free_port, is_open
from deploy.local.process import Child, ProcessError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_S = 300.0
_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
# SerialGC with few cores needs less memory and less CPU than G1 (stack facts, "Spark and Delta"). No row of a window
# passes through the JVM, so the optimizing compiler costs as much as all jobs and does not earn it (bench/README.md).
_WARM_TASKS = 8
_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss4m"


class SparkConnect:
    """One server below `folder`. `master`: where it runs its tasks; `memory`: size of its JVM's heap.

    `conf` overrides Binlake's settings, `env` the environment.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int = 0,
        master: str = "local[2]",
        memory: str = "2g",
        conf: dict[str, str] | None = None,
        env: dict[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self._alone = is_alone(master)
        self.port = port or free_port()
        command = build_server_command(folder, self.port, master=master, memory=memory, conf=conf)
        env = build_environment(master) | (env or {})
        self.server = Child("spark-connect", command, folder, env=env, cwd=folder)

    @property
    def url(self) -> str:
        """`sc://127.0.0.1:port`."""
        return f"sc://{HOST}:{self.port}"

    def as_airflow_connection(self, name: str) -> dict[str, str]:
        """The environment variable that defines it as the connection `name` of an Airflow."""
        connection = {"conn_type": "spark_connect", "host": f"sc://{HOST}", "port": self.port}
        return {f"AIRFLOW_CONN_{name.upper()}": json.dumps(connection)}

    def start(self, *, warm: bool = True) -> SparkConnect:
        """Start it and return when it answers, warm by default. Raises ProcessError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.server.start().wait_until(lambda: is_open(self.port), START_S)
        if warm:
            # The workers of a cluster share no folder with the server, and Spark's own tables need one.
            warm_up(self.url, self.folder / "warm-up" if self._alone else None)
        return self

    def stop(self) -> None:
        """Stop it and its Python workers."""
        self.server.stop()

    def __enter__(self) -> SparkConnect:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def build_server_command(
    folder: Path,
    port: int,
    *,
    master: str,
    memory: str,
    java: str = "",
    bind: str = HOST,
    conf: dict[str, str] | None = None,
) -> list[str]:
    """The command of a server that keeps its files below `folder` and listens at `bind`:`port`. Raises ConfigError.

    `java`: options of its JVM, which come after Binlake's own.
    """
    ours = CONF | {
        "spark.connect.grpc.binding.address": bind,
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": f"{_JAVA} {archive_options()} {java} -Dderby.system.home={folder}",
        "spark.jars": ",".join(list_delta_jars()),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "scratch"),
    }
    if is_alone(master):
        # As in a session of its own: a new worker need not import what all of them need.
        ours |= {"spark.python.daemon.module": "binlake.spark_jobs.engine.pyworkers"}
        # Executors of a cluster call the server: there Spark's own settings say at which address.
        ours |= {"spark.driver.bindAddress": HOST, "spark.driver.host": HOST}
    settings = [text for key, value in (ours | (conf or {})).items() for text in ("--conf", f"{key}={value}")]
    return [find_spark_submit(), "--master", master, *settings, "--class", _CLASS, "spark-internal"]


def find_spark_submit() -> str:
    """The `spark-submit` of this virtual environment. Raises ProcessError."""
    found = shutil.which("spark-submit", path=sysconfig.get_path("scripts"))
    if found is None:
        raise ProcessError("spark-submit is not installed in this Python environment: run `make setup`")
    return found


def warm_up(url: str, scratch: Path | None) -> None:
    """Make the server load and compile what a window uses: Python workers and, with `scratch`, Delta tables and SQL."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(url).create()
    # Without this, calls to a server that was stopped meanwhile would be retried for minutes.
    spark.client.set_retry_policies([])
    try:
        if scratch is None:
            SparkEngine(spark, "warm-up").run(abs, range(_WARM_TASKS))
        else:
            run_sample_queries(spark, str(scratch / "table"))
    finally:
        spark.stop()
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


def run_sample_queries(spark: SparkSession, table: str) -> None:
    """Run queries like those of a window, on a new Delta table at the path `table`."""
    rows = spark.range(200).selectExpr("id", "id % 7 AS part", "cast(id AS string) AS text")
    mapped = rows.mapInArrow(_echo_batches, rows.schema)
    for _ in range(2):
        mapped.write.format("delta").mode("overwrite").save(table)
    again = spark.read.format("delta").load(table)
    again.groupBy("part").count().join(again, "part").orderBy("id").collect()


def _echo_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def build_environment(master: str) -> dict[str, str]:
    """The variables that the server's process needs in addition to this one's environment."""
    # Python workers import the same modules as the client: this environment and this checkout. Those of a cluster may
    # have another Python (`binlake spark package`).
    root = str(Path(__file__).resolve().parents[2])
    python = {name: os.environ.get(name, sys.executable) for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")}
    return {**python, "PYTHONPATH": root, **({"SPARK_LOCAL_IP": HOST} if is_alone(master) else {})}
