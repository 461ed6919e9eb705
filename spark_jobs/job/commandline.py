"""What commands share: their arguments, and how they report the outcome, as text or JSON and to `--result`.

Imports no Spark, because some commands do not need it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from binlake import tso
from binlake.base.commandline import Exit
from binlake.base.terminal import print_table
from binlake.errors import BinlakeError
from binlake.spark_jobs.job.results import StageResult, build_error_outcome, build_outcome, write_outcome
from binlake.window.cuts import describe_waiting_ddl

DEFAULT_MASTER = "local[*]"
"""The Spark of a command if none was named. It starts only if a stage cannot do without."""
PARTIAL = Exit.NOT_FOUND
"""Exit status if everything that could be compared is equal, but something could not be compared."""
DIFFERENT = Exit.ATTENTION
"""Exit status if the compared data differs."""


def add_job(parser: argparse.ArgumentParser) -> None:
    """Declare `--replication`, `--run-id` and `--result`."""
    parser.add_argument("--replication", required=True, metavar="FILE", help="the replication's TOML")
    parser.add_argument("--run-id", default="", help="name of this run in the table `window`")
    parser.add_argument("--result", type=Path, metavar="FILE", help="write the outcome there as JSON")


def parse_moment(text: str) -> int:
    """A commit_ts or time as tso.parse reads it, for argparse."""
    return _parse_with(tso.parse, text)


def parse_commit_ts(text: str) -> int:
    """A commit_ts or start_ts in decimal, for argparse."""
    return _parse_with(tso.parse_ts, text)


def parse_start_ts(text: str) -> int:
    """The same, or -1 = now."""
    return -1 if text == "-1" else parse_commit_ts(text)


def _parse_with(read: Callable[[str], int], text: str) -> int:
    try:
        return read(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_wait(parser: argparse.ArgumentParser) -> None:
    """Declare `--wait`, of a command that changes the target under its lease."""
    parser.add_argument(
        "--wait",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="seconds to wait for the lease while another process applies",
    )


def add_where(parser: argparse.ArgumentParser, *, master: str | None = None) -> None:
    """Declare `--remote` and `--master`, one of the two, for `build_session_factory`; `master` is the default."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--remote", help="Spark Connect server, sc://host:port")
    where.add_argument("--master", default=master, help="Spark master of a session in this process, such as local[2]")
    where.add_argument(
        "--without-spark", action="store_true", help="never start Spark; if a stage needs it, end with that error"
    )
    where.add_argument(
        "--spark-later",
        action="store_true",
        help="start no Spark now: end with an error if the window should run there, so that the caller submits it",
    )


def run_and_report(args: argparse.Namespace, act: Callable[[], Sequence[StageResult]]) -> list[StageResult]:
    """Call `act` and write its results, or its error, to `--result`. Raises what `act` raises."""
    try:
        results = list(act())
    except BinlakeError as error:
        write_outcome(build_error_outcome(error), args.result)
        raise
    write_outcome(build_outcome(results), args.result)
    return results


def show(results: Sequence[StageResult], output: str) -> None:
    """Print stage results as a table or as JSON (commit_ts as strings)."""
    if output == "json":
        print(json.dumps([result.to_dict() for result in results]))
        return
    rows = []
    for result in results:
        note = result.blocked_by or str(result.detail.get("reason", "")) or describe_waiting_ddl(result.detail)
        rows.append([result.stage, result.state, str(result.lo), str(result.hi), f"{result.rows:,}",
                     f"{result.seconds:.2f}", note])  # fmt: skip
    print_table(("stage", "state", "lo", "hi", "rows", "seconds", ""), rows, whole=("lo", "hi"))


def show_results(args: argparse.Namespace, results: list[StageResult], lines: Sequence[str] = ()) -> None:
    """Print the results; as text, followed by `lines`."""
    show(results, args.output)
    if args.output == "text":
        for line in lines:
            print(line)
