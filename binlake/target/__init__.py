"""The SQL target: sessions, the checkpoint and its single writer, definitions, and applying a window exactly once.

Every write goes through `apply_window`; everything else here reads, or is a part of it.
"""

from binlake.downstream.apply import apply_window
from binlake.downstream.checkpoint import Checkpoint
from binlake.downstream.definitions import Expected, expected_after, expected_of
from binlake.downstream.position import Position, checkpoint_of, checkpoint_ts, position_of, progress_of
from binlake.downstream.segments import ApplyResult, Hook, SegmentPlan, StatementSource, WriteAhead, too_many_rows
from binlake.downstream.session import Session
from binlake.downstream.stopping import StopFlag

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
