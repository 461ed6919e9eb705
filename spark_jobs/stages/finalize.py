"""finalize: apply the sealed window to the target; needs no Spark. What it executes is in `statement`, nothing else.

Guarded by the target (binlake.downstream): a window that was applied is passed over, an old one never comes back.
"""

from __future__ import annotations

import time

import structlog

from binlake.downstream import apply_window
from binlake.errors import CheckpointConflict, ConfigError, ImmutableWindow
from binlake.lake.windowlog import WindowEvent
from spark_jobs.context import Bounds, StageContext, StageResult
from spark_jobs.sinks import require_merged, sink_window
from spark_jobs.stages.convert import statements_of

log = structlog.get_logger(__name__)


def run(ctx: StageContext, bounds: Bounds) -> StageResult:
    """Apply the window `bounds`. Raises what `apply_window` raises, ImmutableWindow, CheckpointConflict."""
    began = time.monotonic()
    target = ctx.replication.target
    if target is None:
        raise ConfigError("this replication has no SQL target", hint="add a section [target], or leave finalize out")
    manifest = ctx.windows.apply_manifest(bounds.lo, bounds.hi)
    if manifest is None:
        raise CheckpointConflict(
            "the window has no sealed manifest", where={"window": bounds.window}, hint="run compact and convert first"
        )
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
