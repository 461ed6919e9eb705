"""Records what the configuration leaves out of the source's history, or adds too late, as events of the table `window`.

Nothing is skipped silently (DESIGN 3.11): pages and audits of a commit_ts show which rule skipped its transaction and
when (MISSION U-12), and which injected statement did not run, because its commit_ts was merged already or is before the
lake's start. Each is recorded once.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable

import pyarrow.dataset as ds
import structlog

from binlake import tso
from binlake.common.lakecolumns import Binlog
from binlake.dialect.replacement import Injection
from binlake.lake.ddls import read_injections_at
from binlake.lake.opentable import open_dataset, open_once
from binlake.lake.paths import LakePaths
from binlake.lake.tables import BINLOG
from binlake.lake.windowlog import WindowEvent, WindowLog

log = structlog.get_logger(__name__)

SKIP = "skip"
RULE = "filter.ignore-txn-commit-ts"


def record_skips(paths: LakePaths, windows: WindowLog, ignored: Collection[int], run_id: str) -> list[str]:
    """Record the landed transactions at the commit_ts `ignored`. Returns, as text, those that landed."""
    if not ignored:
        return []
    days = sorted({tso.to_datetime(ts).date() for ts in ignored})
    where = (
        ds.field(Binlog.COMMIT_DATE).isin(days)
        & ds.field(Binlog.COMMIT_TS).isin(sorted(ignored))
        & (ds.field(Binlog.CHUNK) == 0)
    )
    landed = open_dataset(open_once(paths.locate_table(BINLOG.name))).to_table(
        columns=[Binlog.COMMIT_TS, Binlog.START_TS, Binlog.KIND], filter=where
    )
    transactions = sorted(
        {(row[Binlog.COMMIT_TS], row[Binlog.START_TS], row[Binlog.KIND]) for row in landed.to_pylist()}
    )
    recorded = {event["hi"] for event in windows.read_events(stage=SKIP, within=(min(ignored) - 1, max(ignored)))}
    for commit_ts, start_ts, kind in transactions:
        if commit_ts in recorded:
            continue
        detail = {"commit_ts": str(commit_ts), "start_ts": str(start_ts), "kind": kind, "rule": RULE}
        windows.record(WindowEvent(SKIP, commit_ts - 1, commit_ts, "done", run_id=run_id, detail=detail))
        log.warning("transaction_skipped", **detail)
    seen = {commit_ts for commit_ts, _, _ in transactions}
    for commit_ts in sorted(set(ignored) - seen):
        log.warning("ignored_commit_ts_not_found", commit_ts=str(commit_ts), rule=RULE)
    return [str(commit_ts) for commit_ts in sorted(seen)]


INJECTION = "injection"


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
    recorded = [json.loads(event["detail"]) for event in windows.read_events_at(moments, (INJECTION,))] if late else []
    for injection in late:
        detail = {"commit_ts": str(injection.commit_ts), "sql": injection.sql[:200], "db": injection.db,
                  "reason": "not run: its commit_ts is merged already, or before the start of the lake"}  # fmt: skip
        if detail in recorded:
            continue
        at = injection.commit_ts
        windows.record(WindowEvent(INJECTION, at - 1, at, "late", run_id=run_id, detail=detail))
        log.warning("injection_not_run", **detail)
