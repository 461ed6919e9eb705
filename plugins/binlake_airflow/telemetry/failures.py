"""Records the failure of a task: an XCom for the run's note, and an event in the lake for the page and for notifiers.

A job records its own failure where it happens. This module records failures that no job could report: the job was
killed, it never started, or its answer makes the run fail.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from binlake.config import Replication
from binlake.errors import BinlakeError
from binlake.pipeline import name_feed_sink

log = structlog.get_logger(__name__)

KEY = "failed"
"""XCom of a failed try; Airflow clears it when the task is retried."""
LOOK_S = 30.0
"""Seconds to wait for the failures in the lake; after that the notification is sent without them."""


def format_error(error: BaseException) -> str:
    """One line about an error, without its `where`."""
    if isinstance(error, BinlakeError):
        return f"{error.message} Hint: {error.hint}" if error.hint else error.message
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


def record_failure(
    error: Exception,
    *,
    settings: Callable[[], Replication],
    task_id: str,
    context: Mapping[str, Any],
    since_s: float,
    records: bool,
    feed: str = "",
) -> None:
    """Record `error`, which ended a try that began at `since_s` (Unix seconds). It never raises.

    `feed`: the feed, for a feed's stage.
    """
    try:
        context["ti"].xcom_push(key=KEY, value=format_error(error)[:1000])
        if records:
            _record_event(settings(), task_id, feed, error, str(context["run_id"]), since_s)
    except Exception:
        log.warning("failure_not_recorded", task=task_id, exc_info=True)


def read_failures_of_run(settings: Replication, run_id: str) -> list[dict[str, str]]:
    """The failures of a run that the lake records, in order: stage, sink (of a feed), kind, error, text, hint.

    Empty if the lake does not answer.
    """
    recorded: list[dict[str, str]] = []

    def look() -> None:
        # Imported late: delta-rs is not needed for DAG parsing.
        from binlake.lake.failures import read_failures
        from binlake.lake.paths import LakePaths
        from binlake.lake.windowlog import WindowLog

        names = ("stage", "sink", "kind", "error", "text", "hint")
        events = reversed(read_failures(WindowLog(LakePaths.of(settings)), run_id))
        # If a stage was retried, its last failure.
        last = {one.task: one for one in events}
        recorded.extend({name: getattr(one, name) for name in names} for one in last.values())

    looking = threading.Thread(target=_read_or_log, args=(look,), name="binlake-failures", daemon=True)
    looking.start()
    looking.join(LOOK_S)
    return list(recorded)


def _read_or_log(look: Callable[[], None]) -> None:
    try:
        look()
    except Exception:
        log.warning("failures_not_readable", exc_info=True)


def _record_event(
    settings: Replication, task_id: str, feed: str, error: Exception, run_id: str, since_s: float
) -> None:
    from binlake.lake.failures import read_failures, record_failure
    from binlake.lake.paths import LakePaths
    from binlake.lake.windowlog import WindowLog

    windows, sink = WindowLog(LakePaths.of(settings)), name_feed_sink(feed) if feed else ""
    # A feed's failure is not counted for other sinks, nor theirs for the feed.
    if not any(one.sink == sink for one in read_failures(windows, run_id, int(since_s * 1000))):
        stage = task_id.removesuffix(f"-{feed}") if feed else task_id
        record_failure(windows, stage, error, run_id=run_id, sink=sink)
