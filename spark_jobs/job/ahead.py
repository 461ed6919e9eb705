"""Derives the SQL sink's next window while the target still applies the previous one.

Rule: compact and convert assume where the target will be and write only to the lake; nothing is sealed. Later the
stages use the result only if the target is exactly there; otherwise they derive the window from scratch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import structlog

from binlake.errors import BinlakeError
from spark_jobs.job.failures import translate_errors
from spark_jobs.job.results import Bounds

if TYPE_CHECKING:
    from binlake.target import Position
    from spark_jobs.job.context import StageContext

log = structlog.get_logger(__name__)


class CannotDeriveAhead(Exception):
    """A window must wait for the previous one, because a stage has to ask the target."""


class Ahead:
    """Derives one window at a time in its own thread; a context manager that waits for the last one."""

    def __init__(self, ctx: StageContext) -> None:
        self._ctx = ctx
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        self._future: Future[None] | None = None

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def start(self, window: Bounds, next_bounds: Callable[[], Bounds]) -> None:
        """Call this before `window` is applied: derive the window that `next_bounds` returns, once it has landed."""
        position = self._find_position_after(window)
        if position is not None:
            self._future = self._pool.submit(self._derive, position, next_bounds)

    def wait(self) -> None:
        """Wait until what was started has ended. Raises errors other than those of a stage."""
        future, self._future = self._future, None
        if future is not None:
            future.result()

    def _find_position_after(self, window: Bounds) -> Position | None:
        try:
            position: Position | None = _import_stage("compact").find_position_after(self._ctx, window)
        except BinlakeError as error:
            _log_reason(error)
            return None
        return position

    def _derive(self, position: Position, next_bounds: Callable[[], Bounds]) -> None:
        try:
            with translate_errors():
                bounds = next_bounds()
                compacted = self._run("compact", bounds, position)
                self._run("convert", Bounds(compacted.lo, compacted.hi), position)
        except (BinlakeError, CannotDeriveAhead) as error:
            _log_reason(error)

    def _run(self, stage: str, bounds: Bounds, position: Position) -> Any:
        return _import_stage(stage).derive_ahead(self._ctx.begin_stage(stage, bounds), bounds, position)


def _import_stage(name: str) -> Any:
    # Imported late: the stages import this package.
    return importlib.import_module(f"spark_jobs.{name}.stage")


def _log_reason(error: Exception) -> None:
    """Only log: the stage will meet the error again and raise it."""
    log.info("window_not_derived_ahead", error=type(error).__name__, reason=str(error))
