"""An engine that treats tasks as badly as a cluster may: tiny parts, any order, lost and repeated attempts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from random import Random
from typing import Any

from pyspark import cloudpickle

from binlake.lake.paths import LakePaths
from binlake.spark_jobs.engine.engine import FileStore, Input, Keeper, Output, RowStore


def _copy(value: Any) -> Any:
    return cloudpickle.loads(cloudpickle.dumps(value))  # type: ignore[no-untyped-call]


class HostileEngine:
    """Runs each task from a copy, some of them twice; the result of a lost attempt is dropped with all it wrote."""

    name = "hostile"
    fuses = True
    holds = False
    task_bytes = 1

    def __init__(self, draw: Random) -> None:
        self._draw = draw
        self.tasks = 0
        self.lost = 0

    def run(self, task: Callable[[Input], Output], inputs: Sequence[Input]) -> list[Output]:
        """As Engine."""
        attempts = [number for number in range(len(inputs)) for _ in range(self._draw.choice((1, 1, 2)))]
        self._draw.shuffle(attempts)
        found: dict[int, Any] = {}
        for number in attempts:
            self.tasks += 1
            # Each attempt has its own copy of everything, as in a process of its own.
            run, one = _copy((task, inputs[number]))
            result = _copy(run(one))
            self.lost += number in found
            if number not in found or self._draw.random() < 0.5:
                found[number] = result
        return [found[number] for number in range(len(inputs))]

    def open_store(self, paths: LakePaths, purpose: str) -> AbstractContextManager[RowStore]:
        """As Engine: in files."""
        return FileStore.of(paths, purpose)

    def build_keeper(self) -> Keeper:
        """As Engine: nothing is held."""
        return Keeper(0)
