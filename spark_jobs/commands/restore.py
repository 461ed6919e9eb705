"""`binlake restore`: what the lake holds goes to the target, up to a landed commit_ts; no source, no pump, no PD.

The lake is the incremental backup (MISSION S0-01): the target holds a base with its checkpoint, or nothing and starts
where the lake starts. Windows that the target has passed are left alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from binlake.audit.audit import Audit
from binlake.base.arguments import add_output
from binlake.config import load_replication
from binlake.config.model import Relay
from binlake.errors import CheckpointConflict, ConfigError
from binlake.pipeline import names_of_sink
from binlake.window.manifest import window_name
from spark_jobs.job.arguments import add_where, parse_commit_ts
from spark_jobs.job.context import Bounds, StageContext, StageResult
from spark_jobs.job.lineage import Gathered
from spark_jobs.job.opening import context_of
from spark_jobs.job.outcomes import show_results
from spark_jobs.job.runner import run_sink
from spark_jobs.tables.pinned import target_position

SINK_STAGES = names_of_sink("sql")


class RestoreCommand:
    """Apply landed windows to the target of the replication file."""

    help = "apply the landed windows of the lake to the target, without the source"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The replication, how far, where Spark runs."""
        parser.add_argument("--replication", required=True, metavar="FILE", help="TOML with the target to restore into")
        parser.add_argument(
            "--to", type=parse_commit_ts, metavar="TS", help="the end of a landed window (default: the last)"
        )
        add_where(parser, master="local[*]")
        add_output(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Restore and print what was done."""
        replication = load_replication(args.replication)
        ctx = context_of(replication, "restore", args)
        results = restore(ctx, args.to)
        known = tables_in_part(ctx, results)
        if known:
            results[-1] = replace(results[-1], detail={**results[-1].detail, "inexact": known})
        show_results(args, results, [f"{name}: {why}" for name, why in sorted(known.items())])
        return 0


def restore(ctx: StageContext, to: int | None = None) -> list[StageResult]:
    """Apply all landed windows up to `to` (commit_ts) in order. Raises ConfigError when no landed window ends there."""
    landed = ctx.windows.landed()
    ends = [hi for _, hi in landed]
    last = to if to is not None else (ends[-1] if ends else 0)
    if last not in ends:
        below = max((hi for hi in ends if hi < last), default=None)
        raise ConfigError(
            f"there is no landed window that ends at {last}",
            where={"lake": ctx.paths.root, "nearest_below": below},
            hint="`binlake window list` shows them; a `stop-at` in the configuration ends a window where you want",
        )
    # The lake that it reads is the copy: relay files are the sync's.
    ctx = replace(ctx, replication=ctx.replication.model_copy(update={"relay": Relay()}))
    _require_not_open_beyond(ctx, Bounds(landed[0][0], last))
    due = (window for window in landed if window[1] <= last)
    return Gathered(result for window in due for result in run_sink(ctx, SINK_STAGES, Bounds(*window))).results()


def tables_in_part(ctx: StageContext, results: Sequence[StageResult]) -> dict[str, str]:
    """Tables of which the target has only what the lake saw, but for a base that was there before (R-34): why."""
    if not results:
        return {}
    found = Audit(ctx.paths, ctx.rules).tables_in_part(results[-1].hi)
    return {f"{db}.{table}": why for (db, table), why in found.items()}


def _require_not_open_beyond(ctx: StageContext, bounds: Bounds) -> None:
    """A window that the target holds open is finished whole, wherever it ends."""
    opened = target_position(ctx, bounds).window
    if opened is not None and opened[1] > bounds.hi:
        raise CheckpointConflict(
            f"the target holds the window {window_name(*opened)} open, which ends above {bounds.hi}",
            hint="restore to the end of that window, or further",
        )
