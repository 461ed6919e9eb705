"""The SQL target: sessions, the checkpoint and its single writer, definitions, and applying a window exactly once.

Every write goes through `apply_window`; everything else here reads, or is a part of it.
"""

from binlake.target.apply.apply import apply_window
from binlake.target.apply.position import (
    TargetPosition,
    read_checkpoint,
    read_checkpoint_ts,
    read_open_window,
    read_position,
)
from binlake.target.claim.checkpoint import Checkpoint
from binlake.target.definitions.definitions import ExpectedState, expect_after_ddl, expect_tables
from binlake.target.segments import (
    ApplyResult,
    Hook,
    SegmentPlan,
    StatementSource,
    WriteAhead,
    build_too_many_rows_error,
)
from binlake.target.session.session import StopFlag, TargetSession

__all__ = [
    "ApplyResult",
    "Checkpoint",
    "ExpectedState",
    "Hook",
    "SegmentPlan",
    "StatementSource",
    "StopFlag",
    "TargetPosition",
    "TargetSession",
    "WriteAhead",
    "apply_window",
    "build_too_many_rows_error",
    "expect_after_ddl",
    "expect_tables",
    "read_checkpoint",
    "read_checkpoint_ts",
    "read_open_window",
    "read_position",
]
