"""Runs a whole window, or the stages of one sink: the same for Airflow's tasks, spark-submit and the command line."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any

import structlog

from binlake.errors import BinlakeError, LeaseHeld
from binlake.feed.state import stops_feed
from binlake.lake.failures import describe
from binlake.pipeline import STOPPED, Sink, parse_feed_sink
from binlake.spark_jobs.job.context import Bounds, StageContext, StageResult
from binlake.spark_jobs.job.lineage import Gathered
from binlake.spark_jobs.job.pieces import Ahead, CannotDeriveAhead, Gathering, MergedWindow, PiecesInFlight, Ready
from binlake.spark_jobs.job.results import BYTES, CUT, SparkNeeded
from binlake.spark_jobs.job.stagerun import describe_bounds, describe_run, run_stage

log = structlog.get_logger(__name__)

LOAD_S = 600.0
"""Seconds for which a run continues with new plans amid a full load: it keeps its configuration for that time."""
_SMALL_PART = 8
"""A piece below this part of a full one suggests that nothing more waits."""


def run_window(ctx: StageContext, start_ts: int | None = None) -> list[StageResult]:
    """Run the next window through all its stages in one session (the `fused` layout); results in order of completion.

    If land cuts a window at `window.max-bytes`, it continues in pieces up to the hi that plan proposed. While a piece
    is in the sinks, the next one lands and is derived for the SQL sink, and the one after that lands. While pieces are
    those of a full load, a new plan continues the run at that hi, for LOAD_S at most. Sinks run in parallel, and a
    failed sink stops no other; the first failure is raised once all running sinks have ended. A feed's failure becomes
    a result with state `failed`, and later pieces leave the feed out; it is raised only if no sink is left.
    """
    with ctx.span.begin("window", describe_run(ctx, None, ""), tolerated=(LeaseHeld, SparkNeeded)) as span:
        results = _run_pieces(replace(ctx, span=span), start_ts)
        span.note(describe_bounds(min(one.lo for one in results), max(one.hi for one in results)))
        return results


def _run_pieces(ctx: StageContext, start_ts: int | None) -> list[StageResult]:
    source = ctx.begin_chain()
    planned = run_stage("plan", source, start_ts=start_ts)
    results = Gathered([planned])
    if planned.state in STOPPED:
        return results.list_results()
    # What ends first lets the others end: a piece that waits for room, then the one that waits for it to land.
    may_plan = start_ts is None and ctx.stop_ts is None
    with _Landing(source, planned.hi, may_plan=may_plan) as landing, Ahead(ctx) as ahead, landing.flight as flight:
        following: Future[_Piece | None] | None = landing.start(planned.lo)
        with _Sinks(ctx, ahead) as sinks:
            while following is not None and (piece := following.result()) is not None:
                following = landing.start_after(piece)
                wait_for_next = partial(_wait_for, landing, following) if following is not None else None
                for result in [*piece.results, *sinks.run(piece.merged, wait_for_next)]:
                    results.add(result)
                flight.release(piece.merged.bounds.lo)
    return results.list_results()


@dataclass(frozen=True)
class _Piece:
    """A landed window before the sinks: the `results` of its stages, and what merge derived."""

    results: Sequence[StageResult]
    merged: MergedWindow


class _Landing:
    """Lands the pieces of one window, one at a time, in its own thread; each piece once.

    `may_plan`: whether it may propose another window where this one ends.
    """

    def __init__(self, ctx: StageContext, hi: int, *, may_plan: bool) -> None:
        self.flight = PiecesInFlight(ctx.most_bytes)
        self._ctx = ctx
        self._hi = hi
        self._plans_until = time.monotonic() + LOAD_S if may_plan else 0.0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="land")
        self._lock = threading.Lock()
        self._pieces: dict[int, Future[_Piece | None]] = {}

    def __enter__(self) -> _Landing:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def start(self, lo: int) -> Future[_Piece | None]:
        """Land the piece that begins at `lo`, unless it has been started already."""
        return self._start(lo, self._land)

    def start_after(self, piece: _Piece) -> Future[_Piece | None] | None:
        """As `start`, for the next piece, whose result is None if plan proposes none; None after the last one."""
        lo = piece.merged.bounds.hi
        if any(result.detail.get(CUT) for result in piece.results):
            return self._start(lo, self._land)
        return self._start(lo, self._plan_and_land) if self._is_amid_load(piece) else None

    def _start(self, lo: int, land: Callable[[int], _Piece | None]) -> Future[_Piece | None]:
        with self._lock:
            if lo not in self._pieces:
                self._pieces = {lo: self._pool.submit(land, lo)}
            return self._pieces[lo]

    def _land(self, lo: int) -> _Piece:
        return _land(self._ctx, Bounds(lo, self._hi), self.flight)

    def _plan_and_land(self, lo: int) -> _Piece | None:
        # A new view: what other processes have written to control tables since counts for the new window.
        self._ctx = self._ctx.begin_chain()
        planned = run_stage("plan", self._ctx)
        if planned.state in STOPPED:
            return None
        self._hi = planned.hi
        piece = self._land(lo)
        return replace(piece, results=[planned, *piece.results])

    def _is_amid_load(self, piece: _Piece) -> bool:
        """Whether a full load has probably brought more: a piece with rows of it only, and not a small one.

        Else the target would wait until the next run has landed and derived its first piece.
        """
        merged, most = piece.merged.merged, self._ctx.most_bytes
        size = sum(int(result.detail.get(BYTES, 0)) for result in piece.results)
        is_of_load = 0 < merged.rows == merged.base and size * _SMALL_PART > most > 0
        return is_of_load and time.monotonic() < self._plans_until


def _wait_for(landing: _Landing, following: Future[_Piece | None]) -> MergedWindow:
    """What merge derived of `following` once it has landed; this also starts landing the piece after it.

    Raises CannotDeriveAhead if nothing follows.
    """
    piece = following.result()
    if piece is None:
        raise CannotDeriveAhead("no window follows yet")
    landing.start_after(piece)
    return piece.merged


def run_landed(ctx: StageContext, bounds: Bounds) -> list[StageResult]:
    """Run an already sealed window through merge and all sinks; errors as `run_window`."""
    merged = run_stage("merge", ctx, bounds)
    results = Gathered([merged])
    with Ahead(ctx) as ahead, _Sinks(ctx, ahead) as sinks:
        for result in sinks.run(merged.derived):
            results.add(result)
    return results.list_results()


def _land(ctx: StageContext, bounds: Bounds, flight: PiecesInFlight) -> _Piece:
    """Land a piece that begins at `bounds.lo`, and merge it."""
    flight.reserve(bounds.lo, ctx.most_bytes)
    landed = run_stage("land", ctx, bounds)
    flight.correct(bounds.lo, int(landed.detail.get(BYTES, 0)))
    merged = run_stage("merge", ctx, Bounds(landed.lo, landed.hi), given=landed.derived)
    return _Piece([replace(result, derived=None) for result in (landed, merged)], merged.derived)


class _Sinks:
    """The sinks of one run, in parallel; a feed that failed is left out until the next run."""

    def __init__(self, ctx: StageContext, ahead: Ahead) -> None:
        self._ctx = ctx
        self._ahead = ahead
        self._sinks = {sink.name: sink for sink in ctx.replication.list_sinks()}
        self._gathering = Gathering(ctx)

    def __enter__(self) -> _Sinks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The run fails, maybe each time at the same piece: the mirrors do not wait for the others.
        if isinstance(error, Exception) and (ready := self._gathering.take()):
            try:
                self._apply_mirror(self._sinks["mirror"], ready)
            except BinlakeError as second:
                log.warning("mirrors_left_behind", error=str(second))

    def run(self, merged: MergedWindow, wait_for_next: Callable[[], MergedWindow] | None = None) -> list[StageResult]:
        """Run all sinks that are left. Raises the first failure of the SQL sink or the mirrors, or of the last feed.

        `wait_for_next` waits for the next piece, which is derived while this one is applied.
        """
        # What compact derives of the piece, for the mirrors; None as soon as it will derive nothing.
        compacted: Future[Any] = Future()
        if "sql" not in self._sinks:
            compacted.set_result(None)
        runs = {
            "sql": partial(self._run_sql, wait_for_next, compacted),
            "mirror": partial(self._run_mirror, wait_for_next is not None, compacted),
        }
        return _run_side_by_side(
            [
                partial(
                    self._run_feed if parse_feed_sink(sink.name) else runs.get(sink.name, self._run_any), sink, merged
                )
                for sink in self._sinks.values()
            ]
        )

    def _run_sql(
        self,
        wait_for_next: Callable[[], MergedWindow] | None,
        compacted: Future[Any],
        sink: Sink,
        merged: MergedWindow,
    ) -> list[StageResult]:
        try:
            given = self._ahead.take() or merged
            before_apply = None
            if wait_for_next is not None:
                before_apply = partial(self._start_ahead, merged.bounds, wait_for_next)
            results = _run_stages(self._ctx, sink.stage_names, merged.bounds, "", given, before_apply)
            return Gathered(_pass_on("compact", results, compacted)).list_results()
        finally:
            if not compacted.done():
                compacted.set_result(None)

    def _run_mirror(
        self, is_followed: bool, compacted: Future[Any], sink: Sink, merged: MergedWindow
    ) -> list[StageResult]:
        return self._apply_mirror(sink, self._gathering.add(merged, compacted.result(), is_followed=is_followed))

    def _apply_mirror(self, sink: Sink, ready: Ready) -> list[StageResult]:
        return [
            result for bounds, given in ready for result in run_sink(self._ctx, sink.stage_names, bounds, given=given)
        ]

    def _run_any(self, sink: Sink, merged: MergedWindow) -> list[StageResult]:
        return run_sink(self._ctx, sink.stage_names, merged.bounds, given=merged)

    def _run_feed(self, sink: Sink, merged: MergedWindow) -> list[StageResult]:
        names, feed, bounds = sink.stage_names, parse_feed_sink(sink.name), merged.bounds
        results: list[StageResult] = []
        try:
            for result in _run_stages(self._ctx, names, bounds, feed, merged):
                results.append(result)
        except SparkNeeded:
            raise
        except Exception as error:
            del self._sinks[sink.name]
            if not self._sinks:
                raise
            results.append(_build_failed_result(names[len(results) % len(names)], bounds, feed, error))
        return results

    def _start_ahead(self, bounds: Bounds, wait_for_next: Callable[[], MergedWindow], window: Bounds) -> None:
        # A sink's window that ends before the piece does is followed by another window of the same piece.
        if window.hi >= bounds.hi:
            self._ahead.start(window, wait_for_next)


def _build_failed_result(stage: str, bounds: Bounds, feed: str, error: Exception) -> StageResult:
    """The result of a feed's failed stage, which must not stop other sinks; `waiting` if another job has its lock."""
    state = "waiting" if isinstance(error, LeaseHeld) else "failed"
    log.warning("feed_left_out", feed=feed, stage=stage, window=bounds.window, error=str(error))
    feed_state = "error" if stops_feed(error) else "normal"
    detail = {"feed": feed, "feed_state": feed_state, "error": describe(error)["error"], "reason": str(error)}
    return StageResult(stage, state, bounds.lo, bounds.hi, detail=detail)


def _pass_on(stage: str, results: Iterable[StageResult], derived: Future[Any]) -> Iterator[StageResult]:
    """The `results`; what the first run of `stage` derived becomes the result of `derived` at once."""
    for result in results:
        if result.stage == stage and not derived.done():
            derived.set_result(result.derived)
        yield result


def run_sink(
    ctx: StageContext,
    stages: Sequence[str],
    bounds: Bounds,
    *,
    feed: str = "",
    given: Any = None,
) -> list[StageResult]:
    """Run the stages of a sink up to `bounds.hi`, window by window: compact may end one earlier (stop point, size).

    `given`: what was derived of `bounds` in this process.
    """
    return Gathered(_run_stages(ctx, stages, bounds, feed, given)).list_results()


def _run_stages(
    ctx: StageContext,
    stages: Sequence[str],
    bounds: Bounds,
    feed: str,
    given: Any = None,
    before_apply: Callable[[Bounds], None] | None = None,
) -> Iterator[StageResult]:
    """As `run_sink`; `before_apply` is called with each window that finalize is about to apply."""
    chain = ctx.begin_chain()
    # The first window may end an earlier run's at `bounds.lo`, or even before it.
    reached = -1
    while True:
        window, passed = bounds, given
        for stage in stages:
            if stage == "finalize" and before_apply is not None:
                before_apply(window)
            result = run_stage(stage, chain, window, feed=feed, given=passed)
            yield result
            if result.state in STOPPED:
                return
            # compact widens or narrows the window to the one that its sink applies next.
            window, passed = Bounds(result.lo, result.hi), result.derived
        if window.hi >= bounds.hi or window.hi <= reached:
            return
        reached = window.hi


def _run_side_by_side(chains: Sequence[Callable[[], list[StageResult]]]) -> list[StageResult]:
    with ThreadPoolExecutor(max(len(chains), 1)) as pool:
        futures = [pool.submit(chain) for chain in chains]
    # All have ended by now, so raising the first failure stops no other sink.
    return [result for future in futures for result in future.result()]
