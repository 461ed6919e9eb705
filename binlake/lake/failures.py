"""Failures as events of the table `window`: the stage, the error's kind, class and text, and the run (R-35).

Without them, a lake whose runs all fail would look idle. The events have their own stage, `failure`, so that a query
for a stage's events returns only those of windows; the stage that failed is in the detail.

Before the lake exists (a wrong address, a source that is down at the first run), failures are stored in a file next to
the lake's folder, `NAME.failures.jsonl`: a lake created by a failure would be mistaken for a damaged lake.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from binlake.errors import BinlakeError
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.pipeline import name_task
from binlake.window.events import EventRow

log = structlog.get_logger(__name__)

FAILURE = "failure"
"""The stage of these events; their state is `failed`."""
_LETTERS = 2000
_EARLY = 50
"""The most failures stored before the lake exists."""


@dataclass(frozen=True)
class Failure:
    """One failure: the `stage`, and the error's `kind` (whether a retry is useful), class, text and hint.

    `at_ms`: Unix ms; `sink`: the feed, for a feed's stage, else empty.
    """

    stage: str
    kind: str
    error: str
    text: str
    hint: str
    run_id: str
    at_ms: int
    sink: str = ""

    @classmethod
    def of(cls, event: EventRow) -> Failure:
        """Parse an event of stage FAILURE."""
        detail = json.loads(event["detail"] or "{}")
        fields = {name: str(detail.get(name, "")) for name in ("stage", "kind", "error", "text", "hint")}
        return cls(**fields, run_id=event["run_id"], at_ms=event["at_ms"], sink=event["sink"] or "")

    @property
    def task(self) -> str:
        """The name of the task that failed: `finalize`, or for a feed `publish-NAME`."""
        return name_task(self.stage, self.sink)

    def __str__(self) -> str:
        """For people: `finalize failed: TargetUnavailable: the text Hint: what to do`."""
        hint = f" Hint: {self.hint}" if self.hint else ""
        return f"{self.task} failed: {self.error}: {self.text}{hint}"


def describe(error: BaseException) -> dict[str, str]:
    """Kind, class, text and hint of an error. Any error not of Binlake's classes is a bug (`Fault`)."""
    if isinstance(error, BinlakeError):
        where = " ".join(f"{key}={value}" for key, value in error.where.items())
        return {"kind": error.kind, "error": type(error).__name__, "text": error.message[:_LETTERS],
                "hint": error.hint[:_LETTERS], "where": where[:_LETTERS]}  # fmt: skip
    lines = str(error).strip().splitlines() or ["no message"]
    return {"kind": "Fault", "error": type(error).__name__, "text": lines[0][:_LETTERS], "hint": "", "where": ""}


def record_failure(
    windows: WindowLog,
    stage: str,
    error: BaseException,
    *,
    run_id: str,
    window: tuple[int, int] | None = None,
    sink: str = "",
) -> None:
    """Record that `stage` (of `sink`) failed with `error` at the window (lo, hi]; None: after the last landed one.

    Never raises, so that the failure's own error is not hidden: if it cannot be recorded, this is logged. A missing
    lake is not created.
    """
    try:
        if not windows.exists():
            _record_early(windows, stage, error, run_id, sink)
            return
        lo, hi = window or _find_current_position(windows)
        detail = {"stage": stage, **describe(error)}
        windows.record(WindowEvent(FAILURE, lo, hi, "failed", run_id=run_id, sink=sink, detail=detail))
    except Exception as unwritten:  # noqa: BLE001 - an error must not hide the one that it is about
        log.warning("failure_not_recorded", stage=stage, failure=str(error), error=str(unwritten))


def read_failures(windows: WindowLog, run_id: str, since_ms: int = 0, count: int = 50) -> list[Failure]:
    """The failures of a run from `since_ms` (Unix ms) on, newest first, among the last `count` failures of all runs."""
    last = read_last_failures(windows, count)
    return [failure for failure in last if failure.run_id == run_id and failure.at_ms >= since_ms]


def read_last_failures(windows: WindowLog, count: int) -> list[Failure]:
    """The last `count` failures of all runs, newest first. Without a lake, they come from the file next to it."""
    if windows.exists():
        return [Failure.of(event) for event in windows.read_last_events((FAILURE,), count)]
    return [Failure(**json.loads(line)) for line in reversed(_read_early_lines(windows))][:count]


def _find_early_file(windows: WindowLog) -> Path | None:
    root = windows.paths.local
    return root.parent / f"{root.name}.failures.jsonl" if root is not None else None


def _read_early_lines(windows: WindowLog) -> list[str]:
    file = _find_early_file(windows)
    return file.read_text().splitlines() if file is not None and file.is_file() else []


def _record_early(windows: WindowLog, stage: str, error: BaseException, run_id: str, sink: str) -> None:
    file = _find_early_file(windows)
    if file is None:
        log.warning("failure_not_recorded", stage=stage, failure=str(error), reason="there is no lake yet")
        return
    fields = {name: value for name, value in describe(error).items() if name != "where"}
    failure = Failure(stage=stage, run_id=run_id, at_ms=time.time_ns() // 1_000_000, sink=sink, **fields)
    lines = [*_read_early_lines(windows), json.dumps(asdict(failure))][-_EARLY:]
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(f".{os.getpid()}")
    temporary.write_text("\n".join(lines) + "\n")
    temporary.replace(file)


def _find_current_position(windows: WindowLog) -> tuple[int, int]:
    landed = windows.find_landed_ts()
    place = landed if landed is not None else windows.start_ts() or 0
    return place, place
