"""Records in the lake's table `window` the tables that were set aside at the target, and that came back (U-16)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.window.asides import BACK, SET_ASIDE, STAGE, list_unrecorded


def record_set_aside(windows: WindowLog, hi: int, tables: Sequence[Mapping[str, str]], run_id: str) -> list[str]:
    """Record each of `tables` (of `AsideTable.to_dict`) that is not recorded yet; the names of those, as db.table.

    Also what a run set aside that failed behind it: the target knows, the lake learns it with the next window.
    """
    new = list_unrecorded(tables, windows.events(stage=STAGE)) if tables else []
    for table in new:
        since = int(table["since"])
        windows.record(WindowEvent(STAGE, since, max(since, hi), SET_ASIDE, run_id=run_id, sink="sql", detail=table))
    return [table["table"] for table in new]


def record_return(
    windows: WindowLog, since: int, ts: int, rows: int, run_id: str, detail: Mapping[str, object]
) -> None:
    """Record that a table, set aside since `since`, is the source's again at checkpoint `ts`; `rows` were written."""
    windows.record(WindowEvent(STAGE, since, ts, BACK, rows, 0.0, run_id, "sql", detail=detail))
