"""`binlake recover`: when the source is gone and the target was left inside a window, finish that window and stop.

All data comes from the lake, or from relay files if there is no lake (S3-03, S3-09). Spark and the lake are imported
only where they are needed, because recovery can run with the target and relay files alone.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from binlake.common.commandline import add_output
from binlake.config import Replication, load_replication
from binlake.config.servers import RelaySection
from binlake.errors import CheckpointConflict, ConfigError, LostRange
from binlake.lake.paths import LakePaths
from binlake.spark_jobs.job.results import Bounds, StageResult, add_job, add_where, run_and_report
from binlake.target.recover import (
    RecoverVerdict,
    describe_exceptions,
    finish_from_relay,
    is_consistent,
    judge_recovery,
    require_consistent,
)
from binlake.window.lineage import KnownTable, LineageTable, build_lineage
from binlake.window.manifest import format_window_name

if TYPE_CHECKING:
    from binlake.spark_jobs.job.context import StageContext

ContextBuilder = Callable[[Replication], "StageContext"]


class RecoverCommand:
    """Finish the window in which the target was left."""

    examples = ("binlake recover --replication orders.toml",)
    help = (
        "when PD is gone and the target was left inside a window: finish that window from the lake or from relay files"
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The replication, where its statements come from, how far to go."""
        add_job(parser)
        parser.add_argument(
            "--log-dir", default="", metavar="DIR|URI", help="read relay files from there and do not use the lake"
        )
        parser.add_argument(
            "--roll-forward",
            action="store_true",
            help="then apply everything that has landed in the lake (needs Spark)",
        )
        add_where(parser, master="local[*]")
        add_output(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Recover, and print what was done. Raises BinlakeError."""
        _show(run_and_report(args, lambda: _run_recover(args)), args.output)
        return 0


def _run_recover(args: argparse.Namespace) -> list[StageResult]:
    replication = load_replication(args.replication)
    return recover(
        replication, lambda own: _build_context(own, args), log_dir=args.log_dir, roll_forward=args.roll_forward
    )


def recover(
    replication: Replication, build_own_context: ContextBuilder, *, log_dir: str = "", roll_forward: bool = False
) -> list[StageResult]:
    """Recover if the target needs it. The last result is that of `recover`; those before it are of stages that ran.

    Raises what `judge_recovery` and the stages raise; CheckpointConflict if the target is not consistent and this
    replication has no open window there; LostRange if neither a lake nor relay files can finish the window.
    """
    began = time.monotonic()
    if log_dir and roll_forward:
        raise ConfigError(
            "relay files hold only the open window", hint="omit --log-dir: landed windows are in the lake"
        )
    verdict = judge_recovery(replication)
    nothing = [_build_result(verdict.state, began, verdict.commit_ts, verdict.commit_ts, 0, reason=verdict.reason)]
    # A roll-forward interrupted between two windows left the target consistent; more windows may have landed.
    resumes = roll_forward and verdict.state == "nothing-to-do" and verdict.commit_ts > 0
    if verdict.state != "recover" and not resumes:
        return nothing
    if not roll_forward:
        _require_open(verdict)
    if not log_dir and _has_lake(replication):
        results, source = _from_lake(replication, verdict, build_own_context, roll_forward=roll_forward), "lake"
    else:
        results, source = _from_relay(replication, verdict, log_dir, roll_forward=roll_forward), "relay"
    if resumes and not results:
        return nothing
    checkpoint, aside = require_consistent(
        replication, _roll_forward_result(results, roll_forward), rolled_forward=roll_forward
    )
    rows = sum(result.rows for result in results if result.stage == "finalize")
    detail = {"reason": verdict.reason, "source": source, "but": describe_exceptions(aside)}
    recovered = _build_result("recovered", began, verdict.commit_ts, checkpoint.commit_ts, rows, **detail)
    return [*results, recovered]


def _from_lake(
    replication: Replication, verdict: RecoverVerdict, build_own_context: ContextBuilder, *, roll_forward: bool
) -> list[StageResult]:
    from binlake.spark_jobs.job.stagerun import run_stage

    # The lake is the durable copy: relay files would add nothing to an open window, and their folder may be gone.
    ctx = build_own_context(replication.model_copy(update={"relay": RelaySection()}))
    results, reached = [], verdict.commit_ts
    if verdict.window is not None:
        results.append(run_stage("finalize", ctx, Bounds(*verdict.window)))
        reached = results[-1].hi
    if not roll_forward:
        return results
    return results + _roll_forward(replace(ctx, replication=_force_safe_mode(replication)), reached)


def _force_safe_mode(replication: Replication) -> Replication:
    """`replication`, with safe mode forced if the target may hold rows above the checkpoint."""
    if replication.target is None or is_consistent(replication):
        return replication
    return replication.model_copy(update={"target": replication.target.model_copy(update={"safe_mode": "always"})})


def _roll_forward_result(results: list[StageResult], roll_forward: bool) -> str:
    if not roll_forward:
        return "the window is finished"
    return "everything that has landed is applied" if results else "nothing has landed above the checkpoint"


def _roll_forward(ctx: StageContext, reached: int) -> list[StageResult]:
    """Apply everything landed above `reached` (the checkpoint), after a merge if that was not done."""
    from binlake.spark_jobs.commands.restore import SINK_STAGES
    from binlake.spark_jobs.job.runner import run_sink
    from binlake.spark_jobs.job.stagerun import run_stage

    landed = ctx.windows.find_landed_ts()
    if landed is None or landed <= reached:
        return []
    results = []
    if (ctx.windows.find_greatest_hi("merge") or 0) < landed:
        results.append(run_stage("merge", ctx, Bounds(*ctx.windows.list_landed((landed - 1, landed))[0])))
    return results + run_sink(ctx, SINK_STAGES, Bounds(reached, landed))


def _from_relay(
    replication: Replication, verdict: RecoverVerdict, log_dir: str, *, roll_forward: bool
) -> list[StageResult]:
    if roll_forward:
        raise LostRange(
            "the lake does not exist at its path, so no landed window can be applied",
            where={"lake": LakePaths.of(replication).root},
            hint="restore the lake; or omit --roll-forward to finish only the open window from relay files",
        )
    if not (log_dir or replication.relay.log_dir):
        raise LostRange(
            "the lake does not exist at its path and there are no relay files: nothing can finish the open window",
            where={"lake": LakePaths.of(replication).root, "window": format_window_name(*_require_open(verdict))},
            hint="restore the lake, or pass --log-dir",
        )
    applied = finish_from_relay(replication, verdict, log_dir)
    detail: dict[str, Any] = {"segments": applied.segments, "batches": applied.batches}
    detail |= {"ddl": applied.ddls, "modes": applied.modes}
    state = "done" if applied.state == "applied" else applied.state
    # Relay files contain statements with table names, but no definitions of the source.
    detail |= build_lineage(wrote=(LineageTable(KnownTable(*name)) for name in sorted(applied.tables)))
    return [StageResult("finalize", state, applied.lo, applied.hi, applied.rows, applied.seconds, "", detail)]


def _require_open(verdict: RecoverVerdict) -> tuple[int, int]:
    if verdict.window is None:
        raise CheckpointConflict(
            "the target is not consistent, and this replication has no window open there",
            where={"commit_ts": verdict.commit_ts},
            hint="another writer left it so, or its checkpoint was reset: `binlake recover --roll-forward` applies what"
            " has landed, in safe mode where the target may already have rows",
        )
    return verdict.window


def _has_lake(replication: Replication) -> bool:
    """Whether the replication's lake exists. True for a remote lake: reading it reports an error if it is missing."""
    local = LakePaths.of(replication).local
    return local is None or (local / "window" / "_delta_log").is_dir()


def _build_result(state: str, began: float, lo: int, hi: int, rows: int, **detail: object) -> StageResult:
    return StageResult("recover", state, lo, hi, rows, time.monotonic() - began, "", detail)


def _build_context(replication: Replication, args: argparse.Namespace) -> StageContext:
    from binlake.spark_jobs.job.context import build_context

    return build_context(replication, "recover", args, args.run_id)


def _show(results: list[StageResult], output: str) -> None:
    if output == "json":
        print(json.dumps([result.to_dict() for result in results]))
        return
    for result in results[:-1]:
        print(f"{result.stage} {result.lo}-{result.hi}: {result.state}, {result.rows:,} rows")
    last = results[-1]
    print(f"{last.state}: {last.detail['reason']}")
    if last.state == "recovered":
        but_for = last.detail["but"]
        consistent = "false" if but_for else "true"
        print(f"the target equals the source at {last.hi}{but_for}; checkpoint consistent={consistent}")
