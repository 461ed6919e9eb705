"""finalize: apply the sealed window to the target; needs no Spark. It executes only what is in `statement`.

The target guards it (binlake.target): a window that was applied is skipped, and an old window is never applied again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import structlog
from deltalake.exceptions import DeltaError
from pyarrow.lib import ArrowException

from binlake.config.servers import TargetSection
from binlake.ddl.targets import Naming
from binlake.errors import CheckpointConflict, ImmutableWindow, LostRange
from binlake.lake.damage import describe_storage_text
from binlake.lake.targetevents import DUE, read_due_tables, record_due_tables, record_set_aside
from binlake.lake.windowlog import WindowEvent
from binlake.spark_jobs.job.context import Bounds, StageContext, StageResult
from binlake.spark_jobs.job.lineage import Sources, WindowLineage, build_target_column_lister
from binlake.spark_jobs.shared.nextwindow import name_target, read_target_position
from binlake.spark_jobs.shared.rendered import derive_net_again, render_again
from binlake.spark_jobs.shared.sinks import SinkWindow, find_tables_at_end, read_sql_window
from binlake.spark_jobs.shared.sqlwindow import Converted, read_pinned
from binlake.spark_jobs.shared.statements import LakeStatements, read_statements
from binlake.target import apply_window
from binlake.target.claim.writers import LoopbackMarks
from binlake.target.relay import RelayLog
from binlake.window.cuts import require_pinned_cuts
from binlake.window.manifest import ApplyManifest

log = structlog.get_logger(__name__)

_BY_RELAY = "if there are relay files, they can finish an open window: `binlake recover --log-dir`"
_SCHEMA = ("schema_snapshot", "schema_change")
"""The tables of the schema history."""


def run(ctx: StageContext, bounds: Bounds, given: Converted | None = None) -> StageResult:
    """Apply the window `bounds`; `given`: from convert in this process.

    Raises what `apply_window` raises, LostRange, ImmutableWindow, DamagedManifest, CheckpointConflict.
    """
    began = time.monotonic()
    target = ctx.replication.require_sql_target(hint="add a section [target], or do not run finalize")
    with _translate_read_errors(ctx, bounds, "window"):
        manifest = _choose_manifest(ctx, bounds)
    statements = _require_pinned(ctx, bounds, target, manifest, given)
    marks = LoopbackMarks.of(ctx.replication.loopback, ctx.replication.name)
    record_due_tables(
        target, ctx.windows, statements.window.cuts, bounds.hi, ctx.run_id, partial(_is_passed, ctx, bounds)
    )
    # Marks in the lake that from now until finalize ends or fails, the target may hold the window open.
    ctx.windows.record(WindowEvent("finalize", bounds.lo, bounds.hi, "started", run_id=ctx.run_id, sink="sql"))
    applied = apply_window(target, manifest, statements, marks=marks, relay=RelayLog.of(ctx.replication))
    seconds = time.monotonic() - began
    detail: dict[str, object] = {"segments": applied.segments, "batches": applied.batches, "ddl": applied.ddls}
    detail |= {"ddl_replaced": applied.replaced} if applied.replaced else {}
    detail |= {"ddl_injected": applied.injected} if applied.injected else {}
    detail |= {"ddl_errors_ignored": applied.ignored} if applied.ignored else {}
    # Record the modes used: `auto` chooses one by the segment's size.
    detail["modes"] = applied.modes
    detail["forms"] = manifest.safe_mode
    detail["target"] = name_target(target)
    # A window that inserts and deletes a row, and a repeated one, delete keys that have no row.
    detail |= {"deletes_without_row": applied.absent} if applied.absent else {}
    detail |= {"set_aside": applied.aside, "passed_over": applied.passed_over} if applied.aside else {}
    detail |= {"put_aside": [one["table"] for one in applied.newly_aside]} if applied.newly_aside else {}
    state = "done" if applied.state == "applied" else applied.state
    due = read_due_tables(target, ctx.windows) if state == "done" else {}
    detail |= {DUE: sorted(due)} if due else {}
    detail |= ctx.describe_work()
    ctx.windows.record(
        WindowEvent("finalize", bounds.lo, bounds.hi, state, applied.rows, seconds, ctx.run_id, "sql", "", detail)
    )
    record_set_aside(ctx.windows, bounds.hi, applied.aside, ctx.run_id)
    if state == "done":
        # The lineage is for the caller; it is not written to the lake.
        detail |= _build_lineage(ctx, statements.window, target).describe(applied.tables)
    return StageResult("finalize", state, bounds.lo, bounds.hi, applied.rows, seconds, "", detail)


def _is_passed(ctx: StageContext, bounds: Bounds) -> bool:
    reached = read_target_position(ctx, bounds).commit_ts
    return reached is not None and reached >= bounds.hi


def _build_lineage(ctx: StageContext, window: SinkWindow, target: TargetSection) -> WindowLineage:
    hi = window.bounds.hi
    sources = Sources(Naming(ctx.rules), lambda: find_tables_at_end(ctx, window.base, hi, window.ddls))
    return WindowLineage(window.definitions, hi, sources, build_target_column_lister(target.db_type))


@contextmanager
def _translate_read_errors(ctx: StageContext, bounds: Bounds, *tables: str) -> Iterator[None]:
    """Raise LostRange if `tables` cannot be read because a file is missing or damaged."""
    try:
        yield
    except LostRange as error:
        where = {"window": bounds.window, "lake": ctx.paths.root, **error.where}
        raise LostRange(error.message, where=where, hint=f"{error.hint}; {_BY_RELAY}") from error
    except (OSError, DeltaError, ArrowException) as error:
        named = " or ".join(f"`{table}`" for table in tables)
        raise LostRange(
            f"the lake's table {named} is not readable: {describe_storage_text(error)}",
            where={"window": bounds.window, "lake": ctx.paths.root},
            hint=f"restore its files from a copy (for `statement`: or run convert again); {_BY_RELAY}",
        ) from error


def _require_pinned(
    ctx: StageContext, bounds: Bounds, target: TargetSection, manifest: ApplyManifest, given: Converted | None
) -> LakeStatements:
    """Check that all that `manifest` pins exists unchanged, before anything reaches the target (DESIGN 3.10)."""
    statements = given.statements if given is not None and given.manifest == manifest else None
    if statements is None or statements.compute_digest() != manifest.statement:
        statements = _read_pinned(ctx, bounds, target, manifest)
    require_pinned_cuts(manifest, statements.window.segments.starts)
    if statements.compute_digest() != manifest.statement:
        raise ImmutableWindow(
            "the statements in the lake differ from those that the manifest pins",
            where={"window": bounds.window},
            hint="run convert again, or restore `statement` by Delta time travel",
        )
    with _translate_read_errors(ctx, bounds, "statement", "mutation"):
        # Read them now, so that unreadable files are noticed here; `statements` caches them for the apply.
        statements.list_segments()
    return statements


def _read_pinned(ctx: StageContext, bounds: Bounds, target: TargetSection, manifest: ApplyManifest) -> LakeStatements:
    """The statements of the window that `manifest` describes, in the lake or derived again. Raises ImmutableWindow."""
    with _translate_read_errors(ctx, bounds, "window"):
        compacted = read_pinned(ctx, manifest)
    with _translate_read_errors(ctx, bounds, "ddl", *_SCHEMA):
        window = read_sql_window(ctx, bounds, compacted.merged).with_shapes(compacted.shapes)
    if manifest.limits:
        # convert has left them to this process, or to one that has died since.
        with _translate_read_errors(ctx, bounds, "mutation", *_SCHEMA):
            net = derive_net_again(ctx, window, compacted, manifest.change)
            return read_statements(ctx, window, target, render_again(ctx, window, target, manifest, net).held)
    with _translate_read_errors(ctx, bounds, "statement", *_SCHEMA):
        return read_statements(ctx, window, target)


def _choose_manifest(ctx: StageContext, bounds: Bounds) -> ApplyManifest:
    """The manifest with which the target opened the window, else the one sealed last."""
    manifests = ctx.windows.read_apply_manifests(bounds.lo, bounds.hi)
    written = {manifest.compute_digest(): manifest for manifest in manifests}
    if not written:
        raise CheckpointConflict(
            "the window has no sealed manifest", where={"window": bounds.window}, hint="run compact and convert first"
        )
    newest = manifests[-1]  # the same manifest may have been sealed before
    # There are several if the target or its options changed between two seals; the target opened only one of them.
    opened = read_target_position(ctx, bounds).opened if len(written) > 1 else None
    return newest if opened is None or opened.manifest is None else written.get(opened.manifest, newest)
