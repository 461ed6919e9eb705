"""The SQL target: sessions, the checkpoint and its single writer, definitions, and applying a window exactly once.

Every write goes through `apply_window`; everything else here reads, or is a part of it.
"""

from binlake.target.apply.apply import apply_window
from binlake.target.apply.position import Position, checkpoint_of, checkpoint_ts, position_of, progress_of
from binlake.target.claim.progress import Checkpoint
from binlake.target.definitions.definitions import Expected, expected_after, expected_of
from binlake.target.segments import ApplyResult, Hook, SegmentPlan, StatementSource, WriteAhead, too_many_rows
from binlake.target.session.session import Session
from binlake.target.session.stopping import StopFlag

__all__ = [
    "ApplyResult",
    "Checkpoint",
    "Expected",
    "Hook",
    "Position",
    "SegmentPlan",
    "Session",
    "StatementSource",
    "StopFlag",
    "WriteAhead",
    "apply_window",
    "checkpoint_of",
    "checkpoint_ts",
    "expected_after",
    "expected_of",
    "position_of",
    "progress_of",
    "too_many_rows",
]
