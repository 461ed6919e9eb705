"""`binlake backfill`: rebuild, repair, replay, roll back or resend a past range of commit_ts.

Exit status 0 done, 4 if a rebuild gave rows that differ from the old ones, 1 an error, which says whether to retry. One
backfill of a lake runs at a time. The schedule continues meanwhile: the lake's locks and the target's lease keep them
apart.
"""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from binlake.base.commandline import add_output
from binlake.base.terminal import show_progress
from binlake.config import Replication, load_replication
from binlake.errors import ConfigError
from binlake.lake.lock import hold_lake_lock
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowLog
from binlake.repair.rangerepair import BackfillProgress, hold_target, repair_range
from binlake.repair.rollback import Rollback, rollback_file, rollback_source, rollback_target
from binlake.spark_jobs.commands.rebuild import rebuild, replay
from binlake.spark_jobs.commands.verify import record_result, repair_lineage
from binlake.spark_jobs.job.arguments import add_job, add_wait, add_where, parse_moment
from binlake.spark_jobs.job.failures import translate_errors
from binlake.spark_jobs.job.lineage import describe_table
from binlake.spark_jobs.job.opening import build_context
from binlake.spark_jobs.job.outcomes import DIFFERENT, run_and_report, show_results
from binlake.spark_jobs.job.results import StageResult
from binlake.window.lineage import build_lineage

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
