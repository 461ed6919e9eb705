"""Records in the lake's table `window` which tables were set aside at the target or brought back (U-16)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.window.events import ASIDE, BACK, SET_ASIDE, list_unrecorded


def record_set_aside(windows: WindowLog, hi: int, tables: Sequence[Mapping[str, str]], run_id: str) -> list[str]:
    """Record each of `tables` (as `AsideTable.to_dict` gives them) that is not recorded yet. Returns their db.table.

    This includes tables set aside by a run that failed afterwards: the target has recorded them, and the next window
    records them in the lake.
    """
    new = list_unrecorded(tables, windows.read_events(stage=ASIDE)) if tables else []
    for table in new:
        since = int(table["since"])
        windows.record(WindowEvent(ASIDE, since, max(since, hi), SET_ASIDE, run_id=run_id, sink="sql", detail=table))
    return [table["table"] for table in new]


def record_return(
    windows: WindowLog, since: int, ts: int, rows: int, run_id: str, detail: Mapping[str, object]
) -> None:
    """Record that a table, set aside since `since`, equals the source's at checkpoint `ts` after writing `rows`."""
    windows.record(WindowEvent(ASIDE, since, ts, BACK, rows, 0.0, run_id, "sql", detail=detail))
