"""What finalize hands over: the segments of a window in order, and their batches as a stream (nothing is derived here).

Sources: DESIGN 4; hazards R-04, R-18, R-62.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from binlake.downstream.definitions import Expected
from binlake.errors import Permanent
from binlake.statement.batch import StatementBatch

Hook = Callable[[str], None]
"""Called with the name of a step that was just passed: `opened`, `intent`, `ddl_executed`, `ddl_done`, `batch`,
`before_commit`, `after_commit`, `closed`. The seam for fault injection; a run without one calls nothing."""


@dataclass(frozen=True)
class SegmentPlan:
    """One segment. `number` counts from 0; `end_ts`: everything at or below it is downstream after the segment.

    `ddl` (None in segment 0 of most windows) runs first and alone, `ddl_commit_ts` is its place; `touched` are the
    (db, table) it changes, (db, "") for a database; `expected_after`: their definitions once it ran; `repeatable`:
    running it twice in a row does what once does. `expected`: definitions of the tables that get rows. `rows`: rows
    of the segment, when known beforehand.
    """

    number: int
    end_ts: int
    schema_version: int
    ddl: StatementBatch | None = None
    ddl_commit_ts: int = 0
    touched: tuple[tuple[str, str], ...] = ()
    expected_after: Expected | None = None
    repeatable: bool = True
    expected: Expected | None = None
    rows: int | None = None


def too_many_rows(window: str, segment: int, rows: int, most: int) -> Permanent:
    """The error for a segment above `target.max-segment-rows` (hazards R-30)."""
    return Permanent(
        f"segment {segment} has {rows} rows or more, above {most}: too many for one transaction",
        where={"window": window, "segment": segment},
        hint="raise target.max-segment-rows; or name a commit_ts inside the window in window.stop-at, where the"
        " sink's window shall end, and run compact again",
    )


class StatementSource(Protocol):
    """The pinned statements of a window. Both methods give the same every time they are asked."""

    def segments(self) -> list[SegmentPlan]:
        """All segments in order; the last one ends at the window's hi."""

    def batches(self, segment: int, phase: int) -> Iterator[StatementBatch]:
        """Batches of a segment in order: phase 1 deletes, 2 writes."""


@dataclass
class ApplyResult:
    """What one call did. `state`: applied, or already (the checkpoint is at or behind hi: nothing was written).

    `rows`, `batches`, `ddls`: executed by this call; `seconds` of wall time.
    """

    state: str
    lo: int
    hi: int
    segments: int = 0
    rows: int = 0
    batches: int = 0
    ddls: int = 0
    seconds: float = 0.0
