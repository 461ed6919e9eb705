"""Input and result of a stage, which is `run(context, bounds) -> StageResult` in `binlake.spark_jobs.stages.STAGE`.

A job or command opens its context from its arguments: the replication, and where Spark runs if it is needed.
"""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from binlake.cluster.node import name_consumer
from binlake.common.process import CpuShare
from binlake.common.spans import NO_SPAN, Span
from binlake.config import Replication
from binlake.lake.access import is_remote
from binlake.lake.lock import hold_lake_lock
from binlake.lake.members import MemberTable
from binlake.lake.paths import LakePaths
from binlake.lake.schemas import SchemaHistory
from binlake.lake.windowlog import WindowLog
from binlake.rules import Rules
from binlake.spark_jobs.engine.engine import Engine, LocalEngine
from binlake.spark_jobs.job.results import Bounds, SparkNeeded, StageResult
from binlake.window.events import CPU_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Bounds", "StageContext", "StageResult"]

PIECE_BYTES = 32 << 20
"""Binlog bytes of a window that another one follows at once: what the driver can process in a few hundred MiB."""


class LakeView:
    """Control tables that are read once, until they are refreshed. For one thread."""

    def __init__(self, paths: LakePaths) -> None:
        self.windows = WindowLog(paths, pinned=True)
        self.schemas = SchemaHistory(paths, pinned=True)
        self.members = MemberTable(paths, pinned=True)
        self._is_stored = is_remote(paths.root)
        self._others = -1

    def refresh(self) -> None:
        """Let later reads find what other processes have written.

        In a store they are not looked for in schemas and members if no event came: who changes these records one then.
        """
        self.windows.refresh()
        if self._is_stored:
            before, self._others = self._others, self.windows.count_others()
            if before == self._others:
                return
        self.schemas.refresh()
        self.members.refresh()


@dataclass(frozen=True)
class StageContext:
    """One run over one replication.

    The Spark session is made at first use: plan, finalize and small windows need none. `in_pieces`: the caller
    continues after a window that land cuts short. `view`: the control tables as a stage sees them; without it, they are
    read again each time. `label`: what Spark's pages call the jobs. `has_spark`: whoever started the run named a Spark.
    `large_on_spark`: with engine `auto`, what is larger than `driver-bytes` asks for Spark even if none was named.
    `tell` is called, from any thread, with the result of each stage that has ended. `span`: what the run is traced in.
    `cpu`: what a stage spends, while one runs.
    """

    replication: Replication
    run_id: str
    make_spark: Callable[[], SparkSession]
    stop_ts: int | None = None
    in_pieces: bool = False
    view: LakeView | None = field(default=None, compare=False, repr=False)
    label: str = "binlake"
    hands_on: bool = False
    has_spark: bool = False
    large_on_spark: bool = False
    tell: Callable[[StageResult], None] = field(default=lambda _: None, compare=False, repr=False)
    span: Span = field(default=NO_SPAN, compare=False, repr=False)
    cpu: CpuShare | None = field(default=None, compare=False, repr=False)

    def begin_chain(self) -> StageContext:
        """The context of stages that run one after the other: what one has read of control tables, the next knows."""
        return replace(self, view=LakeView(self.paths), hands_on=True)

    def begin_stage(self, name: str, bounds: Bounds | None = None) -> StageContext:
        """The context of one stage: it sees the control tables as they were when it began, and its own writes."""
        words = [self.replication.name, name, *([bounds.window] if bounds is not None else [])]
        stage = replace(self, view=self.view or LakeView(self.paths), label=" ".join(words))
        stage.refresh()
        return stage

    def refresh(self) -> None:
        """Let the stage see what other processes have written: after it has got a lock, or asked another server."""
        if self.view is not None:
            self.view.refresh()

    @contextmanager
    def hold_lock(self, name: str) -> Iterator[None]:
        """Hold the lake's lock `name`, with a present view of the control tables. Raises LeaseHeld."""
        with hold_lake_lock(self.paths, name) as may_be_new:
            # Otherwise the view is what it was when the stage began, a moment ago.
            if may_be_new:
                self.refresh()
            yield

    @cached_property
    def spark_engine(self) -> Engine:
        """The engine that runs tasks on Spark; makes the session of this run."""
        # Imported late: most runs need no Spark, whose import takes a second.
        from binlake.spark_jobs.engine.spark import SparkEngine

        return SparkEngine(self.make_spark(), self.label, self.span, self.cpu)

    def choose_engine(self, size: int) -> Engine:
        """The engine for a stage over `size` bytes of binlogs, as `window.engine` says."""
        most = self.most_local_bytes
        return LocalEngine.of_window(size, self.span) if most is None or size <= most else self.spark_engine

    @property
    def most_local_bytes(self) -> int | None:
        """Bytes of binlogs up to which this process runs the stages of a window; None = always.

        With `auto` always if there is no Spark that takes more: a single transaction may exceed any limit of a window.
        """
        window = self.replication.window
        if window.engine == "auto" and window.driver_bytes and not (self.has_spark or self.large_on_spark):
            return None
        return window.most_local_bytes

    def prefers_spark(self, size: int | None) -> bool:
        """Whether a window of about `size` bytes of binlogs (None: unknown) runs on Spark as one, not here in pieces.

        With `auto` only if there is a Spark for it: one that was named, not one that this process would start.
        """
        most = self.most_local_bytes
        if most is None or most == 0:
            return most == 0
        return self.has_spark and size is not None and size > most

    def describe_engine(self) -> dict[str, object]:
        """The engine, its jobs and tasks; empty if this process ran everything."""
        # Asking the property would make a session.
        return self.spark_engine.describe() if "spark_engine" in vars(self) else {}

    def describe_work(self, cpu_ahead_s: float = 0.0) -> dict[str, object]:
        """For the event of a stage: the engine, and the CPU seconds since the stage began or recorded an event before.

        `cpu_ahead_s`: what it spent before it began. Servers are not counted: the JVM of Spark, the target, the pumps.
        """
        spent = {} if self.cpu is None else {CPU_SECONDS: round(self.cpu.take_s() + cpu_ahead_s, 3)}
        return {**spent, **self.describe_engine()}

    def choose_engine_for(self, bounds: Bounds) -> Engine:
        """As `choose_engine`, for the landed windows of `bounds`."""
        return self.choose_engine(self.measure(bounds))

    def measure(self, bounds: Bounds) -> int:
        """Bytes of binlogs of the landed windows of `bounds`."""
        return sum(manifest.bytes for manifest in self.windows.read_manifests(bounds.lo, bounds.hi))

    @property
    def most_bytes(self) -> int:
        """Bytes of binlogs at which land ends a window; 0 = no limit."""
        window = self.replication.window
        if window.max_bytes is not None:
            return window.max_bytes
        return PIECE_BYTES if self.in_pieces and window.engine != "spark" else 0

    @property
    def drainer_id(self) -> str:
        """The replication's name in the registry: closing pumps and pump GC wait for this consumer."""
        return name_consumer(self.replication.name)

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
        return WindowLog(self.paths) if self.view is None else self.view.windows

    @cached_property
    def schemas(self) -> SchemaHistory:
        """The schema history."""
        return SchemaHistory(self.paths) if self.view is None else self.view.schemas

    @cached_property
    def members(self) -> MemberTable:
        """The table `pump_member`."""
        return MemberTable(self.paths) if self.view is None else self.view.members


def build_context(replication: Replication, job: str, args: argparse.Namespace, run_id: str = "") -> StageContext:
    """The context of the stages that the command `job` runs; if `run_id` is empty, one is generated."""
    make = build_session_factory(f"binlake-{job}-{replication.name}", args)
    # These commands read ranges of any length, so they start a Spark where none is named.
    return StageContext(replication, run_id or f"{job}-{uuid.uuid4().hex[:12]}", make, large_on_spark=True)


def build_session_factory(app: str, args: argparse.Namespace) -> Callable[[], SparkSession]:
    """How this job gets its session: from a Connect server, a given master, spark-submit's settings, or not at all."""
    if args.without_spark or args.spark_later:
        return _refuse_session
    if args.remote:
        return lambda: _connect(args.remote)
    return lambda: _start(app, args.master)


def _refuse_session() -> SparkSession:
    raise SparkNeeded


def _start(app: str, master: str | None) -> SparkSession:
    # Imported at first use: most runs need no Spark, whose import takes a second.
    from binlake.spark_jobs.engine.spark import start_classic_session

    return start_classic_session(app, master)


def _connect(remote: str) -> SparkSession:
    # Imported at first use: the client loads gRPC, which a session in this process does not need.
    from binlake.spark_jobs.engine.connect import connect_session

    return connect_session(remote)
