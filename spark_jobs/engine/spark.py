"""Runs a stage's tasks as Spark jobs. No row passes through the JVM: a task returns only its small result.

A job has one stage: each input is one task, which returns its pickled result. Errors of Binlake are results too, so
that a permanent one is not tried again. With the default settings a task whose process dies is run up to four times.
"""

from __future__ import annotations

import gc
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic

import pyarrow as pa
from pyspark.sql import SparkSession

from binlake.base.process import CpuShare
from binlake.base.spans import NO_SPAN, Span
from binlake.errors import BinlakeError
from binlake.lake.access import Access, list_accesses, register_access
from binlake.lake.damage import translate_object_store_error
from binlake.lake.paths import LakePaths
from binlake.spark_jobs.engine.blocks import FileStore, RowStore
from binlake.spark_jobs.engine.engine import SPARK_TASK_BYTES, Input, Keeper, Output, describe_task, name_task
from binlake.spark_jobs.engine.session import find_pages, name_jobs

_RESULT = "number INT, began BIGINT, ended BIGINT, cpu DOUBLE, result BINARY"


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


_spared = 0
"""Modules that were loaded when objects were last spared."""


def _spare_modules() -> None:
    """Leave what loaded modules have made out of garbage collections: pyspark makes a full one after each task.

    Of the 85 ms of CPU that a small task took in a worker, 80 were that one.
    """
    global _spared
    if len(sys.modules) != _spared:
        # There is hardly any garbage now: the last task's has just been collected.
        gc.freeze()
        _spared = len(sys.modules)
