"""The process from which Spark's Python workers are forked has one thread and the same functions as a separate one."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from binlake.spark_jobs.engine.spark import SparkEngine
from deploy.setup.common import REPOSITORY

_LOADED = """
import os, sys
from binlake.spark_jobs.engine.pyworkers import load_before_fork
load_before_fork()
assert "pyspark.worker" in sys.modules
assert {"pyarrow", "numpy", "pandas", "rich", "grpc"}.isdisjoint(sys.modules)
print(os.listdir("/proc/self/task") == [str(os.getpid())])
"""


@pytest.mark.process
def test_preloaded_modules_start_no_thread() -> None:
    done = subprocess.run([sys.executable, "-c", _LOADED], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


@pytest.mark.spark
def test_workers_are_forked_from_it_and_load_arrow_without_pandas(spark: SparkSession) -> None:
    def loaded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        count = sum(batch.num_rows for batch in batches)
        told = [f"{name} {name in sys.modules}" for name in ("structlog", "pyarrow", "pandas")]
        yield pa.RecordBatch.from_arrays([pa.array([f"{count}", *told])], names=["told"])

    rows = spark.range(0, 7, 1, 1).mapInArrow(loaded, "told STRING").collect()
    assert [row.told for row in rows] == ["7", "structlog True", "pyarrow True", "pandas False"]


@pytest.mark.spark
def test_a_collection_after_a_task_does_not_visit_what_modules_made(spark: SparkSession) -> None:
    # pyspark collects all garbage after each task: with 76,000 objects of modules this took 80 of a task's 85 ms.
    def count_collected(_: int) -> int:
        return len(gc.get_objects())

    assert max(SparkEngine(spark, "test").run(count_collected, [0, 1])) < 5_000
