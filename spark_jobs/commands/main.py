"""The entry of a Spark job: `STAGE --replication FILE …`, by spark-submit, as a module, or in process (`run_job`).

The job writes its outcome to `--result` as JSON, so that the caller learns what failed and whether to retry.

It may run one window after the other, so that only the first one waits for the process's start: each is planned, run
and reported as if it were alone. The process ends when a window had no new transaction, when the time is up, or when
its caller has closed its input: because it was killed, or wants no more.
"""

from __future__ import annotations

import argparse
import select
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from binlake.common.installation import explain_missing
from binlake.common.spans import Span
from binlake.common.tracing import open_traces
from binlake.config import Replication, load_replication
from binlake.errors import BinlakeError, LeaseHeld, Permanent, SourceUnavailable
from binlake.pipeline import BY_NAME, FEED, STOPPED
from binlake.spark_jobs.commands.recover import recover
from binlake.spark_jobs.job.context import StageContext, build_session_factory
from binlake.spark_jobs.job.results import (
    DEFAULT_MASTER,
    MORE,
    STAGE,
    Bounds,
    SparkNeeded,
    StageResult,
    add_job,
    add_where,
    append_outcome,
    build_error_outcome,
    build_outcome,
    parse_commit_ts,
    parse_start_ts,
    write_outcome,
)
from binlake.spark_jobs.job.runner import run_window
from binlake.spark_jobs.job.stagerun import run_stage

log = structlog.get_logger(__name__)

# Not failures of the windows that are done. The next run meets them with its first window, and waits or recovers.
_OF_NEXT_RUN = (LeaseHeld, SparkNeeded, SourceUnavailable)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All arguments of a job except the first, the stage."""
    add_job(parser)
    add_bounds(parser)
    add_plan(parser)
    add_feed(parser)
    add_where(parser)


def add_bounds(parser: argparse.ArgumentParser) -> None:
    """Declare `--lo` and `--hi`: all stages but plan need them."""
    parser.add_argument("--lo", type=int, metavar="TS", help="commit_ts at which the window begins, exclusive")
    parser.add_argument("--hi", type=int, metavar="TS", help="commit_ts at which the window ends, inclusive")


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Declare `--start-ts` and `--stop-ts`, for plan."""
    parser.add_argument(
        "--start-ts", type=parse_start_ts, metavar="TS", help="plan from this commit_ts (see docs/operate/runbook.md)"
    )
    parser.add_argument(
        "--stop-ts",
        type=parse_commit_ts,
        metavar="TS",
        help="plan windows up to this commit_ts only, and wait until it is reached",
    )


def add_feed(parser: argparse.ArgumentParser) -> None:
    """Declare `--feed`, for encode and publish."""
    parser.add_argument("--feed", default="", metavar="NAME", help="the feed whose stage to run")


def run_job(argv: Sequence[str]) -> dict[str, Any]:
    """Run one job; `{"ok": true, "results": […]}` or `{"ok": false, "error": {kind, class, message}}`.

    Only Binlake's own errors and a missing extra become an outcome; any other exception is a bug and is raised.
    """
    args = _parse(argv)
    write = append_outcome if args.run_for or args.tell_stages else write_outcome
    run = _run_windows if args.run_for else _run_one
    try:
        outcome = build_outcome(run(args))
    except BinlakeError as error:
        outcome = build_error_outcome(error)
    except ModuleNotFoundError as error:
        missing = explain_missing(error, "window")
        if missing is None:
            raise
        outcome = build_error_outcome(missing)
    write(outcome, args.result)
    return outcome


def _run_one(args: argparse.Namespace) -> Sequence[StageResult]:
    return execute(args.stage, args)


def _run_windows(args: argparse.Namespace) -> Sequence[StageResult]:
    """Run windows and write the outcome of each; see `run_windows`."""

    def report(results: Sequence[StageResult]) -> None:
        append_outcome({**build_outcome(results), MORE: True}, args.result)
        # The caller looks for outcomes when a line comes.
        log.info("window_ended", hi=str(results[-1].hi))

    # The configuration is read again for each window: a change takes effect at the next one (DESIGN 2).
    pace = WindowPace(args.run_for, args.run_every)
    return run_windows(lambda: _run_one(args), report, pace, wait=wait_for_caller)


def execute(stage: str, args: argparse.Namespace) -> list[StageResult]:
    """Run `stage` (or `window`: all of them, or `recover`) as the arguments say. Raises BinlakeError."""
    replication = load_replication(args.replication)
    run_id = args.run_id or f"cli-{uuid.uuid4().hex[:12]}"
    # A window's stages in processes of their own are one trace by their run; a whole window always is.
    with open_traces("" if stage == "window" else f"{replication.name} {run_id}") as span:
        return _execute(stage, args, replication, run_id, span)


def _execute(
    stage: str, args: argparse.Namespace, replication: Replication, run_id: str, span: Span
) -> list[StageResult]:
    make_spark = build_session_factory(f"binlake-{replication.name}", args)
    has_spark = not (args.without_spark or args.master == DEFAULT_MASTER)
    ctx = StageContext(
        replication,
        run_id,
        make_spark,
        args.stop_ts,
        in_pieces=stage == "window",
        has_spark=has_spark,
        # The caller has a Spark elsewhere, and is told that it is needed.
        large_on_spark=args.without_spark,
        span=span,
    )
    if getattr(args, "tell_stages", False):
        ctx = replace(ctx, tell=partial(_tell, args.result))
    if stage == "recover":
        return recover(replication, lambda own: replace(ctx, replication=own))
    if stage == "window":
        return run_window(ctx, args.start_ts)
    if stage == "plan":
        return [run_stage(stage, ctx, start_ts=args.start_ts)]
    if args.lo is None or args.hi is None:
        raise Permanent("the bounds are missing", where={"stage": stage}, hint="pass --lo and --hi")
    if (BY_NAME[stage].sink == FEED) != bool(args.feed):
        raise Permanent(
            "the feed is missing" if not args.feed else "this stage belongs to no feed",
            where={"stage": stage},
            hint="pass --feed with encode and publish only",
        )
    return [run_stage(stage, ctx, Bounds(args.lo, args.hi), feed=args.feed)]


def _tell(place: Path | None, result: StageResult) -> None:
    """Write the outcome of a stage whose window goes on."""
    append_outcome({**build_outcome([result]), MORE: STAGE}, place)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="binlake.spark_jobs.commands.main")
    parser.add_argument("stage", choices=[*BY_NAME, "window", "recover"])
    add_arguments(parser)
    parser.add_argument("--tell-stages", action="store_true", help="window: also write the outcome of each stage")
    parser.add_argument(
        "--run-for", type=float, default=0.0, metavar="SECONDS", help="window: continue with the next windows so long"
    )
    parser.add_argument(
        "--run-every", type=float, default=0.0, metavar="SECONDS", help="least time between two of these windows"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0, or 1 with one line that says what failed."""
    outcome = run_job(sys.argv[1:] if argv is None else argv)
    if not outcome["ok"]:
        print(f"error: {outcome['error']['message']}", file=sys.stderr)
    return 0 if outcome["ok"] else 1


@dataclass(frozen=True)
class WindowPace:
    """Windows begin for `run_for_s` seconds, at least `every_s` seconds apart."""

    run_for_s: float
    every_s: float


def run_windows(
    run_one: Callable[[], Sequence[StageResult]],
    report: Callable[[Sequence[StageResult]], None],
    pace: WindowPace,
    *,
    wait: Callable[[float], bool],
    clock: Callable[[], float] = time.monotonic,
) -> Sequence[StageResult]:
    """Run windows by `run_one` and pass the results of each to `report`; returns those of a first one that stopped.

    `wait` waits so many seconds; it returns True, at once, if the caller wants no more windows. Raises the error of the
    first window; of a later one, unless the next run handles it better.
    """
    until, began = clock() + pace.run_for_s, clock()
    results = run_one()
    if results[0].state in STOPPED:
        return results
    report(results)
    while _has_news(results):
        now = clock()
        at = max(now, began + pace.every_s)
        if at >= until:
            return _end("the time is up")
        if wait(at - now):
            return _end("the caller wants no more windows")
        began = clock()
        try:
            results = run_one()
        except _OF_NEXT_RUN as error:
            return _end(f"left to the next run: {error}")
        if results[0].state in STOPPED:
            return _end(f"the plan is {results[0].state}: {results[0].detail.get('reason', '')}")
        report(results)
    return _end("the last window had nothing new, or a feed failed in it")


def wait_for_caller(seconds: float) -> bool:
    """Wait so long; True as soon as the process that started this one closes its input or ends."""
    return bool(select.select([sys.stdin], [], [], seconds)[0])


def _has_news(results: Sequence[StageResult]) -> bool:
    """Whether a transaction landed, and no feed failed: trying it again at once would notify of it again and again."""
    landed = sum(result.rows for result in results if result.stage == "land")
    return landed > 0 and not any(result.state == "failed" for result in results)


def _end(reason: str) -> Sequence[StageResult]:
    log.info("windows_ended", reason=reason)
    return ()


if __name__ == "__main__":
    sys.exit(main())
