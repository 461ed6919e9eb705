"""What a run of windows has in hand: what one stage passes to the next, what is derived ahead, what waits for mirrors.

- `LandedWindow`, `MergedWindow`, `DerivedAhead`: a stage writes to the lake before it hands anything on, and a stage
  that is given nothing, or another window than its own, reads the lake; so both ways give the same result.
- `Ahead`: while the target still applies a window, compact and convert of the next one assume where it will be, and
  write only to the lake; nothing is sealed. Later the stages use the result only if the target is exactly there.
- `Gathering`: mirrors of a run that is behind take several pieces at once. Pieces are held only while another one
  follows, and by no more than a bound of bytes and of seconds. If the process dies, the next run reads them from the
  lake.
- `PiecesInFlight`: bytes bound what is held, not the number of pieces: a piece counts from before it lands until its
  sinks have ended. Of a huge transaction the others wait for the end.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import structlog

from binlake.common.process import CPU, give_memory_back
from binlake.errors import BinlakeError
from binlake.rows.schema import SchemaState
from binlake.spark_jobs.engine.rows import Rows
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.job.decoding import DecodedAhead
from binlake.spark_jobs.job.failures import translate_errors
from binlake.spark_jobs.job.results import Bounds, StageResult
from binlake.target import TargetPosition
from binlake.window.derived import Merged

log = structlog.get_logger(__name__)
MOST_BYTES = 64 << 20
"""Arrow bytes of net changes that are held: a MERGE needs a few times that."""
MOST_S = 30.0
"""Seconds for which a piece is held."""
Ready = list[tuple[Bounds, Any]]
"""Windows that the mirrors take now, in order, with what was derived of each."""
PIECES = 2
"""Pieces of the size at which land ends them that a run holds: one is applied while the next is derived."""


@dataclass(frozen=True)
class LandedWindow:
    """The rows of `binlog` of the window `bounds`, without transactions in chunks; `decoded`: those of `mutation`, if
    land's tasks have made them."""

    bounds: Bounds
    rows: tuple[Rows, ...]
    decoded: DecodedAhead | None = None


@dataclass(frozen=True)
class MergedWindow:
    """The rows of `mutation` of the window `bounds`, what merge sealed for it, and the source's schema at lo and hi."""

    bounds: Bounds
    merged: Merged
    rows: tuple[Rows, ...]
    schemas: tuple[SchemaState, SchemaState]


@dataclass(frozen=True)
class DerivedAhead:
    """The result of compact for the window of `merged`, derived for a target at `position`.

    `result.derived` has the statements if convert has derived them as well.
    """

    merged: MergedWindow
    position: TargetPosition
    result: StageResult


class CannotDeriveAhead(Exception):
    """A window must wait for the previous one, because a stage has to ask the target."""


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
    return importlib.import_module(f"binlake.spark_jobs.stages.{name}")


def _log_reason(error: Exception) -> None:
    """Only log: the stage will meet the error again and raise it."""
    log.info("window_not_derived_ahead", error=type(error).__name__, reason=str(error))


class Gathering:
    """The pieces of one run that its mirrors have not taken yet. Used by one thread at a time."""

    def __init__(self, ctx: StageContext, clock: Callable[[], float] = time.monotonic) -> None:
        self._ctx = ctx
        self._clock = clock
        self._held: tuple[Any, float] | None = None

    def add(self, merged: MergedWindow, derived: Any, *, is_followed: bool) -> Ready:
        """What to apply now that the piece `merged` has come, of which compact has `derived` net changes (or None).

        `is_followed`: another piece of this run comes after it.
        """
        own = self._gather(derived) if is_followed or self._held is not None else None
        if own is None:
            return [*self.take(), (merged.bounds, derived or merged)]
        now = self._clock()
        held, since = self._held or (None, now)
        joined = own if held is None else held.join(own)
        # The next one is about as large as this one.
        if is_followed and joined.bytes + own.bytes <= MOST_BYTES and now - since < MOST_S:
            self._held = joined, since
            return []
        self._held = None
        return [(joined.bounds, derived if held is None else joined)]

    def take(self) -> Ready:
        """What is held, which is then no longer held."""
        held, self._held = self._held, None
        return [] if held is None else [(held[0].bounds, held[0])]

    def _gather(self, derived: Any) -> Any:
        # Imported late: the stages import this package.
        return importlib.import_module("binlake.spark_jobs.stages.mirror").gather(self._ctx, derived)


class FlightEnded(Exception):
    """The run ends, so that no piece lands any more."""


class PiecesInFlight:
    """The pieces of one run, by the commit_ts at which they begin; for all its threads. Its context is the run.

    `piece_bytes`: the bytes of binlogs at which land ends a piece.
    """

    def __init__(self, piece_bytes: int) -> None:
        self._most = PIECES * piece_bytes
        self._sizes: dict[int, int] = {}
        self._changed = threading.Condition()
        self._is_open = True

    def __enter__(self) -> PiecesInFlight:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._is_open = False
            self._changed.notify_all()

    def reserve(self, lo: int, size: int) -> None:
        """Wait until there is room for `size` bytes of the piece at `lo`, or no other piece. Raises FlightEnded."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_open or self._has_room(size))
            if not self._is_open:
                raise FlightEnded
            self._sizes[lo] = size

    def correct(self, lo: int, size: int) -> None:
        """The piece at `lo` has `size` bytes. For the thread that reserves, so that nobody waits for it."""
        with self._changed:
            self._sizes[lo] = size

    def release(self, lo: int) -> None:
        """The piece at `lo` is no longer held."""
        with self._changed:
            self._sizes.pop(lo, None)
            self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        return not self._sizes or sum(self._sizes.values()) + size <= self._most
