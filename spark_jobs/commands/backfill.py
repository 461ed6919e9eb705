"""`binlake backfill`: rebuild, repair, replay, roll back or resend a past range of commit_ts.

Exit status 0 done, 4 if a rebuild gave rows that differ from the old ones, 1 an error, which says whether to retry. One
backfill of a lake runs at a time. The schedule continues meanwhile: the lake's locks and the target's lease keep them
apart.

A rebuild and a replay run the stages of the pipeline with old bounds. Deriving is a pure function of what landed
(DESIGN 2), so a rebuild gives the same rows unless the rules, a fixed row or the version of Binlake has changed.
Digests show whether the rows are the same.
"""

from __future__ import annotations

import argparse
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pyarrow.dataset as ds
import structlog

from binlake.common.commandline import add_output
from binlake.common.lakecolumns import OfSegment, Statement
from binlake.common.terminal import show_progress
from binlake.config import Replication, load_replication
from binlake.config.servers import TargetSection
from binlake.errors import CheckpointConflict, ConfigError, ImmutableWindow
from binlake.lake.lock import hold_lake_lock
from binlake.lake.opentable import load_table, open_dataset, open_table
from binlake.lake.paths import LakePaths
from binlake.lake.tables import CHANGE, DDL, MUTATION, STATEMENT, LakeTable
from binlake.lake.windowlog import WindowLog
from binlake.pipeline import STOPPED
from binlake.repair.rangerepair import BackfillProgress, hold_target, repair_range
from binlake.repair.rollback import Rollback, rollback_file, rollback_source, rollback_target
from binlake.spark_jobs.commands.restore import restore
from binlake.spark_jobs.commands.verify import record_result, repair_lineage
from binlake.spark_jobs.engine.rows import MemoryRows, Rows, list_history_rows, list_window_rows
from binlake.spark_jobs.job.context import StageContext, build_context
from binlake.spark_jobs.job.failures import translate_errors
from binlake.spark_jobs.job.lineage import describe_table
from binlake.spark_jobs.job.results import (
    DIFFERENT,
    Bounds,
    StageResult,
    add_job,
    add_wait,
    add_where,
    parse_moment,
    run_and_report,
    show_results,
)
from binlake.spark_jobs.job.stagerun import run_stage
from binlake.spark_jobs.shared.nextwindow import read_target_position
from binlake.spark_jobs.shared.rendered import derive_net_again, render_again
from binlake.spark_jobs.shared.sinks import read_sql_window
from binlake.spark_jobs.shared.sqlwindow import compute_rows_digest, read_newest
from binlake.statements.batch import INDEX, compute_digest_of_index
from binlake.window.derived import CompactManifest
from binlake.window.lineage import build_lineage

log = structlog.get_logger(__name__)
_RANGE = "--from 470548480035651584 --to 470549480035651584"


class BackfillCommand:
    """Rebuild, repair, replay, roll back or resend a range."""

    examples = (
        f"binlake backfill rebuild {_RANGE} --replication orders.toml",
        "binlake backfill repair --commit-ts 470548480035651584 --replication orders.toml",
        f"binlake backfill replay --into copy.toml {_RANGE} --replication orders.toml",
        "binlake backfill rollback --commit-ts 470548480035651584 --write-to target --replication orders.toml",
        f"binlake backfill emit --feed kafka-avro --topic again {_RANGE} --replication orders.toml",
    )
    help = "work on a past range of commit_ts: rebuild, repair, replay elsewhere, roll back, or send it to a feed again"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The five actions and the range."""
        actions = parser.add_subparsers(dest="action", required=True)
        rebuild_ = actions.add_parser("rebuild", help="derive its windows again and compare; the target is not written")
        rebuild_.add_argument("--through", choices=("merge", "convert"), default="merge", help="the last stage")
        repair_ = actions.add_parser("repair", help="set every key that it changed to its state at the checkpoint")
        replay_ = actions.add_parser("replay", help="apply it to another target, up to exactly --to")
        replay_.add_argument("--into", required=True, metavar="FILE", help="TOML whose [target] receives the range")
        rollback_ = actions.add_parser("rollback", help="undo it with new changes")
        rollback_.add_argument(
            "--write-to", choices=("source", "target", "file"), required=True, help="where the changes that undo it go"
        )
        rollback_.add_argument("--file", type=Path, help="with --write-to file: the file to write")
        rollback_.add_argument("--force", action="store_true", help="overwrite later changes of the same keys")
        emit_ = actions.add_parser("emit", help="encode and send it again as a feed does; the feed itself continues")
        emit_.add_argument("--feed", required=True, metavar="ID", help="the feed")
        emit_.add_argument("--topic", default="", help="another topic, with {schema} and {table}; default: the feed's")
        emit_.add_argument("--sink-uri", default="", metavar="URI", help="another sink; default: the feed's")
        for each in (rebuild_, repair_, replay_, rollback_, emit_):
            add_job(each)
            add_output(each)
            _add_range(each, required=each is not replay_, single=each in (repair_, rollback_))
        for each in (repair_, rollback_):
            add_wait(each)
        for each in (rebuild_, replay_, emit_):
            add_where(each, master="local[*]")

    def run(self, args: argparse.Namespace) -> int:
        """Run the action and print the results."""
        replication = load_replication(args.replication)
        _require_range(args)
        act: Callable[[], list[StageResult]] = {
            "rebuild": lambda: _rebuild(replication, args),
            "repair": lambda: [_repair(replication, args)],
            "replay": lambda: _replay(replication, args),
            "rollback": lambda: [_rollback(replication, args)],
            "emit": lambda: _emit(replication, args),
        }[args.action]
        with show_progress(f"backfill {args.action}") as args.tell:
            results = run_and_report(args, lambda: _run_under_lock(replication, act))
        show_results(args, results)
        return DIFFERENT if any(result.state == "changed" for result in results) else 0


def _add_range(parser: argparse.ArgumentParser, *, required: bool, single: bool) -> None:
    for name, text in (("from", "commit_ts after which the range starts"), ("to", "last commit_ts of the range")):
        both = parser.add_mutually_exclusive_group(required=required if name == "from" else not single)
        both.add_argument(f"--{name}", type=parse_moment, dest=f"{name}_ts", metavar="TS", help=text)
        both.add_argument(
            f"--{name}-time", type=parse_moment, dest=f"{name}_ts", metavar="TIME", help="the same as a time"
        )
        if single and name == "from":
            both.add_argument(
                "--commit-ts", type=parse_moment, metavar="TS", help="one transaction, instead of a range"
            )


def _require_range(args: argparse.Namespace) -> None:
    """Turn --commit-ts into the range (commit_ts - 1, commit_ts]. Raises ConfigError."""
    one = getattr(args, "commit_ts", None)
    if (one is None) == (args.to_ts is None):
        raise ConfigError(
            "the end of the range is missing, or given twice", hint="give --from and --to, or --commit-ts alone"
        )
    if one is not None:
        args.from_ts, args.to_ts = one - 1, one


def _run_under_lock(replication: Replication, act: Callable[[], list[StageResult]]) -> list[StageResult]:
    with hold_lake_lock(LakePaths.of(replication), "backfill", wait_s=0):
        return act()


def _open_progress(replication: Replication, args: argparse.Namespace) -> BackfillProgress:
    name = args.run_id or f"{args.action}-{args.from_ts}-{args.to_ts}"
    return BackfillProgress(WindowLog(LakePaths.of(replication)), name, args.from_ts, args.to_ts, args.tell)


def _rebuild(replication: Replication, args: argparse.Namespace) -> list[StageResult]:
    ctx = build_context(replication, "rebuild", args, args.run_id)
    with translate_errors():
        return rebuild(ctx, _open_progress(replication, args), through=args.through)


def _repair(replication: Replication, args: argparse.Namespace) -> StageResult:
    progress = _open_progress(replication, args)
    done = repair_range(replication, progress, wait_s=args.wait)
    detail = {"mode": "repair", "keys": done.keys, "different": done.different}
    detail |= {"rows": done.rows, "gone": done.gone, "unknown": done.unknown, "aside": done.aside}
    detail["checkpoint"] = str(done.commit_ts)
    progress.finish(detail)
    return StageResult("backfill", "done", args.from_ts, args.to_ts, done.rows, detail=detail | repair_lineage(done))


def _replay(replication: Replication, args: argparse.Namespace) -> list[StageResult]:
    # --into names only the target: the changes to apply are in this replication's lake, under its name.
    into = replication.model_copy(update={"target": load_replication(args.into).target})
    return replay(replication, build_context(into, "replay", args, args.run_id), args.from_ts, args.to_ts)


def _emit(replication: Replication, args: argparse.Namespace) -> list[StageResult]:
    # Imported late: sinks need the extra `feeds`, and the other actions do not.
    from binlake.spark_jobs.commands.emit import Destination, emit

    ctx = build_context(replication, "emit", args, args.run_id)
    with translate_errors():
        return emit(ctx, args.feed, args.from_ts, args.to_ts, Destination(args.topic, args.sink_uri))


def _rollback(replication: Replication, args: argparse.Namespace) -> StageResult:
    plan, rows = _roll_back(replication, args)
    run_id = args.run_id or f"rollback-{uuid.uuid4().hex[:12]}"
    state = "written" if args.write_to == "file" else "done"
    detail = {"keys": plan.keys, "write_to": args.write_to, "forced": args.force, "later": len(plan.later)}
    result = StageResult("rollback", state, plan.lo, plan.hi, rows, detail=detail)
    result = record_result(replication, result, run_id)
    written = [undo.table for undo in plan.tables if undo.undos and rows and state == "done"]
    return replace(result, detail={**result.detail} | build_lineage(wrote=map(describe_table, written)))


def _roll_back(replication: Replication, args: argparse.Namespace) -> tuple[Rollback, int]:
    if args.write_to == "source":
        return rollback_source(replication, args.from_ts, args.to_ts, force=args.force)
    with hold_target(replication, args.wait) as target:
        if args.write_to == "target":
            return rollback_target(replication, args.from_ts, args.to_ts, target, force=args.force)
        if args.file is None:
            raise ConfigError("no output file is given for the SQL", hint="give --file FILE")
        ts = target.read_checkpoint().commit_ts
        return rollback_file(replication, args.from_ts, args.to_ts, args.file, ts, force=args.force)


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
    return [MemoryRows(open_dataset(open_table(ctx.paths.locate_table(table.name))).to_table(filter=own))]


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
