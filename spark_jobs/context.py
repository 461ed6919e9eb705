"""What a stage gets and what it gives back; a stage is `run(context, bounds) -> StageResult` in `spark_jobs.stages`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pyspark.sql import SparkSession

from binlake.config import Replication
from binlake.lake.members import MemberTable
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowLog
from binlake.window.manifest import window_name


@dataclass(frozen=True)
class Bounds:
    """The window (lo, hi] a stage works on; both are commit_ts."""

    lo: int
    hi: int

    @property
    def window(self) -> str:
        """`lo-hi`."""
        return window_name(self.lo, self.hi)


@dataclass(frozen=True)
class StageResult:
    """How a stage ended: `state` done, already, ready, blocked, waiting or skipped; bounds; rows; seconds; detail."""

    stage: str
    state: str
    lo: int
    hi: int
    rows: int = 0
    seconds: float = 0.0
    blocked_by: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For XCom and `--output json`: commit_ts as decimal strings (invariant 12)."""
        return {**vars(self), "lo": str(self.lo), "hi": str(self.hi), "detail": dict(self.detail)}


@dataclass(frozen=True)
class StageContext:
    """One run over one replication. The Spark session is made at first use: plan and finalize need none."""

    replication: Replication
    run_id: str
    make_spark: Callable[[], SparkSession]
    stop_ts: int | None = None

    @cached_property
    def spark(self) -> SparkSession:
        """The session of this run."""
        return self.make_spark()

    @cached_property
    def paths(self) -> LakePaths:
        """The lake of this replication."""
        return LakePaths.of(self.replication)

    @cached_property
    def windows(self) -> WindowLog:
        """The table `window`."""
        return WindowLog(self.paths)

    @cached_property
    def members(self) -> MemberTable:
        """The table `pump_member`."""
        return MemberTable(self.paths)
