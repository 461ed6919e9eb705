"""land: pull the window, prove it complete, fetch its DDL jobs, seal the manifest. A landed window is immutable.

Order of durability: rows in `binlog`, jobs in `schema_change`, then the seal. A crash before the seal leaves rows above
the landed ts, which the next attempt replaces; a rerun after it verifies the digest and writes nothing (hazards R-03).
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, replace

import structlog
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from binlake.errors import ConflictingBinlogs, ImmutableWindow, IncompleteWindow, LostRange
from binlake.lake.lock import lake_lock
from binlake.lake.members import RememberedMember
from binlake.lake.schemas import SchemaHistory
from binlake.lake.tables import BINLOG
from binlake.lake.windowlog import WindowEvent
from binlake.window.manifest import MemberProof, WindowManifest
from binlake.window.membership import gather
from binlake.window.plan import Member, propose
from spark_jobs.cluster import Cluster, open_cluster
from spark_jobs.context import Bounds, StageContext, StageResult
from spark_jobs.lake import ensure_tables, folded, folds, may_have, overwrite, read
from spark_jobs.stages.jobs import WindowJobs, fetch_jobs
from spark_jobs.staging import NOTHING, PumpPart, pull, survey, transactions

log = structlog.get_logger(__name__)

DIGEST_COLUMNS = ["commit_ts", "start_ts", "chunk", "kind", "schema_version", "job_id", "schema_state", "payload"]


def run(ctx: StageContext, bounds: Bounds) -> StageResult:
    """Land (lo, hi] or a shorter window with the same lo; or verify that it is landed.

    Raises IncompleteWindow, LostRange, ConflictingBinlogs, ImmutableWindow, SourceUnavailable.
    """
    began = time.monotonic()
    with lake_lock(ctx.paths, "landing"):
        sealed = _sealed(ctx, bounds)
        if sealed is not None:
            _verify(ctx, sealed)
            _finish(ctx, sealed)
            return _result(sealed, began, "already")
        with open_cluster(ctx.replication) as cluster:
            manifest, members = _land(ctx, bounds, cluster)
            _seal(ctx, cluster, manifest, members, time.monotonic() - began)
    return _result(manifest, began, "done")


def _sealed(ctx: StageContext, bounds: Bounds) -> WindowManifest | None:
    landed = ctx.windows.landed()
    found = next(((lo, hi) for lo, hi in landed if lo == bounds.lo), None)
    if found is not None:
        return ctx.windows.manifest(*found)
    if landed and bounds.lo != landed[-1][1]:
        raise ImmutableWindow(
            f"the window does not start at the landed ts {landed[-1][1]}",
            where={"window": bounds.window},
            hint="landed windows tile: let plan propose the window",
        )
    return None


def _verify(ctx: StageContext, sealed: WindowManifest) -> None:
    found = _landed(ctx, Bounds(sealed.lo, sealed.hi))
    if found.digest != sealed.digest:
        raise ImmutableWindow(
            "the landed rows are not those that were sealed",
            where={"window": sealed.window, "sealed": sealed.digest[:12], "found": found.digest[:12]},
            hint="`binlog` was changed after landing: restore it by Delta time travel",
        )


@dataclass(frozen=True)
class _Landed:
    """What is in `binlog` of a window: transactions by kind, chunks above the first, bytes, digest of all rows."""

    dml: int
    ddls: int
    chunks: int
    bytes: int
    digest: str


def _landed(ctx: StageContext, bounds: Bounds) -> _Landed:
    if not may_have(ctx.paths, BINLOG, f"commit_ts > {bounds.lo}"):
        return _Landed(0, 0, 0, 0, folded((0, None, None)))
    rows = read(ctx.spark, ctx.paths, BINLOG).where(_between(bounds))
    first = F.col("chunk") == 0
    counts = [
        F.count_if(first & (F.col("kind") == "dml")),
        F.count_if(first & (F.col("kind") == "ddl")),
        F.count_if(~first),
        F.coalesce(F.sum(F.length("payload")), F.lit(0)),
    ]
    dml, ddls, chunks, size, *folds_of = rows.agg(*counts, *folds(rows, DIGEST_COLUMNS)).collect()[0]
    return _Landed(dml, ddls, chunks, size, folded(folds_of))


def _between(bounds: Bounds) -> str:
    return f"commit_ts > {bounds.lo} AND commit_ts <= {bounds.hi}"


def _land(ctx: StageContext, bounds: Bounds, cluster: Cluster) -> tuple[WindowManifest, list[Member]]:
    members = _members(ctx, cluster, bounds)
    pulled = pull(ctx, cluster.cluster_id, members, bounds)
    parts = survey(pulled, bounds)
    proofs = tuple(_proof(cluster, member, parts.get(member.node_id, NOTHING), bounds) for member in members)
    if sum(part.entities > 0 for part in parts.values()) > 1:
        _refuse_conflicts(pulled, bounds)
    jobs = fetch_jobs(ctx, cluster.source, pulled, list(parts.values()), bounds)
    bounds = replace(bounds, hi=jobs.hi)
    ensure_tables(ctx.spark, ctx.paths, ctx.replication.lake.retention_days)
    note = {"run": ctx.run_id, "window": bounds.window, "stage": "land"}
    # All above lo is replaced: an unsealed attempt with a greater hi may have left rows there.
    above = f"commit_ts > {bounds.lo}"
    if any(part.entities for part in parts.values()) or may_have(ctx.paths, BINLOG, above):
        overwrite(transactions(pulled, bounds), ctx.paths, BINLOG, above, note)
    SchemaHistory(ctx.paths).append(bounds.lo, bounds.hi, jobs.base, jobs.changes)
    return _manifest(ctx, cluster, bounds, proofs, jobs), members


def _members(ctx: StageContext, cluster: Cluster, bounds: Bounds) -> list[Member]:
    tso = cluster.pd.tso()
    members = gather(cluster.registry.pumps(), ctx.members.known(), bounds.lo, cluster.probe)
    plan = propose(lo=bounds.lo, tso=tso, members=members, stop_ts=bounds.hi)
    if plan.state != "ready" or plan.hi < bounds.hi:
        raise IncompleteWindow(
            f"the window cannot be landed now: {plan.reason}", where={"window": bounds.window}, hint="plan again"
        )
    return members


def _proof(cluster: Cluster, member: Member, part: PumpPart, bounds: Bounds) -> MemberProof:
    where = {"pump": member.node_id, "window": bounds.window}
    if member.drained(bounds.lo):
        return MemberProof(member.node_id, member.store_uuid, member.state, 0, 0, 0)
    if part.proof < bounds.hi:
        raise IncompleteWindow(
            f"the pump ended its stream at {part.proof}, below hi",
            where=where,
            hint="look at the pump's log; try again",
        )
    after = cluster.probe(member.host)
    if after.gc_ts > 0 and after.gc_ts >= bounds.lo:
        raise LostRange(
            f"the pump collected binlogs up to {after.gc_ts} during the pull", where=where, hint="see the runbook"
        )
    if member.store_uuid != after.store_uuid or after.node_id not in ("", member.node_id):
        raise IncompleteWindow("the pump changed its data directory during the pull", where=where)
    return MemberProof(member.node_id, member.store_uuid, member.state, after.gc_ts, part.proof, part.entities)


def _refuse_conflicts(pulled: DataFrame, bounds: Bounds) -> None:
    rows = pulled.where(F.col("kind") != "proof").where(_between(bounds))
    conflict = rows.groupBy("commit_ts").agg(F.min("content").alias("a"), F.max("content").alias("b"))
    found = conflict.where(F.col("a") != F.col("b")).orderBy("commit_ts").limit(1).collect()
    if found:
        raise ConflictingBinlogs(
            "two pumps hold different content for one commit_ts",
            where={"window": bounds.window, "commit_ts": found[0]["commit_ts"]},
            hint="one of the pumps is damaged or of another cluster: compare them with PullBinlogs; nothing was landed",
        )


def _manifest(
    ctx: StageContext, cluster: Cluster, bounds: Bounds, proofs: tuple[MemberProof, ...], jobs: WindowJobs
) -> WindowManifest:
    found = _landed(ctx, bounds)
    return WindowManifest(
        replication=ctx.replication.name,
        cluster_id=cluster.cluster_id,
        lo=bounds.lo,
        hi=bounds.hi,
        config_hash=ctx.replication.data_hash(),
        members=proofs,
        dml=found.dml,
        ddls=found.ddls,
        chunks=found.chunks,
        bytes=found.bytes,
        schema_version=jobs.schema_version,
        digest=found.digest,
    )


def _seal(ctx: StageContext, cluster: Cluster, manifest: WindowManifest, members: list[Member], seconds: float) -> None:
    # Remembered before the seal: a pump of a sealed window can never be unknown (hazards R-05).
    ctx.members.remember(
        [RememberedMember(m.node_id, m.store_uuid, m.state, m.watermark, manifest.hi) for m in members]
    )
    rows = manifest.dml + manifest.ddls
    ctx.windows.record(
        WindowEvent("land", manifest.lo, manifest.hi, "done", rows, seconds, ctx.run_id, manifest=manifest.to_json())
    )
    _publish(ctx, cluster, manifest)
    log.info("landed", window=manifest.window, transactions=rows, bytes=manifest.bytes, digest=manifest.digest[:12])


def _finish(ctx: StageContext, sealed: WindowManifest) -> None:
    """What a death right behind the seal left undone, for the last window only."""
    if ctx.paths.local is not None and (ctx.paths.local / "_staging" / str(sealed.lo)).exists():
        with open_cluster(ctx.replication) as cluster:
            _publish(ctx, cluster, sealed)


def _publish(ctx: StageContext, cluster: Cluster, manifest: WindowManifest) -> None:
    # Pumps that close wait for this (hazards R-05): never ahead of the seal.
    if manifest.hi == ctx.windows.landed_ts():
        cluster.registry.publish_drainer(f"binlake-{ctx.replication.name}", manifest.hi)
    # Gone last: it marks that all of the above is done.
    shutil.rmtree(ctx.paths.staging(str(manifest.lo)), ignore_errors=True)


def _result(manifest: WindowManifest, began: float, state: str) -> StageResult:
    rows = manifest.dml + manifest.ddls
    detail = {"ddl": manifest.ddls, "bytes": manifest.bytes, "pumps": [proof.node_id for proof in manifest.members]}
    return StageResult("land", state, manifest.lo, manifest.hi, rows, time.monotonic() - began, "", detail)
