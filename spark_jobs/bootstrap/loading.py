"""The full load of a TiDB source: started once, then read range by range until every range is sealed.

A load that was interrupted can be run again at any time and resumes. The drainer entry is registered before the
snapshot's commit_ts is taken, so that pumps keep all later binlogs; the first window from pumps begins at the snapshot.
Until the load is done, plan proposes no window.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import structlog

from binlake.cluster.node import OFFLINE
from binlake.cluster.source.regions import hold_gc
from binlake.errors import CheckpointConflict, ConfigError
from binlake.lake.baseload import BaseLoad, BaseTable
from binlake.lake.lock import hold_lake_lock
from binlake.lake.schemas import SchemaHistory
from binlake.lake.windowlog import WindowEvent
from binlake.mysqlbinlog.tablerows.link import ask
from binlake.pipeline import BY_NAME
from binlake.spark_jobs.bootstrap.ranges import BootstrapRanges
from binlake.spark_jobs.bootstrap.readers import Readers
from binlake.spark_jobs.bootstrap.sealing import Sealer
from binlake.spark_jobs.bootstrap.source import SnapshotSource
from binlake.spark_jobs.bootstrap.structures import DefinitionsDiffer, Structures, read_structures
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.lake import ensure_tables
from binlake.target import read_checkpoint_ts
from binlake.window.membership import RememberedMember, gather_members
from binlake.window.sourcecluster import Cluster, open_cluster

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
