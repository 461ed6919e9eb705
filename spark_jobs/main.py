"""The entry of a Spark job: `STAGE --replication FILE …`, by spark-submit, as a module, or in process (`run_job`).

The outcome goes to `--result` as JSON, so that whoever started the job learns what failed and whether to retry.
"""

from __future__ import annotations

import argparse
import json
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from binlake.config import load_replication
from binlake.errors import BinlakeError, Permanent, UnknownOutcome
from binlake.pipeline import BY_NAME
from spark_jobs.context import Bounds, StageContext, StageResult
from spark_jobs.runner import run_stage, run_window
from spark_jobs.session import classic_session, connect_session


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of a job but for its first, the stage."""
    parser.add_argument("--replication", required=True, metavar="FILE", help="the replication's TOML")
    parser.add_argument("--lo", type=int, help="commit_ts, exclusive (all stages but plan and window)")
    parser.add_argument("--hi", type=int, help="commit_ts, inclusive (all stages but plan and window)")
    parser.add_argument("--start-ts", type=int, help="plan from this commit_ts (see docs/runbook.md)")
    parser.add_argument("--stop-ts", type=int, help="plan no further than this commit_ts; wait until it is reached")
    parser.add_argument("--run-id", default="", help="name of this run in the table `window`")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--remote", help="Spark Connect server, sc://host:port")
    where.add_argument("--master", help="Spark master of a session in this process, such as local[2]")
    parser.add_argument("--result", type=Path, metavar="FILE", help="write the outcome there as JSON")


def run_job(argv: Sequence[str]) -> dict[str, Any]:
    """Run one job; `{"ok": true, "results": […]}` or `{"ok": false, "error": {kind, class, message}}`.

    Only errors of Binlake become an outcome; anything else is a fault of the program and is raised.
    """
    args = _parse(argv)
    try:
        outcome: dict[str, Any] = {"ok": True, "results": [result.to_dict() for result in execute(args.stage, args)]}
    except BinlakeError as error:
        outcome = {"ok": False, "error": describe(error)}
    if args.result:
        args.result.write_text(json.dumps(outcome), encoding="utf-8")
    return outcome


def execute(stage: str, args: argparse.Namespace) -> list[StageResult]:
    """Run `stage` (or `window`: all of them) as the arguments say. Raises BinlakeError."""
    replication = load_replication(args.replication)
    run_id = args.run_id or f"cli-{uuid.uuid4().hex[:12]}"
    ctx = StageContext(replication, run_id, session_factory(f"binlake-{replication.name}", args), args.stop_ts)
    if stage == "window":
        return run_window(ctx, args.start_ts)
    if stage == "plan":
        return [run_stage(stage, ctx, start_ts=args.start_ts)]
    if args.lo is None or args.hi is None:
        raise Permanent("the bounds are missing", where={"stage": stage}, hint="give --lo and --hi")
    return [run_stage(stage, ctx, Bounds(args.lo, args.hi))]


def session_factory(app: str, args: argparse.Namespace) -> Callable[[], SparkSession]:
    """How this job gets its session: a Connect server, a given master, or what spark-submit set."""
    if args.remote:
        return lambda: connect_session(args.remote)
    return lambda: classic_session(app, args.master)


def describe(error: BinlakeError) -> dict[str, str]:
    """The error for whoever started the job: its class decides about a retry."""
    kind = "Permanent" if isinstance(error, Permanent) else "Transient"
    kind = "UnknownOutcome" if isinstance(error, UnknownOutcome) else kind
    return {"kind": kind, "class": type(error).__name__, "message": str(error)}


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="spark_jobs.main")
    parser.add_argument("stage", choices=[*BY_NAME, "window"])
    add_arguments(parser)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0, or 1 with one line that says what failed."""
    outcome = run_job(sys.argv[1:] if argv is None else argv)
    if not outcome["ok"]:
        print(f"error: {outcome['error']['message']}", file=sys.stderr)
    return 0 if outcome["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
