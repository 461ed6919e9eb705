"""Runs one window after the other in one process, so that only the first one waits for the process's start.

Rule: each window is planned, run and reported as if it were alone. The process ends when a window had no new
transaction, when the time is up, or when its caller has closed its input: because it was killed, or wants no more.
"""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from binlake.errors import LeaseHeld, SourceUnavailable
from binlake.pipeline import STOPPED
from binlake.spark_jobs.job.results import SparkNeeded, StageResult

log = structlog.get_logger(__name__)

# Not failures of the windows that are done. The next run meets them with its first window, and waits or recovers.
_OF_NEXT_RUN = (LeaseHeld, SparkNeeded, SourceUnavailable)


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
