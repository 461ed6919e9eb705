"""Records transactions that the configuration excludes by commit_ts, each once, as events of the table `window`.

Source: MISSION U-12. Nothing is skipped silently (DESIGN 3.11): pages and audits of that commit_ts show which rule
skipped it and when.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow.dataset as ds
import structlog

from binlake import tso
from binlake.base.lakecolumns import Binlog
from binlake.lake.dataset import open_dataset
from binlake.lake.opentable import open_once
from binlake.lake.paths import LakePaths
from binlake.lake.tables import BINLOG
from binlake.lake.windowlog import WindowEvent, WindowLog

log = structlog.get_logger(__name__)

STAGE = "skip"
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
    recorded = {event["hi"] for event in windows.read_events(stage=STAGE, within=(min(ignored) - 1, max(ignored)))}
    for commit_ts, start_ts, kind in transactions:
        if commit_ts in recorded:
            continue
        detail = {"commit_ts": str(commit_ts), "start_ts": str(start_ts), "kind": kind, "rule": RULE}
        windows.record(WindowEvent(STAGE, commit_ts - 1, commit_ts, "done", run_id=run_id, detail=detail))
        log.warning("transaction_skipped", **detail)
    seen = {commit_ts for commit_ts, _, _ in transactions}
    for commit_ts in sorted(set(ignored) - seen):
        log.warning("ignored_commit_ts_not_found", commit_ts=str(commit_ts), rule=RULE)
    return [str(commit_ts) for commit_ts in sorted(seen)]
