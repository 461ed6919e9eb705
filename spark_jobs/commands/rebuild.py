"""Past windows, derived again or applied to another target: the stages of the pipeline run with old bounds.

Deriving is a pure function of what landed (DESIGN 2), so a rebuild gives the same rows unless the rules, a fixed row or
the version of Binlake has changed. Digests show whether the rows are the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import pyarrow.dataset as ds
import structlog

from binlake.base.lakecolumns import OfSegment, Statement
from binlake.config import Replication
from binlake.config.servers import TargetSection
from binlake.errors import CheckpointConflict, ConfigError, ImmutableWindow
from binlake.lake.opentable import load_table, open_dataset, open_table
from binlake.lake.tables import CHANGE, DDL, MUTATION, STATEMENT, LakeTable
from binlake.pipeline import STOPPED
from binlake.repair.rangerepair import BackfillProgress
from binlake.spark_jobs.commands.restore import restore
from binlake.spark_jobs.engine.lakerows import list_history_rows, list_window_rows
from binlake.spark_jobs.engine.rows import HeldRows, Rows
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.job.results import Bounds, StageResult
from binlake.spark_jobs.job.stagerun import run_stage
from binlake.spark_jobs.tables.again import derive_net_again, render_again
from binlake.spark_jobs.tables.compacted import read_newest
from binlake.spark_jobs.tables.pinned import compute_rows_digest, read_target_position
from binlake.spark_jobs.tables.sinks import read_sql_window
from binlake.statements.batch import INDEX, compute_digest_of_index
from binlake.window.derived import CompactManifest

log = structlog.get_logger(__name__)


def rebuild(ctx: StageContext, progress: BackfillProgress, *, through: str) -> list[StageResult]:
    """Derive the windows of the range again, always whole windows; the target is only read.

    A result's state is `same` or `changed`; its detail has the tables' Delta versions before the rebuild.
    """
    results = []
    for cut in progress.list_remaining():
        began = time.monotonic()
        window = Bounds(*ctx.windows.list_landed(cut)[0])
        result = _compare_digests(ctx, window, (MUTATION, DDL), lambda window=window: [run_stage("merge", ctx, window)])  # type: ignore[misc]
        if through == "convert":
            result = _with_sink(ctx, window, result)
        result = replace(result, seconds=time.monotonic() - began)
        progress.record_done(cut, result.rows, result.seconds, {**result.detail, "state": result.state})
        results.append(result)
    progress.finish({"windows": len(results)})
    return results


def _with_sink(ctx: StageContext, window: Bounds, merged: StageResult) -> StageResult:
    """Also compare the rows of the SQL sink's window that covers this one, if such a window was ever sealed."""
    sealed = ctx.windows.list_sealed_windows(window.hi)
    if not sealed:
        return merged
    own = Bounds(*sealed[0])
    newest = read_newest(ctx, own)
    if newest.base:
        compared = _compare_base(ctx, own, newest, window)
    else:
        left_out = _read_left_out(ctx, own, newest)
        compared = _compare_digests(ctx, own, (CHANGE, STATEMENT), lambda: _derive_sink_rows(ctx, window), left_out)
    state = "changed" if "changed" in (merged.state, compared.state) else "same"
    return replace(merged, state=state, detail={**merged.detail, **compared.detail})


def _derive_sink_rows(ctx: StageContext, window: Bounds) -> list[StageResult]:
    compacted = run_stage("compact", ctx, window)
    if compacted.state in STOPPED:
        return [compacted]
    return [compacted, run_stage("convert", ctx, Bounds(compacted.lo, compacted.hi))]


def _compare_digests(
    ctx: StageContext,
    bounds: Bounds,
    tables: tuple[LakeTable, ...],
    derive: Callable[[], list[StageResult]],
    left_out: Mapping[str, tuple[str, int]] = MappingProxyType({}),
) -> StageResult:
    """`left_out`: by table, the sealed digest and number of rows that are not in the lake."""
    versions = {table.name: load_table(ctx.paths.locate_table(table.name)).version() for table in tables}
    before = [left_out.get(table.name) or _compute_digest(ctx, table, bounds) for table in tables]
    rows = derive()[0].rows
    after = [
        _digest_batches(ctx, bounds)
        if table is STATEMENT and table.name in left_out
        else _compute_digest(ctx, table, bounds)
        for table in tables
    ]
    changed = [table.name for table, old, new in zip(tables, before, after, strict=True) if old != new]
    if changed:
        log.warning("rebuilt_window_differs", window=bounds.window, tables=changed, versions=versions)
    counts = {table.name: [old[1], new[1]] for table, old, new in zip(tables, before, after, strict=True)}
    detail = {"changed": changed, "rows_before_and_after": counts, "versions_before": versions}
    return StageResult("rebuild", "changed" if changed else "same", bounds.lo, bounds.hi, rows, detail=detail)


def _compare_base(ctx: StageContext, bounds: Bounds, sealed: CompactManifest, window: Bounds) -> StageResult:
    """As `_compare_digests` for rows of a full load, which compact and convert took from their blocks.

    Nothing is written if these still have the sealed digests: a window derived in the general way has other batches.
    """
    versions = {table.name: load_table(ctx.paths.locate_table(table.name)).version() for table in (CHANGE, STATEMENT)}
    applied = ctx.windows.read_apply_manifests(bounds.lo, bounds.hi)
    sink = read_sql_window(ctx, bounds, sealed.merged).with_shapes(sealed.shapes)
    rows, changed = sealed.rows, list[str]()
    try:
        net = derive_net_again(ctx, sink, sealed, sealed.change)
        if applied and applied[-1].limits:
            render_again(ctx, sink, ctx.replication.require_sql_target(), applied[-1], net)
    except ImmutableWindow as error:
        log.warning("rebuilt_window_differs", window=bounds.window, reason=error.message, versions=versions)
        rows, changed = _derive_sink_rows(ctx, window)[0].rows, [CHANGE.name, STATEMENT.name]
    counts = {table.name: [sealed.rows, rows] for table in (CHANGE, STATEMENT)}
    detail = {"changed": changed, "rows_before_and_after": counts, "versions_before": versions}
    return StageResult("rebuild", "changed" if changed else "same", bounds.lo, bounds.hi, rows, detail=detail)


def _read_left_out(ctx: StageContext, bounds: Bounds, sealed: CompactManifest) -> dict[str, tuple[str, int]]:
    """(digest, rows) of what compact and convert last sealed of `bounds` without writing it."""
    found = {}
    if sealed.change:
        found[CHANGE.name] = sealed.change, sealed.rows
    applied = ctx.windows.read_apply_manifests(bounds.lo, bounds.hi)
    if applied and applied[-1].limits:
        found[STATEMENT.name] = applied[-1].statement, applied[-1].rows
    return found


def _digest_batches(ctx: StageContext, bounds: Bounds) -> tuple[str, int]:
    """(digest as the apply manifest has it, row changes) of the batches in `statement`."""
    own = ds.field(OfSegment.WINDOW) == bounds.window
    found = open_dataset(open_table(ctx.paths.locate_table(STATEMENT.name))).to_table(list(INDEX), filter=own)
    return compute_digest_of_index(found.to_pylist()), sum(found[Statement.ROWS].to_pylist())


def _compute_digest(ctx: StageContext, table: LakeTable, bounds: Bounds) -> tuple[str, int]:
    engine = ctx.choose_engine_for(bounds)
    return compute_rows_digest(engine, _list_rows(ctx, table, bounds, engine.task_bytes), table.list_column_names())


def _list_rows(ctx: StageContext, table: LakeTable, bounds: Bounds, task_bytes: int) -> Sequence[Rows]:
    if table is MUTATION:
        return list_history_rows(ctx.paths, table, bounds.lo, bounds.hi, task_bytes)
    if table.partitioned_by:
        return list_window_rows(ctx.paths, table, bounds.window, task_bytes)
    own = ds.field(OfSegment.WINDOW) == bounds.window
    return [HeldRows(open_dataset(open_table(ctx.paths.locate_table(table.name))).to_table(filter=own))]


def replay(live: Replication, ctx: StageContext, from_ts: int | None, to: int) -> list[StageResult]:
    """Apply what the lake holds up to exactly `to` to the target of `ctx`, which must not be the target of `live`.

    Raises ConfigError (it is the live target, or `to` has not landed), CheckpointConflict (the target is not at
    `from_ts`, or belongs to another replication), what the stages raise.
    """
    _require_other(live, ctx)
    landed = ctx.windows.find_landed_range()
    if from_ts is not None and landed is not None:
        _require_at(ctx, from_ts, Bounds(*landed))
    return restore(ctx, to)


def _require_other(live: Replication, ctx: StageContext) -> None:
    into = ctx.replication
    if into.target is None or (
        live.target is not None and _get_target_address(live.target) == _get_target_address(into.target)
    ):
        raise ConfigError(
            "a replay needs a target other than the live one",
            hint="to correct the live target at its checkpoint, use `backfill repair`",
        )


def _get_target_address(target: TargetSection) -> tuple[str, int, str]:
    return target.host, target.port, target.checkpoint_schema


def _require_at(ctx: StageContext, from_ts: int, landed: Bounds) -> None:
    position = read_target_position(ctx, landed)
    reached = landed.lo if position.commit_ts is None else position.commit_ts
    if reached != from_ts:
        raise CheckpointConflict(
            f"the target is at {reached}", where={"from": from_ts}, hint="omit --from to continue from there"
        )
