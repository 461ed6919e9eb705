"""A lake whose windows are landed by hand, to test the stages after land without pumps on the same tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from support.jobhistory import in_version_order

from binlake import tso
from binlake.config import Replication
from binlake.lake.continuity import LANDED_TABLES, VERSIONS, read_versions
from binlake.lake.parts import write_parts
from binlake.lake.schemas import SchemaHistory
from binlake.lake.tables import BINLOG, parse_schema
from binlake.lake.windowlog import WindowEvent
from binlake.rows.schema import DdlJob, SchemaState, classify_ddl
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.lake import build_local_table, ensure_tables, replace_history
from binlake.spark_jobs.stages import merge
from binlake.testkit.captures.capture import Capture
from binlake.window.manifest import WindowManifest
from binlake.wire import binlog_pb2 as pb

CLUSTER_ID = 7


@dataclass
class Source:
    """A source's log: complete binlogs (C with the value of their P) in commit order, and its DDL jobs."""

    binlogs: list[pb.Binlog]
    jobs: list[DdlJob]

    @classmethod
    def of(cls, payloads: Iterable[bytes], jobs: Iterable[dict[str, Any]]) -> Source:
        prewrites: dict[int, pb.Binlog] = {}
        complete = []
        for binlog in map(pb.Binlog.FromString, payloads):
            if binlog.tp == pb.Prewrite:
                prewrites[binlog.start_ts] = binlog
            elif binlog.tp == pb.Commit:
                binlog.prewrite_value = prewrites.pop(binlog.start_ts).prewrite_value
                complete.append(binlog)
        return cls(sorted(complete, key=lambda b: b.commit_ts), [DdlJob.from_dict(job) for job in jobs])

    @classmethod
    def of_workload(cls, workload: Any) -> Source:
        return cls.of((b.SerializeToString() for b in workload.logged), workload.jobs)

    @classmethod
    def of_capture(cls, folder: Path) -> Source:
        capture = Capture(folder)
        return cls.of(capture.read_binlogs(), capture.read_jobs())

    def changes(self) -> list[tuple[int, DdlJob]]:
        """(commit_ts, job): the position of a job is that of its binlog, or else its end."""
        logged = {b.ddl_job_id: b.commit_ts for b in self.binlogs if _is_ddl(b)}
        return [(logged.get(job.id, job.finished_ts), job) for job in self.jobs]


def _is_ddl(binlog: pb.Binlog) -> bool:
    return bool(binlog.ddl_query) and classify_ddl(binlog.ddl_query.decode(), binlog.ddl_schema_state) == "ddl"


@dataclass
class Lakehouse:
    """Lands and merges windows of a source one after the other; without `spark`, a stage that asks for it fails."""

    spark: SparkSession | None
    root: Path
    source: Source
    config: dict[str, Any] = field(default_factory=dict)

    def context(self, run_id: str = "test") -> StageContext:
        raw = {"name": "demo", "lake": {"path": str(self.root)}, **self.config}
        return StageContext(Replication.model_validate(raw), run_id, self._session)

    def _session(self) -> SparkSession:
        assert self.spark is not None, "this stage must not need Spark"
        return self.spark

    def land(self, lo: int, hi: int) -> Bounds:
        """Land and merge the window (lo, hi]."""
        ctx, bounds = self.context(), Bounds(lo, hi)
        self.land_only(lo, hi)
        merge.run(ctx, bounds)
        return bounds

    def land_only(self, lo: int, hi: int, chunks: int = 1) -> None:
        """Land the window (lo, hi] with each payload in `chunks` chunks."""
        ctx, bounds = self.context(), Bounds(lo, hi)
        ensure_tables(ctx.paths)
        binlogs = [b for b in self.source.binlogs if lo < b.commit_ts <= hi]
        rows = [row for b in binlogs for row in _rows(b, chunks)]
        size, found = sum(len(row[-1]) for row in rows), build_local_table(rows, BINLOG.build_spark_schema())
        # In several row groups, so that an engine can divide them.
        stored = found.cast(parse_schema(BINLOG.build_spark_schema()))
        slices = (stored.slice(first, 8) for first in range(0, stored.num_rows, 8))
        parts = write_parts(ctx.paths.locate_table(BINLOG.name), BINLOG, slices)
        replace_history(ctx.paths, BINLOG, lo, None, parts, {"window": bounds.window})
        version = self._history(ctx, bounds)
        ddls = sum(bool(b.ddl_query) for b in binlogs)
        chunked = len(binlogs) if chunks > 1 else 0
        config = ctx.replication.compute_data_hash()
        manifest = WindowManifest(
            "demo", CLUSTER_ID, lo, hi, config, (), len(binlogs) - ddls, ddls, chunked, size, version, "-"
        )
        detail = {VERSIONS: read_versions(ctx.paths, LANDED_TABLES)}
        event = WindowEvent("land", lo, hi, "done", len(binlogs), detail=detail, manifest=manifest.to_json())
        ctx.windows.record(event)

    def _history(self, ctx: StageContext, bounds: Bounds) -> int:
        history, changes = SchemaHistory(ctx.paths), self.source.changes()
        if not history.exists():
            past = {job.id: ts for ts, job in changes if ts <= bounds.lo}
            jobs = in_version_order(job for _, job in changes if job.id in past)
            history.begin(bounds.lo, SchemaState().fold((past[job.id], job) for job in jobs))
        inside = sorted(
            (c for c in changes if bounds.lo < c[0] <= bounds.hi), key=lambda c: (c[0], c[1].schema_version)
        )
        history.append(bounds.hi, inside)
        return history.read_state_at(bounds.hi).version


def _rows(b: pb.Binlog, chunks: int) -> Iterator[tuple[Any, ...]]:
    payload = pb.Binlog.FromString(b.SerializeToString()).SerializeToString()
    kind = "ddl" if b.ddl_query else "dml"
    day = tso.to_datetime(b.commit_ts).date()
    size = -(-len(payload) // chunks)
    # Last chunk first: a reader that joins chunks must sort them by number.
    for chunk in reversed(range(chunks)):
        part = payload[chunk * size : (chunk + 1) * size]
        yield (b.commit_ts, b.start_ts, chunk, day, "pump-1", kind, 0, b.ddl_job_id, b.ddl_schema_state, part)


def rows_of(table: Any, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The rows of a Delta table at `table`, read through delta-rs, not through the engine that wrote it."""
    from deltalake import DeltaTable

    return DeltaTable(str(table)).to_pyarrow_dataset().to_table(columns=names).to_pylist()
