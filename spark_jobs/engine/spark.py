"""Runs a stage's tasks as Spark jobs. No row passes through the JVM: a task returns only its small result.

A job has one stage: each input is one task, which returns its pickled result. Errors of Binlake are results too, so
that a permanent one is not tried again. With the default settings a task whose process dies is run up to four times.
Sessions inside this process have the settings that Binlake needs, each with its reason.
"""

from __future__ import annotations

import gc
import os
import pickle
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from binlake.common.installation import archive_options, list_delta_jars, require_one_pyspark
from binlake.common.process import CpuShare
from binlake.common.spans import NO_SPAN, Span
from binlake.errors import BinlakeError
from binlake.lake.access import Access, list_accesses, register_access
from binlake.lake.damage import translate_object_store_error
from binlake.lake.paths import LakePaths
from binlake.spark_jobs.engine.engine import (
    SPARK_TASK_BYTES,
    FileStore,
    Input,
    Keeper,
    Output,
    RowStore,
    describe_task,
    name_task,
)

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
_RESULT = "number INT, began BIGINT, ended BIGINT, cpu DOUBLE, result BINARY"
_spared = 0
"""Modules that were loaded when objects were last spared."""


@dataclass
class SparkEngine:
    """Runs tasks as Spark jobs of `session`; `label`: what Spark's pages call them. Counts its `jobs` and `tasks`.

    Workers tell when each task ran, by their own clocks, and what CPU it took, which counts for `cpu`.
    """

    session: SparkSession
    label: str
    span: Span = NO_SPAN
    cpu: CpuShare | None = None
    jobs: int = 0
    tasks: int = 0
    name = "spark"
    fuses = True
    holds = False
    task_bytes = SPARK_TASK_BYTES

    def describe(self) -> dict[str, object]:
        """As Engine."""
        pages = find_pages(self.session)
        counts: dict[str, object] = {"engine": self.name, "spark_jobs": self.jobs, "spark_tasks": self.tasks}
        return counts | ({"spark_pages": pages} if pages else {})

    def run(self, task: Callable[[Input], Output], inputs: Sequence[Input]) -> list[Output]:
        """As Engine: one job of one stage."""
        if not inputs:
            return []
        places = self.session.range(0, len(inputs), 1, len(inputs))
        work = _Work(task, tuple(inputs), list_accesses())
        name_jobs(self.session, self.label, f"{self.label}: {work.__name__} ({len(inputs)} tasks)")
        with self.span.begin(f"job {work.__name__}", {"binlake.tasks": len(inputs)}) as job:
            rows = places.mapInArrow(work, _RESULT).toArrow()
            self.jobs += 1
            self.tasks += len(inputs)
            results: dict[int, Any] = {}
            numbers, begins, ends = (rows[name].to_pylist() for name in ("number", "began", "ended"))
            for number, began, ended, result in zip(numbers, begins, ends, rows["result"], strict=True):
                results[number] = pickle.loads(result.as_buffer())
                job.add(work.__name__, describe_task(number, len(inputs)), began, ended)
        if self.cpu is not None:
            self.cpu.add(sum(rows["cpu"].to_pylist()))
        failed = next((results[n] for n in sorted(results) if isinstance(results[n], BinlakeError)), None)
        if failed is not None:
            raise failed
        return [results[number] for number in range(len(inputs))]

    def open_store(self, paths: LakePaths, purpose: str) -> AbstractContextManager[RowStore]:
        """As Engine: in files of the lake, which all workers can reach."""
        return FileStore.shared(paths, purpose)

    def build_keeper(self) -> Keeper:
        """As Engine: nothing is held where the reader is not."""
        return Keeper(0)


@dataclass(frozen=True)
class _Work(Generic[Input, Output]):
    """The function that Spark's workers call with the numbers of inputs.

    `accesses`: how to reach lakes in object stores. Their credentials are those of the worker's environment: a
    secret does not travel with a task.
    """

    task: Callable[[Input], Output]
    inputs: tuple[Input, ...]
    accesses: tuple[tuple[str, Access], ...]

    @property
    def __name__(self) -> str:
        """The task's name, which Spark shows in its plans."""
        return name_task(self.task)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # As many tasks as cores run side by side already.
        pa.set_cpu_count(1)
        _spare_modules()
        for root, access in self.accesses:
            register_access(root, access.drop_unknown_credentials())
        for batch in batches:
            for number in batch.column(0).to_pylist():
                began, spent = time.time_ns(), time.process_time()
                result = pa.array([self._run(number)], pa.binary())
                times = [pa.array([moment], pa.int64()) for moment in (began, time.time_ns())]
                cpu = pa.array([time.process_time() - spent], pa.float64())
                columns = [pa.array([number], pa.int32()), *times, cpu, result]
                yield pa.RecordBatch.from_arrays(columns, names=["number", "began", "ended", "cpu", "result"])

    def _run(self, number: int) -> bytes:
        try:
            return pickle.dumps(self.task(self.inputs[number]))
        except BinlakeError as error:
            return pickle.dumps(error)
        except Exception as error:
            failure = translate_object_store_error(error)
            if failure is None:
                raise
            return pickle.dumps(failure)


def _spare_modules() -> None:
    """Leave what loaded modules have made out of garbage collections: pyspark makes a full one after each task.

    Of the 85 ms of CPU that a small task took in a worker, 80 were that one.
    """
    global _spared
    if len(sys.modules) != _spared:
        # There is hardly any garbage now: the last task's has just been collected.
        gc.freeze()
        _spared = len(sys.modules)


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
            # On other masters the workers' machines need not have this package (see commands/sparkpackage.py).
            builder = builder.config("spark.python.daemon.module", "binlake.spark_jobs.engine.pyworkers")
    for key, value in {**CONF, **(conf or {})}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session
