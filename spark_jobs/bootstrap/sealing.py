"""Seals the rows of a full load as windows of the lake, in the order of commit_ts, bounded in size and without a gap.

Their manifests are like those of any landed window, but without members: the rows came from no pump, so no pump is
asked for them again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from binlake.base import rowhash
from binlake.feed.state import list_begins
from binlake.lake.baseload import BaseLoad, LoadedRange
from binlake.lake.continuity import LANDED_TABLES, VERSIONS, read_versions
from binlake.lake.schemas import SchemaHistory
from binlake.lake.tables import BINLOG
from binlake.lake.windowlog import WindowEvent
from binlake.spark_jobs.bootstrap.reading import build_binlog_table
from binlake.spark_jobs.bootstrap.structures import Structures
from binlake.spark_jobs.job.context import PIECE_BYTES, Bounds, StageContext
from binlake.spark_jobs.job.lake import commit_parts, overwrite
from binlake.spark_jobs.tables.landed import Landed, measure_landed
from binlake.window.manifest import WindowManifest
from binlake.wire import binlog_pb2 as pb

log = structlog.get_logger(__name__)


class Sealer:
    """Seals the windows of `load` and calls `sealed` after each. The caller holds the lake's lock `landing`."""

    def __init__(self, ctx: StageContext, cluster_id: int, load: BaseLoad, sealed: Callable[[Bounds], None]) -> None:
        self._ctx = ctx
        self._cluster_id = cluster_id
        self._load = load
        self._sealed = sealed
        self._waiting: list[LoadedRange] = []
        self.windows = 0
        self._most_bytes = PIECE_BYTES if ctx.most_bytes == 0 else ctx.most_bytes

    @property
    def lo(self) -> int:
        """Where the next window starts."""
        landed = self._ctx.windows.find_landed_ts()
        return self._load.from_ts if landed is None else landed

    def seal_structures(self, structures: Structures) -> None:
        """Seal the first window: the DDL that creates the tables."""
        load, paths = self._load, self._ctx.paths
        jobs = structures.build_jobs(load.from_ts)
        bounds = Bounds(load.from_ts, load.from_ts + max(len(jobs), 1))
        history = SchemaHistory(paths)
        history.append_base(bounds.hi, jobs, structures.state)
        rows = [(ts, job.id, _encode_ddl_binlog(ts, job.id, job.query)) for ts, job in jobs]
        table = build_binlog_table(rows, "ddl", load.schema_version)
        overwrite(table, paths, BINLOG, f"commit_ts > {load.from_ts}", self._build_note(bounds))
        self._seal(bounds, measure_landed(table), 0.0)

    def add(self, chunks: Sequence[LoadedRange], complete_below: int) -> None:
        """Add `chunks` that were read; seal the windows that are full and lie entirely below `complete_below`."""
        self._waiting = sorted([*self._waiting, *chunks], key=lambda chunk: chunk.first_ts)
        while (full := self._find_full_window(complete_below)) is not None:
            self._seal_chunks(full, full[-1].last_ts)

    def finish(self) -> None:
        """Called when all ranges are read: seal the rest, up to the snapshot's commit_ts."""
        if self.lo < self._load.base_ts:
            self._seal_chunks(self._waiting, self._load.base_ts)

    def _find_full_window(self, complete_below: int) -> list[LoadedRange] | None:
        size = 0
        for number, chunk in enumerate(self._waiting):
            if chunk.last_ts >= complete_below:
                return None
            size += chunk.bytes
            if size >= self._most_bytes:
                return self._waiting[: number + 1]
        return None

    def _seal_chunks(self, chunks: Sequence[LoadedRange], hi: int) -> None:
        began, bounds, paths = time.monotonic(), Bounds(self.lo, hi), self._ctx.paths
        # An attempt that died before the seal may have committed these files: Delta counts a file added twice once.
        parts = [part for chunk in chunks for part in chunk.parts]
        if parts:
            commit_parts(paths, BINLOG, parts, [], self._build_note(bounds))
        fold = rowhash.merge_folds(chunk.fold for chunk in chunks)
        counts = (sum(chunk.transactions for chunk in chunks), 0, 0, sum(chunk.bytes for chunk in chunks))
        self._waiting = self._waiting[len(chunks) :]
        self._seal(bounds, Landed(*counts, fold), time.monotonic() - began)

    def _seal(self, bounds: Bounds, landed: Landed, seconds: float) -> None:
        ctx = self._ctx
        manifest = WindowManifest(
            replication=ctx.replication.name,
            cluster_id=self._cluster_id,
            lo=bounds.lo,
            hi=bounds.hi,
            config_hash=ctx.replication.compute_data_hash(),
            members=(),
            dml=landed.dml,
            ddls=landed.ddls,
            chunks=0,
            bytes=landed.bytes,
            schema_version=self._load.schema_version,
            digest=landed.digest,
        )
        detail = {"base_ts": str(self._load.base_ts), VERSIONS: read_versions(ctx.paths, LANDED_TABLES)}
        event = WindowEvent("land", bounds.lo, bounds.hi, "done", landed.rows, seconds, ctx.run_id, detail=detail)
        begins = list_begins(ctx.windows, ctx.replication.feed, bounds.lo, ctx.run_id)
        ctx.windows.record_together([replace(event, manifest=manifest.to_json()), *begins])
        self.windows += 1
        log.info("base_window_sealed", window=bounds.window, transactions=landed.rows, bytes=landed.bytes)
        self._sealed(bounds)

    def _build_note(self, bounds: Bounds) -> dict[str, str]:
        return {"run": self._ctx.run_id, "window": bounds.window, "stage": "base"}


def _encode_ddl_binlog(ts: int, job_id: int, query: str) -> bytes:
    message = pb.Binlog(
        tp=pb.Commit, start_ts=ts - 1, commit_ts=ts, prewrite_key=b"", ddl_query=query.encode(), ddl_job_id=job_id,
        ddl_schema_state=5,
    )  # fmt: skip
    return message.SerializeToString()
