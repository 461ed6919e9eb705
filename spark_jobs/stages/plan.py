"""plan: propose the next window, or name what blocks it. Reads the registry and the lake; needs no Spark.

The TSO is fetched before the members are listed: a pump that joins after the listing holds nothing at or below hi
(MISSION S0-58, hazards R-05).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import structlog

from binlake import tso
from binlake.cluster.node import RESTING
from binlake.cluster.placement import NodeRegistry
from binlake.errors import CheckpointConflict, ConfigError, IncompleteWindow
from binlake.lake.baseload import BaseTable
from binlake.lake.holdups import LandedState, find_hold, plan_next_window
from binlake.lake.windowlog import WindowEvent
from binlake.spark_jobs.job.context import StageContext, StageResult
from binlake.target import read_checkpoint_ts
from binlake.window.events import INCIDENT, EventRow, describe_incidents, find_new_incidents
from binlake.window.manifest import WindowManifest
from binlake.window.plan import WindowPlan
from binlake.window.sourcecluster import Cluster, open_cluster

log = structlog.get_logger(__name__)

SKEW = "skew_ms"
"""In the detail of the result: PD's clock minus this machine's, for whoever reports how old the window is."""
NOW = -1
"""As start_ts or initial-commit-ts: the source's present timestamp."""


def run(ctx: StageContext, start_ts: int | None = None) -> StageResult:
    """Propose the next window after the landed ts (or `start_ts`). Raises IncompleteWindow if blocked for too long."""
    began = time.monotonic()
    again = _derive_landed_again(ctx, start_ts)
    if again is not None:
        return again
    require_same_start(ctx)
    loading = _find_unfinished_load(ctx)
    if loading is not None:
        return loading
    with open_cluster(ctx.replication) as cluster:
        clock = MeasuredClock(cluster.pd)
        lo = _start(ctx, cluster, start_ts)
        last = ctx.windows.read_last_manifest()
        if last is not None:
            publish_landed_ts(ctx, cluster.registry, last.hi)
        held = find_hold(ctx.replication.name, cluster.registry)
        plan = WindowPlan("waiting", lo, lo, (), reason=held) if held else _propose(ctx, cluster, clock, lo, last)
    incidents = _report_incidents(ctx, plan)
    seconds = time.monotonic() - began
    log.info("planned", state=plan.state, lo=str(plan.lo), hi=str(plan.hi), reason=plan.reason)
    blocked_by = ",".join(blocker.node_id for blocker in plan.blocked_by)
    blocked = find_blocked_since(ctx.windows.read_events(stage="plan", within=(plan.lo - 1, plan.lo + 1)), plan.lo)
    if plan.state != "ready" or blocked is not None:
        # A plan that is ready is recorded only if plans were blocked before it.
        detail = {"reason": plan.reason}
        ctx.windows.record(
            WindowEvent("plan", plan.lo, plan.hi, plan.state, 0, seconds, ctx.run_id, "", blocked_by, detail)
        )
    if plan.state == "blocked" and blocked is not None:
        _alert(ctx, plan, time.time() - blocked / 1000)
    told: dict[str, Any] = {"reason": plan.reason} | ({"incidents": incidents} if incidents else {})
    told |= {} if clock.skew_ms is None else {SKEW: clock.skew_ms}
    return StageResult("plan", plan.state, plan.lo, plan.hi, 0, seconds, blocked_by, told)


def _derive_landed_again(ctx: StageContext, start_ts: int | None) -> StageResult | None:
    """If an operator asks for a landed range, derive it again without touching the target (DESIGN 4, rebuild)."""
    landed_ts, stop_ts = ctx.windows.find_landed_ts(), ctx.stop_ts
    if start_ts is None or landed_ts is None or start_ts >= landed_ts:
        return None
    if stop_ts is not None and (start_ts, stop_ts) in ctx.windows.list_landed((start_ts, stop_ts)):
        detail = {"reason": "landed before; derived again", "again": True}
        return StageResult("plan", "ready", start_ts, stop_ts, detail=detail)
    raise CheckpointConflict(
        f"start_ts {start_ts} is below the landed ts {landed_ts} and no landed window has that start_ts and stop_ts",
        hint="pass the bounds of one landed window (see the DAG's page), or leave start_ts empty",
    )


def _find_unfinished_load(ctx: StageContext) -> StageResult | None:
    """The result `waiting` while a full load has not ended, because the pumps' binlogs come after it."""
    table = BaseTable(ctx.paths, ctx.windows)
    load = table.load()
    if load is None or load.done:
        return None
    detail = {"reason": f"{table.describe(load)}; `binlake bootstrap` resumes it"}
    log.info("planned", state="waiting", lo=str(load.from_ts), hi=str(load.base_ts), reason=detail["reason"])
    return StageResult("plan", "waiting", load.from_ts, load.from_ts, detail=detail)


def _start(ctx: StageContext, cluster: Cluster, start_ts: int | None) -> int:
    landed = ctx.windows.find_landed_ts()
    if landed is not None:
        if start_ts is not None and start_ts != landed:
            raise CheckpointConflict(
                f"start_ts {start_ts} would leave a gap after the landed ts {landed}", hint="leave start_ts empty"
            )
        return landed
    started = ctx.windows.start_ts()
    if started is not None and start_ts is not None and start_ts not in (started, NOW):
        raise CheckpointConflict(
            f"start_ts {start_ts} is requested, but this lake starts after {started}",
            hint="leave start_ts empty; or give the replication a new lake folder to start it elsewhere",
        )
    if started is None:
        # Recorded at once: a second plan before the first landing must not start later and skip binlogs.
        started = _choose_first_start(ctx, cluster, start_ts)
        detail = {"initial_commit_ts": ctx.replication.initial_commit_ts}
        ctx.windows.record(WindowEvent("start", started, started, "done", run_id=ctx.run_id, detail=detail))
    return started


def require_same_start(ctx: StageContext) -> None:
    """`initial-commit-ts` takes effect only once. If it is changed later, the operator expects something else.

    Raises ConfigError; if the lake does not record the first value, only logs a warning.
    """
    now, started = ctx.replication.initial_commit_ts, ctx.windows.start_ts()
    first = ctx.windows.start_option()
    if started is None or int(now) == NOW or now in (first, str(started)):
        return
    text = f"initial-commit-ts is {now}, but this lake started after {started} ({tso.to_datetime(started)})"
    if first is None:
        log.warning("initial_commit_ts_not_in_force", reason=text)
        return
    raise ConfigError(
        f"{text}, with initial-commit-ts {first}",
        where={"replication": ctx.replication.name, "in_force": started},
        hint=f'set it back to "{first}", or to "-1"; to start elsewhere, give the replication a new lake folder',
    )


def _choose_first_start(ctx: StageContext, cluster: Cluster, start_ts: int | None) -> int:
    checkpoint = read_checkpoint_ts(ctx.replication, cluster.cluster_id)
    if checkpoint is not None:
        if start_ts is not None and start_ts not in (checkpoint, NOW):
            raise CheckpointConflict(
                f"start_ts {start_ts} is requested, but the target's checkpoint is {checkpoint}",
                hint="leave start_ts empty: the lake then starts at the checkpoint",
            )
        log.info("initial_commit_ts_ignored", checkpoint=str(checkpoint))
        return checkpoint
    initial = int(ctx.replication.initial_commit_ts) if start_ts is None else start_ts
    return cluster.pd.fetch_ts() if initial < 0 else initial


class MeasuredClock:
    """PD's timestamps. `skew_ms`: PD's clock minus this machine's when the last one came; None before the first."""

    def __init__(self, pd: tso.Clock) -> None:
        self._pd = pd
        self.skew_ms: int | None = None

    def fetch_ts(self, count: int = 1) -> int:
        """As PD's client."""
        asked = time.time()
        ts = self._pd.fetch_ts(count)
        self.skew_ms = tso.compute_skew_ms(ts, asked, time.time())
        return ts


def _propose(
    ctx: StageContext, cluster: Cluster, clock: MeasuredClock, lo: int, last: WindowManifest | None
) -> WindowPlan:
    known = LandedState(lo, ctx.members.read_all(), last)
    return plan_next_window(ctx.replication, known, clock, cluster.registry, cluster.probe, stop_ts=ctx.stop_ts)


def publish_landed_ts(ctx: StageContext, registry: NodeRegistry, landed_ts: int) -> None:
    """Publish `landed_ts` if the registry shows another one: the lake's own record decides.

    A smaller one: PD was unreachable right after the seal. A closing pump waits for it and blocks every plan meanwhile,
    so no later landing would publish it. A greater one was not written by this lake, and a closing pump would go
    offline with binlogs that have not landed.
    """
    shown = registry.find_drainer(ctx.drainer_id)
    if shown is None or shown.status.max_commit_ts < landed_ts:
        registry.publish_drainer(ctx.drainer_id, landed_ts)
        return
    if shown.status.state == "online":
        # By `update-drainer`: a pump that starts would wait for an answer to its Notify, and nobody gives it.
        log.info("replication_resumed", entry=ctx.drainer_id, state=RESTING)
        registry.set_drainer_state(ctx.drainer_id, RESTING)
    # Read after the entry: another run seals first and publishes then.
    ctx.refresh()
    landed_now = ctx.windows.find_landed_ts() or landed_ts
    if shown.status.max_commit_ts > landed_now:
        log.warning("landed_ts_in_registry_moved", shown=str(shown.status.max_commit_ts), landed=str(landed_now))
        registry.publish_drainer(ctx.drainer_id, landed_now)


def find_blocked_since(events: Sequence[EventRow], lo: int) -> int | None:
    """When (Unix ms) the run of blocked plans at `lo` at the end of `events` began; None = not blocked."""
    since = None
    for event in reversed([event for event in events if event["lo"] == lo]):
        if event["state"] != "blocked":
            break
        since = event["at_ms"]
    return since


def _report_incidents(ctx: StageContext, plan: WindowPlan) -> str:
    """Log, record and describe transactions that pumps saw too late; empty if there are no new ones."""
    incidents = find_new_incidents(plan.members, ctx.windows.read_events(stage=INCIDENT))
    if not incidents:
        return ""
    ctx.windows.record(WindowEvent(INCIDENT, plan.lo, plan.lo, "told", run_id=ctx.run_id, detail={"pumps": incidents}))
    log.error("late_commits_on_pumps", pumps=sorted(incidents), detail=describe_incidents(incidents))
    return describe_incidents(incidents)


def _alert(ctx: StageContext, plan: WindowPlan, waited: float) -> None:
    limit = ctx.replication.window.blocked_alert_s
    if waited > limit:
        raise IncompleteWindow(
            f"blocked for {waited:.0f} s by {plan.reason}",
            where={"lo": plan.lo, "limit_s": limit},
            hint="start this pump; if it is lost for good, see the runbook: a pump that is gone",
        )
