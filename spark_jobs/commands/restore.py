"""`binlake restore`: a database as of any landed commit_ts, from a base and the lake, without source, pumps or PD.

The lake is the incremental backup (MISSION S0-01). The base is one of: the target's present rows and checkpoint, a dump
that is loaded first (`--base`), or nothing, if the lake holds the source's changes from its very beginning.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import structlog

from binlake.audit.audit import Audit
from binlake.common.commandline import add_output
from binlake.config import Replication, load_replication
from binlake.config.servers import RelaySection
from binlake.errors import CheckpointConflict, ConfigError, LostRange
from binlake.extras.reparo.command import open_data
from binlake.extras.reparo.restore import restore as replay_files
from binlake.extras.reparo.settings import DestDb, ReparoSettings
from binlake.lake.ddls import read_landed_ddls
from binlake.mysqlbinlog.dumpfolder import Name
from binlake.pipeline import list_required_stages
from binlake.spark_jobs.job.context import Bounds, StageContext, StageResult, build_context
from binlake.spark_jobs.job.lineage import Gathered
from binlake.spark_jobs.job.results import add_job, add_where, parse_moment, run_and_report, show_results
from binlake.spark_jobs.job.runner import run_sink
from binlake.spark_jobs.shared.nextwindow import read_cluster_id, read_target_position
from binlake.target.base import BaseDump, BaseTask, find_base, load_base
from binlake.target.commands.checkpoint import read_stored_checkpoint, set_checkpoint
from binlake.window.cuts import require_outside_ddl
from binlake.window.manifest import format_window_name

log = structlog.get_logger(__name__)

SINK_STAGES = list_required_stages("sql")


class RestoreCommand:
    """Bring the target of a replication to its state at a commit_ts."""

    examples = ("binlake restore --into copy.toml --to 2026-11-29T10:00:00Z --replication orders.toml",)
    help = "bring a database to any landed commit_ts: from a dump (or its present rows) and the lake, without source"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The replication, the base, how far to go, where Spark runs."""
        add_job(parser)
        parser.add_argument(
            "--into", metavar="FILE", help="TOML whose [target] is restored (default: the replication's)"
        )
        parser.add_argument(
            "--base",
            metavar="FOLDER|TS",
            help="a dump of mydumper or dumpling, loaded first; or the commit_ts at which the target equals the source",
        )
        parser.add_argument(
            "--base-ts",
            type=parse_moment,
            metavar="TS",
            help="the dump's commit_ts, if its metadata does not contain it",
        )
        parser.add_argument(
            "--files", metavar="URI", help="use binlog files (of a feed, or of a drainer) instead of the lake"
        )
        parser.add_argument(
            "--time-zone", metavar="ZONE", help="time zone of TIMESTAMPs in a drainer's files (default: UTC)"
        )
        parser.add_argument(
            "--to",
            type=parse_moment,
            metavar="TS|TIME",
            help="restore up to this commit_ts or time, inclusive (default: all that has landed)",
        )
        add_where(parser, master="local[*]")
        add_output(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Restore and print what was done."""
        replication = load_replication(args.replication)
        if args.into:
            # --into names only the target: the changes to apply are in this replication's lake, under its name.
            replication = replication.model_copy(update={"target": load_replication(args.into).target})
        if args.files:
            results = run_and_report(args, lambda: [restore_from_files(replication, args)])
        else:
            ctx = build_context(replication, "restore", args, args.run_id)
            results = run_and_report(args, lambda: restore_from_base(ctx, args.base, args.base_ts, args.to))
        known = results[-1].detail.get("inexact", {}) if results else {}
        show_results(args, results, [f"{name}: {why}" for name, why in sorted(known.items())])
        return 0


def restore_from_base(ctx: StageContext, base: str | None, base_ts: int | None, to: int | None) -> list[StageResult]:
    """As `restore`, from a base: a dump's folder, or the commit_ts in `base`.

    The last result names tables whose rows are only partly known. Raises ConfigError and LostRange before anything is
    written if base, lake and `to` do not fit each other.
    """
    landed = _require_landed_range(ctx)
    results: list[StageResult] = []
    loaded: Collection[Name] = ()
    if base is not None:
        commit_ts = int(base) if base.isdecimal() else find_base(Path(base), base_ts).commit_ts
        _require_in_lake(ctx, landed, commit_ts, to)
        if base.isdecimal():
            _set_base(ctx, landed, commit_ts)
        else:
            dump = BaseDump(Path(base), commit_ts)
            results.append(_load(ctx.replication, dump, read_cluster_id(ctx, landed)))
            loaded = dump.dump.tables
    results += restore(ctx, to)
    known = {name: why for name, why in find_incomplete_tables(ctx, results[-1].hi).items() if name not in loaded}
    if known:
        inexact = {".".join(name): why for name, why in known.items()}
        results[-1] = replace(results[-1], detail={**results[-1].detail, "inexact": inexact})
    return results


def restore_from_files(replication: Replication, args: argparse.Namespace) -> StageResult:
    """As `binlake reparo`, into the target of `replication`, with its table lists; other rules raise ConfigError."""
    began, target, lists = time.monotonic(), replication.require_sql_target(), replication.filter
    own = (replication.routes, replication.filters, replication.expression_filter, replication.block_allow_list)
    if any(own) or lists.ignore_txn_commit_ts:
        raise ConfigError(
            "files hold the source's changes as they were, but this replication has rules that a restore from files"
            " does not apply",
            where={"replication": replication.name},
            hint="restore from the lake, or use `binlake reparo`, which does not apply these rules",
        )
    base = args.base or ""
    start = {"start_tso": int(base) + 1} if base.isdecimal() else {"base": base, "base_ts": args.base_ts or 0}
    settings = ReparoSettings(
        data_dir=args.files, **start, stop_tso=args.to or 0, time_zone=args.time_zone or "",
        dest_type=target.db_type, mode=target.mode if target.mode != "ordered" else "auto",
        dest_db=DestDb(host=target.host, port=target.port, user=target.user, password=target.password),
        worker_count=target.worker_count, name=f"restore-{replication.name}"[:64],
        replicate_do_db=lists.replicate_do_db, replicate_do_table=lists.replicate_do_table,
        replicate_ignore_db=lists.ignore_schemas, replicate_ignore_table=lists.ignore_table,
    )  # fmt: skip
    done = replay_files(settings, open_data(settings), say=lambda line: log.info("restore", progress=line))
    state = "done" if done.state == "applied" else done.state
    detail = {"files": args.files, "windows": done.windows, "ddl": done.ddls, "ddl_skipped": list(done.skipped)}
    return StageResult("restore", state, done.begin, done.end, done.rows, time.monotonic() - began, "", detail)


def restore(ctx: StageContext, to: int | None = None) -> list[StageResult]:
    """Apply what has landed up to exactly `to` (commit_ts; None: all). Returns the stages' results, at least one.

    Raises ConfigError if `to` has not landed or lies inside a DDL, CheckpointConflict if the target is already past it.
    """
    landed = _require_landed_range(ctx)
    last = landed.hi if to is None else to
    if not landed.lo < last <= landed.hi:
        raise ConfigError(
            f"{last} has not landed",
            where={"lake": ctx.paths.root, "landed": landed.window},
            hint="give a commit_ts or time within the landed range; `binlake window list` shows its windows",
        )
    # The lake is the durable copy, so no relay files are written here; those belong to the scheduled sync.
    ctx = replace(ctx, replication=ctx.replication.model_copy(update={"relay": RelaySection()}))
    reached = _find_reached_ts(ctx, Bounds(landed.lo, last))
    if reached == last:
        return [StageResult("restore", "already", last, last, detail={"reason": "the target is at that commit_ts"})]
    due = (Bounds(lo, min(hi, last)) for lo, hi in ctx.windows.list_landed((reached, last)))
    return Gathered(result for bounds in due for result in run_sink(ctx, SINK_STAGES, bounds)).list_results()


def find_incomplete_tables(ctx: StageContext, commit_ts: int) -> dict[Name, str]:
    """Tables of which the lake has only later changes, not the rows from before (R-34), with the reason.

    The target is complete for them only if it had those rows already.
    """
    return dict(Audit(ctx.paths, ctx.rules).find_incomplete_tables(commit_ts))


def _require_landed_range(ctx: StageContext) -> Bounds:
    landed = ctx.windows.find_landed_range()
    if landed is None:
        raise ConfigError("nothing has landed yet", where={"lake": ctx.paths.root}, hint="see `lake.path`")
    return Bounds(*landed)


def _find_reached_ts(ctx: StageContext, bounds: Bounds) -> int:
    """The target's position: the lo of its open window, else its checkpoint. Raises CheckpointConflict."""
    position = read_target_position(ctx, bounds)
    opened = position.window
    if opened is not None and (opened[1] > bounds.hi or opened[0] < bounds.lo):
        raise CheckpointConflict(
            f"the target holds the window {format_window_name(*opened)} open, which"
            + (f" ends above {bounds.hi}" if opened[1] > bounds.hi else " is a dump that is being loaded"),
            hint="restore to the end of that window, or further" if opened[1] > bounds.hi
            else "run restore with the --base with which that load was started",
        )  # fmt: skip
    reached = bounds.lo if position.commit_ts is None else position.commit_ts
    if opened is None and reached > bounds.hi:
        raise CheckpointConflict(
            f"the target is already past {bounds.hi}",
            where={"commit_ts": reached},
            hint="a restore goes forward only: use an empty target and a base from before that commit_ts",
        )
    return opened[0] if opened is not None else reached


def _require_in_lake(ctx: StageContext, landed: Bounds, base: int, to: int | None) -> None:
    """Check that the lake has all changes after the base. Raises LostRange, ConfigError."""
    if base < landed.lo:
        raise LostRange(
            f"the lake begins at {landed.lo}, after the base: the changes between are in neither",
            where={"base": base, "lake": ctx.paths.root},
            hint="use a newer dump, or binlog files of that range (`binlake reparo`)",
        )
    if base > (landed.hi if to is None else to):
        raise ConfigError(
            "the base is newer than the commit_ts to restore to",
            where={"base": base, "to": landed.hi if to is None else to},
            hint="use an older dump; a restore goes forward only",
        )
    for lo, hi in ctx.windows.list_landed((base - 1, base + 1)):
        if lo < base < hi:
            require_outside_ddl(read_landed_ddls(ctx.paths, lo, hi), lo, base)


def _set_base(ctx: StageContext, landed: Bounds, base: int) -> None:
    target, cluster_id = ctx.replication.require_sql_target(), read_cluster_id(ctx, landed)
    # Without a row, `--base` says where the target is, even if it had a row before.
    has_row = read_stored_checkpoint(target, cluster_id).checkpoint is not None
    known = read_target_position(ctx, landed).commit_ts if has_row else None
    if known is None or known < base:
        set_checkpoint(ctx.replication, target, cluster_id, base)


def _load(replication: Replication, base: BaseDump, cluster: int) -> StageResult:
    target = replication.require_sql_target(hint="add a section [target], or give --into")
    done = load_base(target, BaseTask.of(replication, cluster), base)
    state = "done" if done.state == "applied" else done.state
    detail = {"batches": done.batches, "ddl": done.ddls, "folder": str(base.folder)}
    views = [".".join(name) for name in base.dump.views]
    detail |= {"views_left_out": views} if views else {}
    detail |= {"files_left_out": list(base.dump.left_out)} if base.dump.left_out else {}
    return StageResult("base", state, done.lo, done.hi, done.rows, done.seconds, "", detail)
