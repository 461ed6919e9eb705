"""The tables whose rows a DDL changes by itself: due for a comparison with the target after the DDL has run there.

They are recorded in the lake before the DDL runs and stay due until they have been compared, so a run that dies forgets
nothing. Windows without such a DDL cost one read of the newest events.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from binlake.config.target import TargetSection
from binlake.ddl.definitions import LandedDdl
from binlake.ddl.rewrites import STAGE, find_rewritten_tables
from binlake.lake.windowlog import WindowEvent, WindowLog

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
        {".".join(name): ts for name, ts in find_rewritten_tables(ddls).items()} if target.verify_after_ddl_rows else {}
    )
    if not new or is_passed():
        return
    known = read_due_tables(target, windows)
    if known | new != known:
        record_compared(target, windows, hi, "due", known | new, (), 0.0, run_id)


def read_due_tables(target: TargetSection, windows: WindowLog) -> dict[str, int]:
    """The tables of `target` that are due for comparison, with their DDL's commit_ts (a replay has another target)."""
    details = (json.loads(event["detail"]) for event in windows.read_last_events((STAGE,), _EVENTS))
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
    windows.record(WindowEvent(STAGE, hi, hi, state, 0, seconds, run_id, "sql", detail=detail))


def _format_target_address(target: TargetSection) -> str:
    return f"{target.host}:{target.port}/{target.checkpoint_schema}"
