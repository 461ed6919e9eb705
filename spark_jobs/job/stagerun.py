"""Runs one stage: its span, its CPU, the record of its failure, and the state of the feed that it serves."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import structlog

from binlake.common.process import CPU, give_memory_back
from binlake.common.spans import Values
from binlake.errors import LeaseHeld
from binlake.feed.state import read_progress, read_state, record_feed_error, record_resume
from binlake.lake.failures import record_failure
from binlake.lake.targetevents import DUE
from binlake.pipeline import name_feed_sink
from binlake.spark_jobs.job.context import Bounds, StageContext, StageResult
from binlake.spark_jobs.job.failures import translate_errors
from binlake.spark_jobs.job.results import SparkNeeded

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
        ctx.span.begin(name, describe_run(ctx, bounds, feed), tolerated=(LeaseHeld, SparkNeeded)) as span,
        CPU.begin() as cpu,
    ):
        result = _run_stage(name, replace(ctx, span=span, cpu=cpu), bounds, start_ts, feed, given)
        give_memory_back()
        span.note({**describe_bounds(result.lo, result.hi), "binlake.state": result.state, "binlake.rows": result.rows})
        return result


def describe_run(ctx: StageContext, bounds: Bounds | None, feed: str) -> Values:
    """What a span says of the run and the window that it belongs to."""
    about = {"binlake.replication": ctx.replication.name, "binlake.run": ctx.run_id}
    window = {} if bounds is None else describe_bounds(bounds.lo, bounds.hi)
    return {**about, **window, **({"binlake.feed": feed} if feed else {})}


def describe_bounds(lo: int, hi: int) -> Values:
    """What a span says of the window (lo, hi]."""
    return {"binlake.window.lo": str(lo), "binlake.window.hi": str(hi)}


def _run_stage(
    name: str, ctx: StageContext, bounds: Bounds | None, start_ts: int | None, feed: str, given: Any
) -> StageResult:
    module = importlib.import_module(f"binlake.spark_jobs.stages.{name}")
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


def compare_after_apply(ctx: StageContext, result: StageResult) -> StageResult:
    """`result` of finalize, with the outcomes of the comparisons of tables that a DDL changed by itself, if due.

    It is no part of the stage, so that finalize needs nothing of `binlake.repair`.
    """
    if not result.detail.get(DUE):
        return result
    # Imported late: few windows have such a DDL, and comparing needs many modules.
    from binlake.repair.afterddl import compare_due_tables

    outcomes = compare_due_tables(ctx.replication, ctx.windows, result.hi, ctx.run_id)
    if not outcomes:
        return result
    return replace(result, detail={**result.detail, "verified_after_ddl": [one.to_dict() for one in outcomes]})
