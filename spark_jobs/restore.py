"""`binlake restore`: what the lake holds goes to the target, up to a landed commit_ts; no source, no pump, no PD.

The lake is the incremental backup (MISSION S0-01): the target holds a base with its checkpoint, or nothing and starts
where the lake starts. Windows that the target has passed are left alone.
"""

from __future__ import annotations

import argparse
import uuid

from binlake.config import load_replication
from binlake.errors import CheckpointConflict, ConfigError
from spark_jobs.commands import show
from spark_jobs.context import Bounds, StageContext, StageResult
from spark_jobs.main import session_factory
from spark_jobs.runner import STOPPED, run_stage

SINK_STAGES = ("compact", "convert", "finalize")


class RestoreCommand:
    """Apply landed windows to the target of the replication file."""

    help = "apply what the lake holds to the target, without the source"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The replication, how far, where Spark runs."""
        parser.add_argument("--replication", required=True, metavar="FILE", help="TOML with the target to restore into")
        parser.add_argument("--to", type=int, metavar="TS", help="the end of a landed window (default: the last)")
        where = parser.add_mutually_exclusive_group()
        where.add_argument("--remote", help="Spark Connect server, sc://host:port")
        where.add_argument("--master", default="local[*]", help="Spark master of a session in this process")
        parser.add_argument("--output", choices=("text", "json"), default="text")

    def run(self, args: argparse.Namespace) -> int:
        """Restore and print what was done."""
        replication = load_replication(args.replication)
        make = session_factory(f"binlake-restore-{replication.name}", args)
        ctx = StageContext(replication, f"restore-{uuid.uuid4().hex[:12]}", make)
        show(restore(ctx, args.to), args.output)
        return 0


def restore(ctx: StageContext, to: int | None = None) -> list[StageResult]:
    """Apply all landed windows up to `to` (commit_ts) in order. Raises ConfigError when no landed window ends there."""
    landed = ctx.windows.landed()
    ends = [hi for _, hi in landed]
    last = to if to is not None else (ends[-1] if ends else 0)
    if last not in ends:
        below = max((hi for hi in ends if hi < last), default=None)
        raise ConfigError(
            f"no landed window ends at {last}",
            where={"lake": ctx.paths.root, "nearest_below": below},
            hint="`binlake window list` shows them; a stop-at in the configuration makes one end where you want it",
        )
    return [result for window in landed if window[1] <= last for result in _apply(ctx, Bounds(*window), last)]


def _apply(ctx: StageContext, bounds: Bounds, last: int) -> list[StageResult]:
    results: list[StageResult] = []
    for stage in SINK_STAGES:
        results.append(run_stage(stage, ctx, bounds))
        if results[-1].hi > last:
            raise CheckpointConflict(
                f"the lake holds a window of the SQL sink that ends at {results[-1].hi}, above {last}",
                where={"window": bounds.window},
                hint="an earlier target took several landed windows as one: restore to the end of that window",
            )
        if results[-1].state in STOPPED:
            break
        bounds = Bounds(results[-1].lo, results[-1].hi)
    return results
