"""Runs one stage or a whole window: the same functions for Airflow's tasks, spark-submit and the command line."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any

import structlog

from binlake.base.cpu import CPU
from binlake.base.memory import give_memory_back
from binlake.base.spans import Values
from binlake.errors import BinlakeError, LeaseHeld
from binlake.feed.state import read_progress, read_state, record_feed_error, record_resume, stops_feed
from binlake.lake.failures import describe, record_failure
from binlake.pipeline import STOPPED, Sink, name_feed_sink, parse_feed_sink
from binlake.spark_jobs.job.afterddl import compare_after_apply
from binlake.spark_jobs.job.ahead import Ahead
from binlake.spark_jobs.job.context import Bounds, StageContext, StageResult
from binlake.spark_jobs.job.failures import translate_errors
from binlake.spark_jobs.job.flight import PiecesInFlight
from binlake.spark_jobs.job.gathering import Gathering, Ready
from binlake.spark_jobs.job.lineage import Gathered
from binlake.spark_jobs.job.passed import MergedWindow
from binlake.spark_jobs.job.results import BYTES, CUT, SparkNeeded

log = structlog.get_logger(__name__)


def run_stage(
    name: str,
    ctx: StageContext,
    bounds: Bounds | None = None,
    start_ts: int | None = None,
    *,
    feed: str = "",
    given: Any = None,
) -> StageResult:
    """Run the stage `name`; plan takes `start_ts`, the others `bounds`, a feed's also `feed`. Raises BinlakeError.

    `given`: what the stage before it derived of the window in this process; without it, the lake is read.

    A failure is recorded as an event in the lake, except LeaseHeld (the job waits for another one) and SparkNeeded
    (which is not a failure). A stage of a feed that is not in state normal ends with `skipped`; a Permanent error puts
    the feed into state error (S2-39).
    """
    # Neither is a failure: another run has the lock, or the caller starts Spark.
    with (
        ctx.span.begin(name, _describe_stage(ctx, bounds, feed), tolerated=(LeaseHeld, SparkNeeded)) as span,
        CPU.begin() as cpu,
    ):
        result = _run_stage(name, replace(ctx, span=span, cpu=cpu), bounds, start_ts, feed, given)
        give_memory_back()
        span.note(
            {**_describe_window(result.lo, result.hi), "binlake.state": result.state, "binlake.rows": result.rows}
        )
        return result


def _describe_stage(ctx: StageContext, bounds: Bounds | None, feed: str) -> Values:
    about = {"binlake.replication": ctx.replication.name, "binlake.run": ctx.run_id}
    window = {} if bounds is None else _describe_window(bounds.lo, bounds.hi)
    return {**about, **window, **({"binlake.feed": feed} if feed else {})}


def _describe_window(lo: int, hi: int) -> Values:
    return {"binlake.window.lo": str(lo), "binlake.window.hi": str(hi)}


def _run_stage(
    name: str, ctx: StageContext, bounds: Bounds | None, start_ts: int | None, feed: str, given: Any
) -> StageResult:
    module = importlib.import_module(f"binlake.spark_jobs.{name}.stage")
    stage = ctx.begin_stage(name, bounds)
    if feed and bounds is not None and (skipped := _skip_if_stopped(name, stage, bounds, feed)) is not None:
        return skipped
    try:
        with translate_errors(ctx.paths.root):
            asked = (start_ts,) if name == "plan" else (bounds, feed) if feed else (bounds,)
            passed = () if given is None else (given,)
            result: StageResult = module.run(stage, *asked, *passed)
            if engine := stage.describe_engine():
                result = replace(result, detail={**result.detail, **engine})
            result = compare_after_apply(stage, result) if name == "finalize" else result
    except (LeaseHeld, SparkNeeded):
        raise
    except Exception as error:
        window = None if bounds is None else (bounds.lo, bounds.hi)
        sink = name_feed_sink(feed) if feed else ""
        record_failure(ctx.windows, name, error, run_id=ctx.run_id, window=window, sink=sink)
        if feed:
            record_feed_error(ctx.windows, feed, name, error, run_id=ctx.run_id)
        raise
    # First told: the caller looks for it when the line comes.
    ctx.tell(result)
    log.info("stage_ended", stage=name, state=result.state, window=Bounds(result.lo, result.hi).window,
             rows=result.rows, seconds=round(result.seconds, 2))  # fmt: skip
    return result


def _skip_if_stopped(name: str, ctx: StageContext, bounds: Bounds, feed: str) -> StageResult | None:
    """The result `skipped` if the feed is stopped, None if it runs. Raises ConfigError for an unknown feed."""
    state = read_state(ctx.windows, feed)
    is_gone = state.state == "removed" and feed not in (one.name for one in ctx.replication.feed)
    if not is_gone:
        ctx.replication.require_feed(feed)
        if state.state == "removed":
            record_resume(ctx.windows, feed, run_id=ctx.run_id, reason="it is in the configuration again")
        if state.works:
            return None
    why = "the feed was removed" if is_gone else state.explain_skip(feed)
    log.info("stage_ended", stage=name, state="skipped", window=bounds.window, feed=feed, reason=why)
    checkpoint = read_progress(ctx.windows, feed).checkpoint
    detail = {"feed": feed, "feed_state": state.state, "reason": why}
    if checkpoint is not None:
        detail["checkpoint"] = str(checkpoint)
    return StageResult(name, "skipped", bounds.lo, bounds.hi, detail=detail)


def run_window(ctx: StageContext, start_ts: int | None = None) -> list[StageResult]:
    """Run the next window through all its stages in one session (the `fused` layout); results in order of completion.

    If land cuts a window at `window.max-bytes`, it continues in pieces up to the hi that plan proposed. While a piece
    is in the sinks, the next one lands and is derived for the SQL sink, and the one after that lands. Sinks run in
    parallel, and a failed sink stops no other; the first failure is raised once all running sinks have ended. A feed's
    failure becomes a result with state `failed`, and later pieces leave the feed out; it is raised only if no sink is
    left.
    """
    with ctx.span.begin("window", _describe_stage(ctx, None, ""), tolerated=(LeaseHeld, SparkNeeded)) as span:
        results = _run_pieces(replace(ctx, span=span), start_ts)
        span.note(_describe_window(min(one.lo for one in results), max(one.hi for one in results)))
        return results


def _run_pieces(ctx: StageContext, start_ts: int | None) -> list[StageResult]:
    source = ctx.begin_chain()
    planned = run_stage("plan", source, start_ts=start_ts)
    results = Gathered([planned])
    if planned.state in STOPPED:
        return results.list_results()
    # What ends first lets the others end: a piece that waits for room, then the one that waits for it to land.
    with _Landing(source, planned.hi) as landing, Ahead(ctx) as ahead, landing.flight as flight:
        following: Future[_Piece] | None = landing.start(planned.lo)
        with _Sinks(ctx, ahead) as sinks:
            while following is not None:
                piece = following.result()
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
    """Lands the pieces of one window, one at a time, in its own thread; each piece once."""

    def __init__(self, ctx: StageContext, hi: int) -> None:
        self.flight = PiecesInFlight(ctx.most_bytes)
        self._ctx = ctx
        self._hi = hi
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="land")
        self._lock = threading.Lock()
        self._pieces: dict[int, Future[_Piece]] = {}

    def __enter__(self) -> _Landing:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def start(self, lo: int) -> Future[_Piece]:
        """Land the piece that begins at `lo`, unless it has been started already."""
        with self._lock:
            if lo not in self._pieces:
                self._pieces = {lo: self._pool.submit(_land, self._ctx, Bounds(lo, self._hi), self.flight)}
            return self._pieces[lo]

    def start_after(self, piece: _Piece) -> Future[_Piece] | None:
        """As `start`, for the next piece; None after the last one."""
        is_cut = any(result.detail.get(CUT) for result in piece.results)
        return self.start(piece.merged.bounds.hi) if is_cut else None


def _wait_for(landing: _Landing, following: Future[_Piece]) -> MergedWindow:
    """What merge derived of `following` once it has landed; this also starts landing the piece after it."""
    piece = following.result()
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
