"""Plans the next window and tells what blocks it: for plan, which records it, and for a task that waits for it.

This module writes nothing. The order matters: the TSO must be fetched before the members (hazards R-05).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from binlake.cluster.node import describe_hold, name_consumer
from binlake.cluster.placement import NodeRegistry, open_placement
from binlake.config import Replication
from binlake.lake.members import MemberTable
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowLog
from binlake.tso import Clock
from binlake.window.manifest import WindowManifest
from binlake.window.membership import Probe, RememberedMember, flag_future_watermarks, gather_members
from binlake.window.plan import WindowPlan, propose_window, reach_after
from binlake.window.sourcecluster import ask_pump


@dataclass(frozen=True)
class LandedState:
    """The lake's state at `lo` (commit_ts): the remembered members and the manifest of the last landed window."""

    lo: int
    members: Mapping[str, RememberedMember]
    last: WindowManifest | None


def plan_next_window(
    replication: Replication,
    known: LandedState,
    clock: Clock,
    registry: NodeRegistry,
    probe: Callable[[str], Probe],
    *,
    stop_ts: int | None,
) -> WindowPlan:
    """Plan the next window of `replication`. Raises SourceUnavailable."""
    # Fetched before the members are listed: a pump that joins later has nothing at or below it.
    tso = clock.fetch_ts()
    members = gather_members(registry.list_pumps(), known.members, known.lo, probe)
    if any(member.watermark > tso for member in members):
        members = flag_future_watermarks(members, clock.fetch_ts())
    return propose_window(
        lo=known.lo,
        tso=tso,
        members=members,
        stop_points=replication.list_stop_points(),
        reach=reach_after(known.last, replication.window.max_seconds),
        stop_ts=stop_ts,
    )


def find_hold(replication: str, registry: NodeRegistry) -> str:
    """Why an operator lets no window of `replication` start; empty = they may. Raises SourceUnavailable."""
    entry = registry.find_drainer(name_consumer(replication))
    return "" if entry is None else describe_hold(entry.status.node_id, entry.status.state)


def find_blocking_reason(replication: Replication, lo: int, stop_ts: int | None = None) -> str:
    """Why plan cannot propose a window after `lo`, up to `stop_ts` if set; empty = it can.

    Both are commit_ts. Raises SourceUnavailable when PD does not answer, Permanent for another cluster.
    """
    timeout_s, paths = replication.source.timeout_s, LakePaths.of(replication)
    with open_placement(replication.source) as placement:
        held = find_hold(replication.name, placement.registry)
        if held:
            return held
        cluster = placement.pd.fetch_cluster_id()
        known = LandedState(lo, MemberTable(paths).read_all(), WindowLog(paths).read_last_manifest())
        plan = plan_next_window(
            replication,
            known,
            placement.pd,
            placement.registry,
            lambda host: ask_pump(host, cluster, timeout_s, placement.tls),
            stop_ts=stop_ts,
        )
    return "" if plan.state == "ready" else plan.reason
