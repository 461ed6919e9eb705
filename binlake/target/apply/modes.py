"""Which mode a segment's rows go in (DESIGN 4): the configured one; `auto` decides by the limits of one transaction."""

from __future__ import annotations

from typing import Protocol

from binlake.config.model import Target
from binlake.errors import ConfigError
from binlake.target.apply import atomic, ordered, parallel
from binlake.target.apply.rows import SegmentCounts
from binlake.target.claim.run import ApplyRun
from binlake.target.claim.segments import SegmentPlan, StatementSource, is_within


class RowsApplier(Protocol):
    """Brings a segment's rows downstream and the checkpoint to its end; `last` closes the window."""

    def __call__(self, run: ApplyRun, source: StatementSource, plan: SegmentPlan, *, last: bool) -> SegmentCounts:
        """Rows and batches of this call."""


_APPLIERS: dict[str, RowsApplier] = {
    "atomic": atomic.apply_rows,
    "parallel": parallel.apply_rows,
    "ordered": ordered.apply_rows,
}


def mode_of(target: Target, plan: SegmentPlan) -> str:
    """The mode for the rows of `plan`: `auto` is atomic within the limits and parallel above them (hazards R-30).

    Statements derived for mode ordered are applied so, and no others are, whatever the configuration says by now.
    """
    if plan.ordered:
        return "ordered"
    if target.mode not in ("auto", "ordered"):
        return target.mode
    return "atomic" if is_within(target, plan.rows or 0, plan.bytes or 0) else "parallel"


def rows_applier(mode: str) -> RowsApplier:
    """What applies rows in `mode`. Raises ConfigError for a mode that this build does not have."""
    found = _APPLIERS.get(mode)
    if found is None:
        raise ConfigError(f'target.mode = "{mode}" is not in this build', hint=f"one of: {', '.join(_APPLIERS)}, auto")
    return found
