"""What happened to the SQL sink's target beside its windows, as events of the table `window`, once each.

- A table was set aside, or was brought back (U-16).
- Another hand moved the checkpoint, or it is back where Binlake left it. The target's own record decides
  (`binlake.target.claim.checkpoint`).
- A DDL changes rows by itself: its tables are due for a comparison after it has run there. They are recorded before the
  DDL runs and stay due until they have been compared, so a run that dies forgets nothing. Windows without such a DDL
  cost one read of the newest events.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import structlog

from binlake.config.servers import TargetSection
from binlake.ddl import rewrites
from binlake.ddl.definitions import LandedDdl
from binlake.errors import CheckpointMoved
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


def record_table_return(
    windows: WindowLog, since: int, ts: int, rows: int, run_id: str, detail: Mapping[str, object]
) -> None:
    """Record that a table, set aside since `since`, equals the source's at checkpoint `ts` after writing `rows`."""
    windows.record(WindowEvent(ASIDE, since, ts, BACK, rows, 0.0, run_id, "sql", detail=detail))


log = structlog.get_logger(__name__)

POSITION = "position"
MOVED, RETURNED = "moved", "back"


@contextmanager
def record_moves(windows: WindowLog, run_id: str) -> Iterator[None]:
    """Record a CheckpointMoved that is raised inside, unless the last event at that position tells of the same move."""
    try:
        yield
    except CheckpointMoved as error:
        written = int(error.where["written"])
        if not _is_moved(windows, written):
            _record_position(windows, written, MOVED, run_id, found=error.where["found"])
        raise


def record_position_return(windows: WindowLog, commit_ts: int | None, run_id: str) -> bool:
    """Record that the position, now `commit_ts`, is back where it was written. False if it was not moved before."""
    if commit_ts is None:
        return False
    if not _is_moved(windows, commit_ts):
        return False
    _record_position(windows, commit_ts, RETURNED, run_id)
    log.warning("checkpoint_back", commit_ts=str(commit_ts))
    return True


def _is_moved(windows: WindowLog, written: int) -> bool:
    """True when the last event at the position `written` is a move away from it."""
    events = windows.read_events(stage=POSITION, within=(written - 1, written + 1))
    return bool(events) and events[-1]["state"] == MOVED


def _record_position(windows: WindowLog, commit_ts: int, state: str, run_id: str, **detail: str) -> None:
    windows.record(WindowEvent(POSITION, commit_ts, commit_ts, state, run_id=run_id, sink="sql", detail=detail))


DUE = "due_for_comparison"
"""The key of the detail of finalize's event: tables that are due after the window."""
_EVENTS = 20
"""The number of newest events that are searched for one of this target."""


def record_due_tables(
    target: TargetSection,
    windows: WindowLog,
    ddls: Iterable[LandedDdl],
    hi: int,
    run_id: str,
    is_passed: Callable[[], bool],
) -> None:
    """Record the tables that `ddls` of the window up to `hi` will change, before the DDL runs.

    `is_passed`: tells whether the DDL ran long ago; called only if there are such tables.
    """
    new = (
        {".".join(name): ts for name, ts in rewrites.find_rewritten_tables(ddls).items()}
        if target.verify_after_ddl_rows
        else {}
    )
    if not new or is_passed():
        return
    known = read_due_tables(target, windows)
    if known | new != known:
        record_compared(target, windows, hi, "due", known | new, (), 0.0, run_id)


def read_due_tables(target: TargetSection, windows: WindowLog) -> dict[str, int]:
    """The tables of `target` that are due for comparison, with their DDL's commit_ts (a replay has another target)."""
    details = (json.loads(event["detail"]) for event in windows.read_last_events((rewrites.STAGE,), _EVENTS))
    last: dict[str, str] = next(
        (detail["due"] for detail in details if detail["target"] == _format_target_address(target)), {}
    )
    return {name: int(ts) for name, ts in last.items()}


def record_compared(
    target: TargetSection,
    windows: WindowLog,
    hi: int,
    state: str,
    left: Mapping[str, int],
    outcomes: Sequence[Mapping[str, str]],
    seconds: float,
    run_id: str,
) -> None:
    """Record the tables `left` that are due at the checkpoint `hi`, and the `outcomes` of those compared now."""
    due = {name: str(ts) for name, ts in left.items()}
    detail: dict[str, Any] = {"due": due, "target": _format_target_address(target)}
    detail |= {"tables": [*outcomes]} if outcomes else {}
    windows.record(WindowEvent(rewrites.STAGE, hi, hi, state, 0, seconds, run_id, "sql", detail=detail))


def _format_target_address(target: TargetSection) -> str:
    return f"{target.host}:{target.port}/{target.checkpoint_schema}"
