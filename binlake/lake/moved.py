"""Events of the SQL sink's position in the table `window`: another hand moved it, or it is back where Binlake left it.

The target's own record decides (`binlake.target.claim.checkpoint`); these events only tell what happened, once each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from binlake.errors import CheckpointMoved
from binlake.lake.windowlog import WindowEvent, WindowLog

log = structlog.get_logger(__name__)

STAGE = "position"
MOVED, BACK = "moved", "back"


@contextmanager
def record_moves(windows: WindowLog, run_id: str) -> Iterator[None]:
    """Record a CheckpointMoved that is raised inside, unless the last event at that position tells of the same move."""
    try:
        yield
    except CheckpointMoved as error:
        written = int(error.where["written"])
        if not _is_moved(windows, written):
            _record(windows, written, MOVED, run_id, found=error.where["found"])
        raise


def record_return(windows: WindowLog, commit_ts: int | None, run_id: str) -> bool:
    """Record that the position, now `commit_ts`, is back where it was written. False if it was not moved before."""
    if commit_ts is None:
        return False
    if not _is_moved(windows, commit_ts):
        return False
    _record(windows, commit_ts, BACK, run_id)
    log.warning("checkpoint_back", commit_ts=str(commit_ts))
    return True


def _is_moved(windows: WindowLog, written: int) -> bool:
    """True when the last event at the position `written` is a move away from it."""
    events = windows.read_events(stage=STAGE, within=(written - 1, written + 1))
    return bool(events) and events[-1]["state"] == MOVED


def _record(windows: WindowLog, commit_ts: int, state: str, run_id: str, **detail: str) -> None:
    windows.record(WindowEvent(STAGE, commit_ts, commit_ts, state, run_id=run_id, sink="sql", detail=detail))
