"""The input and result of a stage; a stage is `run(context, bounds) -> StageResult` in `spark_jobs.STAGE.stage`."""

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
"""Binlog bytes of a window that another one follows at once: what the driver can process in a few hundred MiB."""


@dataclass(frozen=True)
class StageContext:
    """One run over one replication.

    The Spark session is created at first use: plan, finalize and small windows need none. `in_pieces`: the caller
    continues after a window that land cuts short. `handover`: rows for the next stage in this process.
    """

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
        """True if the driver processes the landed windows of `bounds` itself: too few bytes to justify a Spark job."""
        return self.fits_driver(sum(manifest.bytes for manifest in self.windows.read_manifests(bounds.lo, bounds.hi)))

    def fits_driver(self, size: int) -> bool:
        """True if the driver processes `size` bytes of payload itself."""
        return 0 < self.driver_bytes >= size

    @property
    def most_bytes(self) -> int:
        """Bytes of binlogs at which land ends a window; 0 = no limit."""
        configured = self.replication.window.max_bytes
        return configured if configured is not None else PIECE_BYTES if self.in_pieces else 0

    @cached_property
    def driver_bytes(self) -> int:
        """`window.driver-bytes`; 0 if delta-rs cannot commit to the tables, as in the lake of an older Binlake."""
        ours = all(can_delta_rs_commit(self.paths, table) for table in SPARK_TABLES)
        return self.replication.window.driver_bytes if ours else 0

    def prepare_rows(self, rows: pa.Table) -> Rows:
        """`rows` of the driver, in the form that this lake's tables are written with."""
        return rows if self.driver_bytes else self.spark.createDataFrame(rows)

    @property
    def drainer_id(self) -> str:
        """The replication's name in the registry: closing pumps and pump GC wait for this consumer."""
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
