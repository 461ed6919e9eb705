"""land: pull the window, prove it complete, fetch its DDL jobs, seal the manifest. A landed window is immutable.

Order of durability: rows in `binlog`, jobs in `schema_change`, then the seal. A crash before the seal leaves rows above
the landed ts, which the next attempt replaces; a rerun after it verifies the digest and writes nothing (hazards R-03).
"""

from __future__ import annotations

import shutil
import time
from dataclasses import replace

import structlog

from binlake.errors import ConflictingBinlogs, ImmutableWindow, IncompleteWindow, LostRange
from binlake.lake import rowhash
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
from spark_jobs.lake import ensure_tables, may_have, overwrite
from spark_jobs.landed import Landed, landed
from spark_jobs.pulled import NOTHING, Pulled, PulledHere, PumpPart, pull_here
from spark_jobs.pump_source import PumpPull
from spark_jobs.stages.jobs import WindowJobs, fetch_jobs
from spark_jobs.staging import Staged

log = structlog.get_logger(__name__)


def run(ctx: StageContext, bounds: Bounds) -> StageResult:
    """Land (lo, hi] or a shorter window with the same lo; or verify that it is landed.

    Raises IncompleteWindow, LostRange, ConflictingBinlogs, ImmutableWindow, SourceUnavailable.
    """
    began = time.monotonic()
    with lake_lock(ctx.paths, "landing"):
        sealed = _sealed(ctx, bounds)
        if sealed is not None:
            _verify(ctx, sealed)
            # An attempt that died behind the seal leaves it. What that one did not tell the pumps the next plan tells,
            # so that a landed window goes on without the source.
            _drop_staging(ctx, sealed)
            return _result(sealed, began, "already")
        with open_cluster(ctx.replication) as cluster:
            manifest, members = _land(ctx, bounds, cluster)
            _seal(ctx, cluster, manifest, members, time.monotonic() - began)
    return _result(manifest, began, "done")


def _sealed(ctx: StageContext, bounds: Bounds) -> WindowManifest | None:
    landed_ts = ctx.windows.landed_ts()
    found = next((window for window in ctx.windows.landed((bounds.lo, bounds.lo + 1)) if window[0] == bounds.lo), None)
    if found is not None:
        return ctx.windows.manifest(*found)
    if landed_ts is not None and bounds.lo != landed_ts:
        raise ImmutableWindow(
            f"the window does not start at the landed ts {landed_ts}",
            where={"window": bounds.window},
            hint="landed windows tile: let plan propose the window",
        )
    return None


def _verify(ctx: StageContext, sealed: WindowManifest) -> None:
    if not sealed.digest.startswith(rowhash.VERSION):
        log.warning("not verified: an older Binlake sealed it, with another digest", window=sealed.window)
        return
    found = landed(ctx, Bounds(sealed.lo, sealed.hi), here=ctx.takes(sealed.bytes))
    if found.digest != sealed.digest:
        raise ImmutableWindow(
            "the landed rows are not those that were sealed",
            where={"window": sealed.window, "sealed": sealed.digest[:12], "found": found.digest[:12]},
            hint="`binlog` was changed after landing: restore it by Delta time travel",
        )


def _land(ctx: StageContext, bounds: Bounds, cluster: Cluster) -> tuple[WindowManifest, list[Member]]:
    members = _members(ctx, cluster, bounds)
    pulled = _pull(ctx, cluster, members, bounds)
    parts = pulled.survey(bounds)
    proofs = tuple(_proof(cluster, member, parts.get(member.node_id, NOTHING), bounds) for member in members)
    if sum(part.entities > 0 for part in parts.values()) > 1:
        _refuse_conflicts(pulled, bounds)
    jobs = fetch_jobs(ctx, cluster.source, pulled, list(parts.values()), bounds)
    bounds = replace(bounds, hi=jobs.hi)
    ensure_tables(ctx.paths)
    note = {"run": ctx.run_id, "window": bounds.window, "stage": "land"}
    # All above lo is replaced: an unsealed attempt with a greater hi may have left rows there.
    above = f"commit_ts > {bounds.lo}"
    written = 0
    if any(part.entities for part in parts.values()) or may_have(ctx.paths, BINLOG, above):
        written = overwrite(pulled.transactions(bounds), ctx.paths, BINLOG, above, note)
    SchemaHistory(ctx.paths).append(bounds.hi, jobs.changes)
    found = landed(ctx, bounds, here=isinstance(pulled, PulledHere))
    if found.rows != written:
        raise IncompleteWindow(
            f"{written} rows were written to `binlog` and {found.rows} are there",
            where={"window": bounds.window},
            hint="the stage may run again; nothing but Binlake may commit to its tables",
        )
    return _manifest(ctx, cluster, found, bounds, proofs, jobs), members


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


def _pull(ctx: StageContext, cluster: Cluster, members: list[Member], bounds: Bounds) -> Pulled:
    """Every member's part of (lo, hi] with its proof, by the driver alone unless that is too much for it."""
    pumps = tuple((member.node_id, member.host) for member in members if not member.drained(bounds.lo))
    pull = PumpPull(pumps, cluster.cluster_id, bounds.lo, bounds.hi, cluster.timeout_s, cluster.tls)
    rows = pull_here(pull, ctx.driver_bytes) if ctx.driver_bytes else None
    return Staged.by(ctx, pull) if rows is None else PulledHere(rows)


def _refuse_conflicts(pulled: Pulled, bounds: Bounds) -> None:
    found = pulled.conflict(bounds)
    if found is not None:
        raise ConflictingBinlogs(
            "two pumps hold different content for one commit_ts",
            where={"window": bounds.window, "commit_ts": found},
            hint="one of the pumps is damaged or of another cluster: compare them with PullBinlogs; nothing was landed",
        )


def _manifest(
    ctx: StageContext,
    cluster: Cluster,
    found: Landed,
    bounds: Bounds,
    proofs: tuple[MemberProof, ...],
    jobs: WindowJobs,
) -> WindowManifest:
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
    # Never ahead of the seal, and not left to the next plan: pumps that close wait for it (hazards R-05), and what they
    # may collect hangs on it.
    cluster.registry.publish_drainer(ctx.drainer_id, manifest.hi)
    _drop_staging(ctx, manifest)
    log.info("landed", window=manifest.window, transactions=rows, bytes=manifest.bytes, digest=manifest.digest[:12])


def _drop_staging(ctx: StageContext, manifest: WindowManifest) -> None:
    shutil.rmtree(ctx.paths.staging(str(manifest.lo)), ignore_errors=True)


def _result(manifest: WindowManifest, began: float, state: str) -> StageResult:
    rows = manifest.dml + manifest.ddls
    detail = {"ddl": manifest.ddls, "bytes": manifest.bytes, "pumps": [proof.node_id for proof in manifest.members]}
    return StageResult("land", state, manifest.lo, manifest.hi, rows, time.monotonic() - began, "", detail)
