"""What a stage gets and gives back; a stage is `run(context, bounds) -> StageResult` in `spark_jobs.STAGE.stage`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa
from pyspark.sql import SparkSession

from binlake.config import Replication
from binlake.lake.features import can_delta_rs_commit
from binlake.lake.members import MemberTable
from binlake.lake.paths import LakePaths
from binlake.lake.tables import SPARK_TABLES
from binlake.lake.windowlog import WindowLog
from binlake.rules import Rules
from spark_jobs.job.handover import Handover
from spark_jobs.job.lake import Rows
from spark_jobs.job.results import Bounds, StageResult

__all__ = ["Bounds", "StageContext", "StageResult"]

PIECE_BYTES = 64 << 20
"""Bytes of binlogs of a window that another follows at once: what the driver handles in some hundred MiB of memory."""


@dataclass(frozen=True)
class StageContext:
    """One run over one replication. The Spark session is made at first use: plan and finalize need none, nor do small
    windows. `in_pieces`: the caller continues after a window that land cuts short. `handover`: rows for the next
    stage of this process."""

    replication: Replication
    run_id: str
    make_spark: Callable[[], SparkSession]
    stop_ts: int | None = None
    in_pieces: bool = False
    handover: Handover = field(default_factory=Handover, compare=False, repr=False)

    @cached_property
    def spark(self) -> SparkSession:
        """The session of this run."""
        return self.make_spark()

    def is_small(self, bounds: Bounds) -> bool:
        """The driver handles the landed windows of `bounds` itself: fewer payload bytes than a Spark job is worth."""
        return self.fits_driver(sum(manifest.bytes for manifest in self.windows.manifests(bounds.lo, bounds.hi)))

    def fits_driver(self, size: int) -> bool:
        """The driver handles `size` bytes of payload itself."""
        return 0 < self.driver_bytes >= size

    @property
    def most_bytes(self) -> int:
        """Bytes of binlogs at which land ends a window; 0 = it does not."""
        configured = self.replication.window.max_bytes
        return configured if configured is not None else PIECE_BYTES if self.in_pieces else 0

    @cached_property
    def driver_bytes(self) -> int:
        """`window.driver-bytes`; 0 where delta-rs cannot commit to the tables: in the lake of an older Binlake."""
        ours = all(can_delta_rs_commit(self.paths, table) for table in SPARK_TABLES)
        return self.replication.window.driver_bytes if ours else 0

    def rows_to_write(self, rows: pa.Table) -> Rows:
        """`rows` of the driver, for the code that commits to this lake's tables."""
        return rows if self.driver_bytes else self.spark.createDataFrame(rows)

    @property
    def drainer_id(self) -> str:
        """The replication's name in the registry, as a consumer that closing pumps and their GC wait for."""
        return f"binlake-{self.replication.name}"

    @cached_property
    def paths(self) -> LakePaths:
        """The lake of this replication."""
        return LakePaths.of(self.replication)

    @cached_property
    def rules(self) -> Rules:
        """Which changes are replicated and under which names."""
        return Rules.of(self.replication)

    @cached_property
    def windows(self) -> WindowLog:
        """The table `window`."""
        return WindowLog(self.paths)

    @cached_property
    def members(self) -> MemberTable:
        """The table `pump_member`."""
        return MemberTable(self.paths)
