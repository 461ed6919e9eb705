"""finalize: apply the sealed window to the target; needs no Spark. What it executes is in `statement`, nothing else.

Guarded by the target (binlake.downstream): a window that was applied is passed over, an old one never comes back.
"""

from __future__ import annotations

import time

import structlog

from binlake.downstream import apply_window
from binlake.errors import CheckpointConflict, ConfigError, ImmutableWindow
from binlake.lake.windowlog import WindowEvent
from binlake.window.manifest import ApplyManifest
from spark_jobs.context import Bounds, StageContext, StageResult
from spark_jobs.pinned import target_position
from spark_jobs.sinks import require_merged, sink_window
from spark_jobs.stages.convert import statements_of

log = structlog.get_logger(__name__)


def run(ctx: StageContext, bounds: Bounds) -> StageResult:
    """Apply the window `bounds`. Raises what `apply_window` raises, ImmutableWindow, CheckpointConflict."""
    began = time.monotonic()
    target = ctx.replication.target
    if target is None:
        raise ConfigError("this replication has no SQL target", hint="add a section [target], or leave finalize out")
    manifest = _manifest(ctx, bounds)
    window = sink_window(ctx, bounds, require_merged(ctx, bounds.lo, bounds.hi))
    statements = statements_of(ctx, window, target)
    if statements.digest() != manifest.statement:
        raise ImmutableWindow(
            "the statements in the lake are not those that the manifest pins",
            where={"window": bounds.window},
            hint="run convert again, or restore `statement` by Delta time travel",
        )
    applied = apply_window(target, manifest, statements)
    seconds = time.monotonic() - began
    detail = {"segments": applied.segments, "batches": applied.batches, "ddl": applied.ddls}
    state = "done" if applied.state == "applied" else applied.state
    ctx.windows.record(
        WindowEvent("finalize", bounds.lo, bounds.hi, state, applied.rows, seconds, ctx.run_id, "sql", "", detail)
    )
    return StageResult("finalize", state, bounds.lo, bounds.hi, applied.rows, seconds, "", detail)


def _manifest(ctx: StageContext, bounds: Bounds) -> ApplyManifest:
    """The manifest that the target opened the window with, else the one sealed last."""
    written = {manifest.digest(): manifest for manifest in ctx.windows.apply_manifests(bounds.lo, bounds.hi)}
    if not written:
        raise CheckpointConflict(
            "the window has no sealed manifest", where={"window": bounds.window}, hint="run compact and convert first"
        )
    newest = list(written.values())[-1]
    # Several: the target or its options changed between two seals, and only one of them was opened.
    opened = target_position(ctx, bounds).opened if len(written) > 1 else None
    return newest if opened is None or opened.manifest is None else written.get(opened.manifest, newest)
