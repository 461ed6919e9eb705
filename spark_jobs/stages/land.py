"""land: pull the window, prove it complete, fetch its DDL jobs, seal the manifest. A landed window is immutable.

Order of durability: rows in `binlog`, jobs in `schema_change`, then the seal. After a crash before the seal, the next
attempt replaces the rows above the landed ts. A rerun after the seal verifies the digest and writes nothing (hazards
R-03).

How full the disks of pumps and lake are is recorded with a window: the pages draw it over time. To measure the lake
means to walk through its folder, so it is done in a lake's first window, and then once in EVERY_MS of commit_ts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import structlog

from binlake import tso
from binlake.common import rowhash
from binlake.common.localfiles import DiskUse, measure_disk
from binlake.ddl.ddls import build_window_schemas
from binlake.ddl.shardlocks import Locks
from binlake.errors import ConflictingBinlogs, ImmutableWindow, IncompleteWindow, LostRange
from binlake.feed.state import list_begins
from binlake.lake.continuity import LANDED_TABLES, VERSIONS, Opened, read_versions, require_all_windows
from binlake.lake.controltables import SCHEMA_CHANGE
from binlake.lake.paths import LakePaths
from binlake.lake.payloads import PayloadRange
from binlake.lake.tables import BINLOG, MUTATION
from binlake.lake.windowlog import WindowEvent
from binlake.pipeline import BY_NAME
from binlake.spark_jobs.engine.engine import Keeper, LocalEngine
from binlake.spark_jobs.job.context import Bounds, StageContext, StageResult
from binlake.spark_jobs.job.decoding import DecodeAhead, DecodedAhead, Decoder, MergeTask
from binlake.spark_jobs.job.lake import ensure_tables, replace_history
from binlake.spark_jobs.job.pieces import LandedWindow
from binlake.spark_jobs.job.results import BYTES, CUT
from binlake.spark_jobs.land.binlogfiles import Landed, read_landed
from binlake.spark_jobs.land.ddljobs import WindowJobs, fetch_jobs
from binlake.spark_jobs.land.pulled import NOTHING, LandedTransactions, Pulled, PumpPart
from binlake.spark_jobs.land.pulling import pull_window
from binlake.spark_jobs.land.pump_source import PumpPull
from binlake.window.events import DISK
from binlake.window.manifest import MemberProof, OfWindow, WindowManifest
from binlake.window.membership import RememberedMember, gather_members
from binlake.window.plan import Member, propose_window
from binlake.window.sourcecluster import Cluster, open_cluster

log = structlog.get_logger(__name__)

EVERY_MS = 300_000
"""A lake of 100,000 files takes about a second to measure."""


def run(ctx: StageContext, bounds: Bounds) -> StageResult:
    """Land (lo, hi] or a shorter window with the same lo; if it is already landed, verify it.

    Raises IncompleteWindow, LostRange, ConflictingBinlogs, ImmutableWindow, SourceUnavailable.
    """
    began = time.monotonic()
    with ctx.hold_lock(BY_NAME["land"].lock):
        sealed = _find_sealed(ctx, bounds)
        if sealed is not None:
            # If an attempt that died after the seal did not publish the landed ts to the pumps, the next plan does, so
            # a landed window can continue without the source.
            _verify(ctx, sealed)
            return _build_result(sealed, began, "already", {})
        with open_cluster(ctx.replication) as cluster:
            present = require_all_windows(ctx.paths, ctx.windows, ("land",))
            members = _require_members(ctx, cluster, bounds)
            ensure_tables(ctx.paths)
            window = _complete(ctx, cluster, members, bounds, ctx.most_bytes)
            stored = _store(ctx, window, present)
            manifest = _build_manifest(ctx, cluster, stored.landed, window)
            # The other table was only read, unless there was a DDL.
            unchanged = {} if window.jobs.changes else {SCHEMA_CHANGE.name: present.get(SCHEMA_CHANGE.name)}
            versions = read_versions(ctx.paths, LANDED_TABLES, unchanged)
            _seal(ctx, cluster, manifest, members, versions, time.monotonic() - began)
    result = _build_result(manifest, began, "done", {CUT: True} if window.is_cut else {})
    rows = window.pulled.list_whole_rows()
    return replace(result, derived=LandedWindow(window.bounds, rows, _take_decoded(ctx, window.pulled)))


def _find_sealed(ctx: StageContext, bounds: Bounds) -> WindowManifest | None:
    landed_ts = ctx.windows.find_landed_ts()
    landed = next(
        (window for window in ctx.windows.list_landed((bounds.lo, bounds.lo + 1)) if window[0] == bounds.lo), None
    )
    if landed is not None:
        return ctx.windows.read_manifest(*landed)
    if landed_ts is not None and bounds.lo != landed_ts:
        raise ImmutableWindow(
            f"the window does not start at the landed ts {landed_ts}",
            where={"window": bounds.window},
            hint="let plan propose the window: landed windows must follow each other without gaps",
        )
    return None


def _verify(ctx: StageContext, sealed: WindowManifest) -> None:
    if not sealed.digest.startswith(rowhash.VERSION):
        log.warning(
            "landed_rows_not_verified", window=sealed.window, reason="sealed by an older version, with another digest"
        )
        return
    landed = read_landed(ctx, ctx.choose_engine(sealed.bytes), Bounds(sealed.lo, sealed.hi))
    if landed.digest != sealed.digest:
        raise ImmutableWindow(
            "the landed rows differ from the sealed ones",
            where={"window": sealed.window, "sealed": sealed.digest[:12], "found": landed.digest[:12]},
            hint="restore `binlog`, which was changed after landing, by Delta time travel",
        )


@dataclass(frozen=True)
class _Complete:
    """Rows proved to be all rows of `bounds`, and the jobs of its DDL. `is_cut`: the window ends at its byte limit."""

    pulled: Pulled
    bounds: Bounds
    proofs: tuple[MemberProof, ...]
    jobs: WindowJobs
    is_cut: bool

    @property
    def entities(self) -> int:
        """Transactions delivered by the pumps, duplicates included."""
        return sum(proof.entities for proof in self.proofs)


def _store(ctx: StageContext, window: _Complete, present: Opened) -> LandedTransactions:
    """Commit the rows and the jobs of `window`; `present`: tables as opened. Raises IncompleteWindow, Transient."""
    bounds, stored = window.bounds, window.pulled.sum_stored()
    note = {"run": ctx.run_id, "window": bounds.window, "stage": "land"}
    # Replace all rows above lo: an unsealed attempt with a greater hi may have left rows there.
    replace_history(ctx.paths, BINLOG, bounds.lo, None, stored.parts, note, present.get(BINLOG.name))
    ctx.schemas.append(bounds.hi, window.jobs.changes)
    written = sum(part.rows for part in stored.parts)
    if stored.landed.rows != written:
        raise IncompleteWindow(
            f"{stored.landed.rows} rows had to be written to `binlog`, but {written} were",
            where={"window": bounds.window},
            hint="run the stage again; only Binlake may commit to its tables",
        )
    return stored


def _complete(ctx: StageContext, cluster: Cluster, members: list[Member], asked: Bounds, most_bytes: int) -> _Complete:
    """Pull and prove `asked`, or the first part of it with `most_bytes` (0: no limit)."""
    pulled = pull_window(ctx, _pull(cluster, members, asked), most_bytes, partial(_plan_decoding, ctx, asked))
    try:
        return _prove(ctx, cluster, members, pulled, asked)
    except _MustLandTogether as error:
        # Some rows were written with the schema of a DDL beyond the byte limit: they must land together with it.
        log.info("window_exceeds_max_bytes", window=asked.window, reason=error.reason)
        pulled.discard()
        return _complete(ctx, cluster, members, asked, 0)
    except BaseException:
        pulled.discard()
        raise


def _plan_decoding(ctx: StageContext, bounds: Bounds) -> DecodeAhead | None:
    """How merge will decode the window if it has no DDL; None if that does not follow from the schema at lo.

    A stage that runs as its own task decodes nothing: it cannot hand the names of files on.
    """
    named = map(int, ctx.replication.filter.ignore_txn_commit_ts)
    follows = ctx.rules.shard_mode != "pessimistic" and not any(bounds.lo < ts <= bounds.hi for ts in named)
    if not ctx.hands_on or not follows or not ctx.schemas.exists():
        return None
    base = ctx.schemas.read_state_at(bounds.lo)
    decoder = Decoder.of_window(build_window_schemas(base, [], [], bounds.lo), ctx.rules, Locks(), bounds.lo)
    payloads = PayloadRange(bounds.lo, bounds.hi)
    return DecodeAhead(MergeTask(payloads, decoder, ctx.paths.locate_table(MUTATION.name), Keeper(0)), base)


def _take_decoded(ctx: StageContext, pulled: Pulled) -> DecodedAhead | None:
    if pulled.decode is None or pulled.decoded is None:
        pulled.discard(pulled.forget_decoded())
        return None
    return DecodedAhead(pulled.decode.base, ctx.replication, pulled.decoded)


class _MustLandTogether(Exception):
    """The window ends at its byte limit, but cannot end there."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def _prove(ctx: StageContext, cluster: Cluster, members: list[Member], pulled: Pulled, asked: Bounds) -> _Complete:
    bounds = replace(asked, hi=pulled.hi)
    parts = pulled.survey()
    proofs = tuple(_build_proof(cluster, member, parts.get(member.node_id, NOTHING), bounds) for member in members)
    _refuse_conflicts(pulled, bounds)
    try:
        jobs = fetch_jobs(ctx, cluster.source, pulled, list(parts.values()), bounds)
    except IncompleteWindow as error:
        if bounds.hi == asked.hi:
            raise
        raise _MustLandTogether(error.message) from error
    own = pulled.cut(jobs.hi, LocalEngine().build_keeper())
    own = own.forget_decoded() if jobs.changes else own
    pulled.discard(own)
    return _Complete(own, replace(bounds, hi=jobs.hi), proofs, jobs, bounds.hi < asked.hi)


def _require_members(ctx: StageContext, cluster: Cluster, bounds: Bounds) -> list[Member]:
    tso = cluster.pd.fetch_ts()
    members = gather_members(cluster.registry.list_pumps(), ctx.members.read_all(), bounds.lo, cluster.probe)
    plan = propose_window(lo=bounds.lo, tso=tso, members=members, stop_ts=bounds.hi)
    if plan.state != "ready" or plan.hi < bounds.hi:
        raise IncompleteWindow(
            f"the window cannot be landed now: {plan.reason}", where={"window": bounds.window}, hint="plan again"
        )
    return members


def _build_proof(cluster: Cluster, member: Member, part: PumpPart, bounds: Bounds) -> MemberProof:
    where = {"pump": member.node_id, "window": bounds.window}
    if member.is_drained(bounds.lo):
        return MemberProof(member.node_id, member.store_uuid, member.state, 0, 0, 0)
    if part.proof < bounds.hi:
        raise IncompleteWindow(
            f"the pump ended its stream at {part.proof}, below hi",
            where=where,
            hint="check the pump's log, then run the stage again",
        )
    after = cluster.probe(member.host)
    if after.gc_ts > 0 and after.gc_ts >= bounds.lo:
        raise LostRange(
            f"the pump's GC deleted binlogs up to {after.gc_ts} during the pull", where=where, hint="see the runbook"
        )
    if member.store_uuid != after.store_uuid or after.node_id not in ("", member.node_id):
        raise IncompleteWindow("the pump changed its data directory during the pull", where=where)
    return MemberProof(member.node_id, member.store_uuid, member.state, after.gc_ts, part.proof, part.entities)


def _pull(cluster: Cluster, members: list[Member], bounds: Bounds) -> PumpPull:
    pumps = tuple((member.node_id, member.host) for member in members if not member.is_drained(bounds.lo))
    return PumpPull(pumps, cluster.cluster_id, bounds.lo, bounds.hi, cluster.timeout_s, cluster.tls)


def _refuse_conflicts(pulled: Pulled, bounds: Bounds) -> None:
    conflict_ts = pulled.find_conflict()
    if conflict_ts is not None:
        raise ConflictingBinlogs(
            "two pumps have different content for the same commit_ts",
            where={"window": bounds.window, "commit_ts": conflict_ts},
            hint="one pump is damaged or belongs to another cluster: compare them with PullBinlogs; nothing was landed",
        )


def _build_manifest(ctx: StageContext, cluster: Cluster, landed: Landed, window: _Complete) -> WindowManifest:
    return WindowManifest(
        replication=ctx.replication.name,
        cluster_id=cluster.cluster_id,
        lo=window.bounds.lo,
        hi=window.bounds.hi,
        config_hash=ctx.replication.compute_data_hash(),
        members=window.proofs,
        dml=landed.dml,
        ddls=landed.ddls,
        chunks=landed.chunks,
        bytes=landed.bytes,
        schema_version=window.jobs.schema_version,
        digest=landed.digest,
    )


def _seal(
    ctx: StageContext,
    cluster: Cluster,
    manifest: WindowManifest,
    members: list[Member],
    versions: Mapping[str, int],
    seconds: float,
) -> None:
    # Members are recorded before the seal, so a pump of a sealed window can never be unknown (hazards R-05).
    ctx.members.remember(
        [RememberedMember(m.node_id, m.store_uuid, m.state, m.watermark, manifest.hi) for m in members]
    )
    rows = manifest.dml + manifest.ddls
    detail = {VERSIONS: versions, **ctx.describe_work()}
    seal = WindowEvent("land", manifest.lo, manifest.hi, "done", rows, seconds, ctx.run_id, "", "", detail,
                       manifest.to_json())  # fmt: skip
    begins = list_begins(ctx.windows, ctx.replication.feed, manifest.lo, ctx.run_id)
    ctx.windows.record_together([seal, *begins, *build_disk_events(ctx, manifest, members)])
    # Publish never before the seal, and do not leave it to the next plan: closing pumps wait for it (hazards R-05), and
    # their GC may delete binlogs up to it.
    cluster.registry.publish_drainer(ctx.drainer_id, manifest.hi, host=_choose_answering_pump(members))
    log.info("landed", window=manifest.window, transactions=rows, bytes=manifest.bytes, digest=manifest.digest[:12])


def _choose_answering_pump(members: Sequence[Member]) -> str:
    """The address of a pump that answers binlogctl for this replication, which has no process: an original pump, which
    reports no store, would not; empty if there is none."""
    hosts = [member.host for member in members if member.store_uuid and member.state == "online" and not member.problem]
    return min(hosts, default="")


def _build_result(manifest: WindowManifest, began: float, state: str, more: Mapping[str, bool]) -> StageResult:
    rows = manifest.dml + manifest.ddls
    detail = {"ddl": manifest.ddls, BYTES: manifest.bytes, "pumps": [proof.node_id for proof in manifest.members]}
    detail |= more
    return StageResult("land", state, manifest.lo, manifest.hi, rows, time.monotonic() - began, "", detail)


def build_disk_events(ctx: StageContext, window: OfWindow, members: Sequence[Member]) -> list[WindowEvent]:
    """The event to record with the seal of `window`; none if it is not due or nothing is known."""
    if not is_due(window.lo, window.hi) and ctx.windows.find_landed_ts() is not None:
        return []
    disks = {**_measure_lake(ctx.paths)} | {member.node_id: member.disk for member in members if member.disk.size}
    detail = {"disks": [{"place": place, **asdict(disk)} for place, disk in disks.items()]}
    return [WindowEvent(DISK, window.lo, window.hi, "done", run_id=ctx.run_id, detail=detail)] if disks else []


def is_due(lo: int, hi: int) -> bool:
    """Whether the window (lo, hi] passes a multiple of EVERY_MS."""
    return tso.extract_physical(lo) // EVERY_MS != tso.extract_physical(hi) // EVERY_MS


def _measure_lake(paths: LakePaths) -> Mapping[str, DiskUse]:
    """Nothing for a lake in a store, which has no disk that could become full."""
    if paths.local is None:
        return {}
    try:
        return {"lake": measure_disk(paths.local)}
    except OSError as error:
        # A window must not fail because of a chart.
        log.warning("lake_not_measured", error=str(error))
        return {}
