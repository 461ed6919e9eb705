"""Records injections that were configured too late or are before the lake's start, so that none is skipped silently.

Each is recorded once, as an event of the table `window` (DESIGN 3.11).
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import structlog

from binlake.dialect.replacement import Injection
from binlake.lake.ddls import read_injections_at
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog

log = structlog.get_logger(__name__)

STAGE = "injection"


def record_late_injections(
    paths: LakePaths, windows: WindowLog, injections: Iterable[Injection], lo: int, run_id: str
) -> None:
    """Record those of `injections` that are at or below `lo` but in no merged window. `lo`: that of the present window.

    An injection is identified by its commit_ts and text. With another text it is one that did not run.
    """
    passed = [injection for injection in injections if injection.commit_ts <= lo]
    if not passed:
        return
    moments = sorted({injection.commit_ts for injection in passed})
    known = read_injections_at(paths, moments)
    late = [injection for injection in passed if (injection.commit_ts, injection.sql) not in known]
    recorded = [json.loads(event["detail"]) for event in windows.read_events_at(moments, (STAGE,))] if late else []
    for injection in late:
        detail = {"commit_ts": str(injection.commit_ts), "sql": injection.sql[:200], "db": injection.db,
                  "reason": "not run: its commit_ts is merged already, or before the start of the lake"}  # fmt: skip
        if detail in recorded:
            continue
        at = injection.commit_ts
        windows.record(WindowEvent(STAGE, at - 1, at, "late", run_id=run_id, detail=detail))
        log.warning("injection_not_run", **detail)
