"""The full load of a TiDB source: started once, then read range by range until every range is sealed.

A load that was interrupted can be run again at any time and resumes. The drainer entry is registered before the
snapshot's commit_ts is taken, so that pumps keep all later binlogs; the first window from pumps begins at the snapshot.
Until the load is done, plan proposes no window.

Rows are sealed as windows of the lake, in the order of commit_ts, bounded in size and without a gap. Their manifests
are like those of any landed window, but without members: the rows came from no pump, so no pump is asked for them
again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import structlog

from binlake.cluster.node import OFFLINE
from binlake.cluster.source.regions import hold_gc
from binlake.common import rowhash
from binlake.errors import CheckpointConflict, ConfigError
from binlake.feed.state import list_begins
from binlake.lake.baseload import BaseLoad, BaseTable, LoadedRange
from binlake.lake.continuity import LANDED_TABLES, VERSIONS, read_versions
from binlake.lake.lock import hold_lake_lock
from binlake.lake.schemas import SchemaHistory
from binlake.lake.tables import BINLOG
from binlake.lake.windowlog import WindowEvent
from binlake.mysqlbinlog.tablerows.link import ask
from binlake.pipeline import BY_NAME
from binlake.spark_jobs.bootstrap.reading import BootstrapRanges, Readers, build_binlog_table
from binlake.spark_jobs.bootstrap.source import DefinitionsDiffer, SnapshotSource, Structures, read_structures
from binlake.spark_jobs.job.context import PIECE_BYTES, Bounds, StageContext
from binlake.spark_jobs.job.lake import commit_parts, ensure_tables, overwrite
from binlake.spark_jobs.land.binlogfiles import Landed, measure_landed
from binlake.target import read_checkpoint_ts
from binlake.window.manifest import WindowManifest
from binlake.window.membership import RememberedMember, gather_members
from binlake.window.sourcecluster import Cluster, open_cluster
from binlake.wire import binlog_pb2 as pb

log = structlog.get_logger(__name__)
ROOM = 1 << 36
"""commit_ts values reserved for the load, just below the snapshot's commit_ts: 262 seconds of the source's time."""
_TRIES = 30
_AGAIN_S = 1.0  # pause before a later snapshot is tried, if the DDL history does not match the first one yet


@dataclass(frozen=True)
class BootstrapProgress:
    """The progress of a load."""

    load: BaseLoad
    rows: int
    tables_read: int


@dataclass
class BootstrapLoader:
    """Loads the source of `ctx`.

    `show` gets the progress, `sealed` each sealed window; `pause` waits before a later snapshot is tried.
    """

    ctx: StageContext
    show: Callable[[BootstrapProgress], None]
    sealed: Callable[[Bounds], None] = lambda _: None
    pause: Callable[[float], None] = time.sleep
    _began: float = field(default_factory=time.monotonic)

    def load(self, at_ts: int | None = None) -> BaseLoad:
        """Resume this lake's load, or start one: as of `at_ts`, or as of now if `at_ts` is None.

        Raises ConfigError, CheckpointConflict, DefinitionsDiffer, SourceUnavailable, SourceRefused, LostRange.
        """
        ctx = self.ctx
        table = BaseTable(ctx.paths)
        with hold_lake_lock(ctx.paths, BY_NAME["land"].lock):
            known = table.load()
            if known is not None and known.done:
                return known
            with open_cluster(ctx.replication) as cluster:
                self._require_not_offline(cluster)
                if known is None:
                    self._require_new(cluster)
                    cluster.registry.publish_drainer(ctx.drainer_id, cluster.pd.fetch_ts() if at_ts is None else at_ts)
                load, structures = self._open_load(cluster, known, at_ts)
                with hold_gc(ctx.replication.source, f"binlake-load-{ctx.replication.name}", load.base_ts):
                    done = self._read_all(table, cluster, load, structures)
                self._remember_members(cluster, done)
                table.record(done, ctx.run_id, time.monotonic() - self._began)
                cluster.registry.publish_drainer(ctx.drainer_id, done.base_ts)
        log.info("base_loaded", base_ts=str(done.base_ts), rows=done.rows, tables=done.tables)
        return done

    def _require_not_offline(self, cluster: Cluster) -> None:
        entry = cluster.registry.find_drainer(self.ctx.drainer_id)
        if entry is not None and entry.status.state == OFFLINE:
            raise ConfigError(
                "the replication was taken offline: pumps would delete the binlogs that come after the load",
                where={"drainer": self.ctx.drainer_id},
                hint=f"run `binlake resume-drainer -node-id {self.ctx.drainer_id}` first",
            )

    def _require_new(self, cluster: Cluster) -> None:
        ctx = self.ctx
        started = ctx.windows.start_ts()
        if started is not None:
            raise CheckpointConflict(
                "this lake already has windows without a full load; a full load must come before all windows",
                where={"lake_starts": started},
                hint="give the replication a new lake folder, and a target without a checkpoint",
            )
        checkpoint = read_checkpoint_ts(ctx.replication, cluster.cluster_id)
        if checkpoint is not None:
            raise CheckpointConflict(
                "the target has a checkpoint, so it already holds a base; this load would be an older or another one",
                where={"checkpoint": checkpoint},
                hint="run windows, which begin at the checkpoint; or load into an empty target",
            )

    def _open_load(self, cluster: Cluster, known: BaseLoad | None, at_ts: int | None) -> tuple[BaseLoad, Structures]:
        """The load and the structures it reads, both of one snapshot. A new load is recorded first."""
        if known is not None:
            if at_ts not in (None, known.base_ts):
                raise ConfigError(
                    "this lake's load was started with another snapshot",
                    where={"base_ts": known.base_ts, "asked": at_ts},
                    hint="omit --at to resume that load; or give the replication a new lake folder",
                )
            return known, self._read_structures(cluster, known.base_ts)
        for left in reversed(range(_TRIES)):
            base_ts = cluster.pd.fetch_ts() if at_ts is None else at_ts
            try:
                structures = self._read_structures(cluster, base_ts)
            except DefinitionsDiffer as error:
                if at_ts is not None or not left:
                    raise
                log.info("snapshot_retried", reason=str(error))
                self.pause(_AGAIN_S)
            else:
                return self._begin_load(base_ts, structures), structures
        raise AssertionError("the last try returns or raises")

    def _read_structures(self, cluster: Cluster, base_ts: int) -> Structures:
        with SnapshotSource.of(self.ctx.replication, base_ts).open_session() as link:
            structures = read_structures(cluster.source, link, base_ts, self.ctx.rules)
        if structures.left_out:
            log.warning("views_left_out", names=structures.left_out[:20], count=len(structures.left_out))
        return structures

    def _begin_load(self, base_ts: int, structures: Structures) -> BaseLoad:
        ctx = self.ctx
        estimated = sum(table.estimated for table in structures.tables)
        rows = ctx.replication.source.snapshot.chunk_rows
        load = BaseLoad(base_ts - ROOM, base_ts, structures.state.version, rows, len(structures.tables), estimated)
        ensure_tables(ctx.paths)
        table = BaseTable(ctx.paths)
        table.clear()
        SchemaHistory(ctx.paths).begin_base(load.from_ts, load.schema_version)
        table.record(load, ctx.run_id)
        return load

    def _read_all(self, table: BaseTable, cluster: Cluster, load: BaseLoad, structures: Structures) -> BaseLoad:
        ctx = self.ctx
        sealer = Sealer(ctx, cluster.cluster_id, load, self.sealed)
        if (ctx.windows.start_ts() or load.base_ts) > load.from_ts:
            detail = {"initial_commit_ts": ctx.replication.initial_commit_ts}
            ctx.windows.record(
                WindowEvent("start", load.from_ts, load.from_ts, "done", run_id=ctx.run_id, detail=detail)
            )
        if sealer.lo == load.from_ts:
            sealer.seal_structures(structures)
        else:
            self._require_same_rules()
        chunks = table.read_chunks()
        source = SnapshotSource.of(ctx.replication, load.base_ts)
        with source.open_session() as link:
            row_id = "_tidb_rowid" if "tidb" in str(ask(link, "SELECT VERSION()")[0][0]).lower() else ""
        ranges = BootstrapRanges(load, structures.tables, sealer.lo + 1, chunks, row_id)
        rows = sum(chunk.rows for chunk in chunks)
        sealer.add([chunk for chunk in chunks if chunk.first_ts > sealer.lo], ranges.complete_below())
        self.show(BootstrapProgress(load, rows, ranges.tables_read))
        with Readers(source, ranges, load.schema_version, ctx) as readers:
            for read in readers.iterate_results():
                table.add([chunk for _, chunk in read])
                for given, chunk in read:
                    ranges.end(given)
                    rows += chunk.rows
                windows = sealer.windows
                sealer.add([chunk for _, chunk in read], ranges.complete_below())
                if sealer.windows > windows:
                    table.record(replace(load, rows=rows), ctx.run_id)
                self.show(BootstrapProgress(load, rows, ranges.tables_read))
        sealer.finish()
        return replace(load, done=True, rows=rows)

    def _require_same_rules(self) -> None:
        first = self.ctx.windows.list_landed()[0]
        manifest = self.ctx.windows.read_manifest(*first)
        if manifest is not None and manifest.config_hash != self.ctx.replication.compute_data_hash():
            raise ConfigError(
                "filters or routes have changed since the load started",
                hint="restore the old ones until the load is done; or give the replication a new lake folder",
            )

    def _remember_members(self, cluster: Cluster, load: BaseLoad) -> None:
        """Record the pumps that hold the binlogs after the load, so that the loss of one is noticed from now on."""
        members = gather_members(
            cluster.registry.list_pumps(), self.ctx.members.read_all(), load.base_ts, cluster.probe
        )
        self.ctx.members.remember(
            [RememberedMember(m.node_id, m.store_uuid, m.state, m.watermark, load.base_ts) for m in members]
        )


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
