"""Only the window that the target holds open is pinned: its bounds, its manifest, its rows (hazards R-16, R-62).

A window that was sealed but never opened pins nothing: another target or configuration may cut it differently.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from binlake.base import rowhash
from binlake.config.servers import TargetSection
from binlake.errors import CheckpointConflict, CheckpointMoved, ImmutableWindow, LostRange
from binlake.lake.targetevents import record_moves
from binlake.spark_jobs.engine.engine import Engine
from binlake.spark_jobs.engine.rows import Rows
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.lake import fold_rows
from binlake.target import TargetPosition, read_position
from binlake.window.manifest import ApplyManifest

_LAST_EVENTS = 50
"""Events of finalize among which the last one at a target is searched: restores into other targets add theirs."""


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


def open_manifest(ctx: StageContext, bounds: Bounds, position: TargetPosition) -> ApplyManifest | None:
    """The manifest of `bounds` if the target holds exactly this window open, else None.

    Raises CheckpointConflict; ImmutableWindow if its digests are of an older kind.
    """
    if position.opened is None or position.window != (bounds.lo, bounds.hi):
        return None
    written = ctx.windows.read_apply_manifests(bounds.lo, bounds.hi)
    sealed = next((manifest for manifest in written if manifest.compute_digest() == position.opened.manifest), None)
    if sealed is None:
        raise CheckpointConflict(
            "this window is open at the target with a manifest that the lake does not have",
            where={"window": bounds.window, "manifest": position.opened.manifest},
            hint="restore the state of the lake that opened it (Delta time travel of `window`)",
        )
    if not sealed.change.startswith(rowhash.VERSION):
        raise ImmutableWindow(
            "this window is open at the target, and an older version of Binlake sealed it: its digest of `change`"
            " cannot be compared with rows derived now",
            where={"window": bounds.window},
            hint="run `finalize` of this window alone, which applies it as it was sealed; or finish it with the version"
            " of Binlake that sealed it",
        )
    return sealed


def require_pinned(table: str, bounds: Bounds, pinned: str, derived: str) -> None:
    """Before a rewrite, check that the rows derived again are the pinned ones. Raises ImmutableWindow."""
    if pinned != derived:
        raise ImmutableWindow(
            f"this window is open at the target, and `{table}` would differ from what was sealed",
            where={"window": bounds.window},
            hint=f"restore `{table}` by Delta time travel, or run the version of Binlake that sealed it",
        )


def compute_rows_digest(engine: Engine, parts: Sequence[Rows], columns: list[str]) -> tuple[str, int]:
    """(digest, count) of all rows, in any order."""
    fold = fold_rows(engine, parts, columns)
    return rowhash.compute_digest(fold), fold.count


NO_ROWS = rowhash.compute_digest(rowhash.merge_folds([]))
"""The digest of zero rows."""
