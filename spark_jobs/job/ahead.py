"""Derives the SQL sink's next window while the target still applies the previous one.

Rule: compact and convert assume where the target will be and write only to the lake; nothing is sealed. Later the
stages use the result only if the target is exactly there; otherwise they derive the window from scratch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import structlog

from binlake.base.process import CPU, give_memory_back
from binlake.errors import BinlakeError
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.job.failures import translate_errors
from binlake.spark_jobs.job.passed import CannotDeriveAhead, DerivedAhead, MergedWindow
from binlake.spark_jobs.job.results import Bounds
from binlake.target import TargetPosition

log = structlog.get_logger(__name__)


class Ahead:
    """Derives one window at a time in its own thread; a context manager that waits for the last one."""

    def __init__(self, ctx: StageContext) -> None:
        self._ctx = ctx
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        self._future: Future[DerivedAhead | None] | None = None

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def start(self, window: Bounds, wait_for_next: Callable[[], MergedWindow]) -> None:
        """Call this before `window` is applied: derive the one that `wait_for_next` returns, once it has landed."""
        position = self._find_position_after(window)
        if position is not None:
            self._future = self._pool.submit(self._derive, position, wait_for_next)

    def take(self) -> DerivedAhead | None:
        """Wait until what was started has ended, and return it; None if there is nothing.

        Raises errors other than those of a stage.
        """
        future, self._future = self._future, None
        return future.result() if future is not None else None

    def _find_position_after(self, window: Bounds) -> TargetPosition | None:
        try:
            position: TargetPosition | None = _import_stage("compact").find_position_after(self._ctx, window)
        except BinlakeError as error:
            _log_reason(error)
            return None
        return position

    def _derive(self, position: TargetPosition, wait_for_next: Callable[[], MergedWindow]) -> DerivedAhead | None:
        ahead = None
        try:
            with translate_errors():
                merged = wait_for_next()
                chain, bounds = self._ctx.begin_chain(), merged.bounds
                with CPU.begin() as cpu:
                    stage = replace(chain, cpu=cpu).begin_stage("compact", bounds)
                    result = _import_stage("compact").derive_ahead(stage, bounds, position, merged)
                ahead = DerivedAhead(merged, position, result)
                with CPU.begin() as cpu:
                    stage = replace(chain, cpu=cpu).begin_stage("convert", Bounds(result.lo, result.hi))
                    converted = _import_stage("convert").derive_ahead(stage, result.derived)
                ahead = replace(ahead, result=replace(result, derived=converted))
                give_memory_back()
        except (BinlakeError, CannotDeriveAhead) as error:
            _log_reason(error)
        return ahead


def _import_stage(name: str) -> Any:
    # Imported late: the stages import this package.
    return importlib.import_module(f"binlake.spark_jobs.{name}.stage")


def _log_reason(error: Exception) -> None:
    """Only log: the stage will meet the error again and raise it."""
    log.info("window_not_derived_ahead", error=type(error).__name__, reason=str(error))
