"""Where the target is, and which window the SQL sink takes next: from there to the end of a landed window."""

from __future__ import annotations

import json

import structlog

from binlake.config.servers import TargetSection
from binlake.ddl.definitions import LandedDdl, use_bytewise_collations
from binlake.errors import CheckpointConflict, CheckpointMoved, LostRange
from binlake.lake.ddls import read_landed_ddls
from binlake.lake.targetevents import record_moves
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.pieces import MergedWindow
from binlake.spark_jobs.shared.sinks import read_merged_row_counts
from binlake.target import TargetPosition, read_position
from binlake.target.claim.checkpoint import may_pass_refused
from binlake.window.cuts import build_waiting_detail, find_end_before_refused, require_outside_ddl

_LAST_EVENTS = 50
"""Events of finalize among which the last one at a target is searched: restores into other targets add theirs."""
log = structlog.get_logger(__name__)


def choose_window(
    ctx: StageContext, bounds: Bounds, position: TargetPosition, target: TargetSection, given: MergedWindow | None
) -> Bounds | None:
    """The sink's window for the landed window `bounds`; None if the target is past it without a sealed window."""
    if position.window is not None and position.window[0] < bounds.hi:
        return Bounds(*position.window)
    lo = find_next_start(ctx, position)
    passed = next((Bounds(*sealed) for sealed in ctx.windows.list_sealed_windows(bounds.hi) if sealed[1] <= lo), None)
    if passed is not None:
        return passed
    if lo >= bounds.hi:
        return None
    end = _find_end(ctx, lo, bounds.hi, target.max_segment_rows)
    if given is not None and given.bounds == Bounds(lo, end) and not given.merged.ddls:
        return given.bounds
    end, refused = _end_before_refused(ctx, lo, end, target, position)
    if refused is not None:
        commit_ts, query = str(refused.commit_ts), refused.query[:200]
        log.warning("window_ends_before_ddl", commit_ts=commit_ts, end=str(end), query=query)
    return Bounds(lo, end)


def find_waiting_ddl(
    ctx: StageContext, window: Bounds, hi: int, target: TargetSection, position: TargetPosition
) -> dict[str, object]:
    """The part of the detail that names the DDL before which `window` ends, also if it is open or passed already."""
    if window.hi >= hi:
        return {}
    end, refused = _end_before_refused(ctx, window.lo, hi, target, position)
    return build_waiting_detail(refused, target.db_type) if refused is not None and end == window.hi else {}


def _end_before_refused(
    ctx: StageContext, lo: int, hi: int, target: TargetSection, position: TargetPosition
) -> tuple[int, LandedDdl | None]:
    """`hi`, or the end below the first DDL that convert would refuse: what is before it is applied, then it waits."""
    ddls = read_landed_ddls(ctx.paths, lo, hi)
    if not ctx.replication.source.new_collation:
        ddls = [use_bytewise_collations(ddl, target.db_type) for ddl in ddls]

    def may_pass(ddl: LandedDdl) -> bool:
        return may_pass_refused(ddl.tables, target.on_table_error, position.aside)

    return find_end_before_refused(ddls, lo, hi, target.db_type, may_pass)


def _find_end(ctx: StageContext, lo: int, hi: int, most: int) -> int:
    """The next stop point, else the end of the last landed window up to which a segment has at most `most` rows.

    At least one landed window is taken.
    """
    end, rows = hi, 0
    due = ctx.windows.list_landed((lo, hi))
    counts = read_merged_row_counts(ctx, lo, hi) if len(due) > 1 else {}
    for landed in due:
        # An update that changes the key counts as two rows.
        rows += 2 * counts.get(landed, 0)
        if rows > most and landed != due[0]:
            break
        end = min(landed[1], hi)
    stop = min([end, *(stop for stop in ctx.replication.list_stop_points() if stop > lo)])
    if any(stop == landed[1] for landed in due):
        return stop
    return require_outside_ddl(read_landed_ddls(ctx.paths, lo, due[-1][1]), lo, stop)


def read_target_position(ctx: StageContext, bounds: Bounds) -> TargetPosition:
    """The target's position; `bounds` must lie in the landed range. Raises CheckpointConflict, TargetUnavailable.

    Also raises CheckpointMoved, and records it for the page, if another hand moved the position since this lake or the
    target recorded it.
    """
    target = ctx.replication.require_sql_target()
    cluster_id = read_cluster_id(ctx, bounds)
    with record_moves(ctx.windows, ctx.run_id):
        position = _read_own_position(ctx, target, cluster_id)
    # Whoever opened a window at the target had sealed it in the lake before.
    ctx.refresh()
    return position


def _read_own_position(ctx: StageContext, target: TargetSection, cluster_id: int) -> TargetPosition:
    position = read_position(target, ctx.replication.name, cluster_id)
    if not position.is_recorded and position.commit_ts is not None and position.opened is None:
        _require_own(ctx, target, position.commit_ts)
    return position


def name_target(target: TargetSection) -> str:
    """The name of a target in the events of finalize: where it is, and where its checkpoint is there."""
    return f"{target.host}:{target.port}/{target.checkpoint_schema}"


def _require_own(ctx: StageContext, target: TargetSection, commit_ts: int) -> None:
    """Require what this lake finalized last at `target`, whose own record is gone. Raises CheckpointMoved."""
    ended = ctx.windows.read_last_events(("finalize",), _LAST_EVENTS, ("done",), sink="sql")
    own = next((event for event in ended if json.loads(event["detail"]).get("target") == name_target(target)), None)
    if own is not None and own["hi"] != commit_ts:
        raise CheckpointMoved(
            f"the checkpoint row at the target is not Binlake's: this lake applied up to {own['hi']} there",
            where={"target": name_target(target), "written": own["hi"], "found": commit_ts},
            hint="restore the tables binlake_* beside it, or, if the target really is where the row says:"
            " `binlake checkpoint adopt`",
        )


def read_cluster_id(ctx: StageContext, bounds: Bounds) -> int:
    """The source cluster of a landed window. Raises CheckpointConflict if it has not landed."""
    landed = next(iter(ctx.windows.list_landed((bounds.hi - 1, bounds.hi))), None)
    manifest = ctx.windows.read_manifest(*landed) if landed else None
    if manifest is None:
        raise CheckpointConflict("the window has not landed", where={"window": bounds.window}, hint="run land first")
    return manifest.cluster_id


def find_next_start(ctx: StageContext, position: TargetPosition) -> int:
    """The lo of the target's next window. Raises LostRange, CheckpointConflict if the lake does not hold it."""
    landed, checkpoint = ctx.windows.find_landed_range(), position.commit_ts
    if landed is None:
        raise CheckpointConflict("nothing has landed yet", where={"lake": ctx.paths.root}, hint="run land first")
    if checkpoint is None:
        return landed[0]
    if checkpoint < landed[0]:
        raise LostRange(
            f"the target is at {checkpoint}, below the start of the lake, {landed[0]}",
            hint="restore the target from a newer copy, or start a lake from the target's checkpoint",
        )
    if checkpoint > landed[1]:
        raise CheckpointConflict(
            f"the target's checkpoint {checkpoint} is ahead of the landed ts {landed[1]}",
            hint="another replication writes this checkpoint, or the lake was restored from an older copy",
        )
    return checkpoint


def is_next(ctx: StageContext, bounds: Bounds, position: TargetPosition) -> bool:
    """Whether `bounds` begin where the target is, which holds no window open. Raises as `find_next_start`."""
    return position.window is None and find_next_start(ctx, position) == bounds.lo
