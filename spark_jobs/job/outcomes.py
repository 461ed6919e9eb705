"""How a command reports its outcome: as text or JSON, and to `--result`. Imports no Spark, which some do not need."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence

from binlake.base.commandline import Exit
from binlake.base.terminal import print_table
from binlake.errors import BinlakeError
from binlake.spark_jobs.job.results import StageResult, build_error_outcome, build_outcome, write_outcome
from binlake.window.cuts import describe_waiting_ddl

PARTIAL = Exit.NOT_FOUND
"""Exit status if everything that could be compared is equal, but something could not be compared."""
DIFFERENT = Exit.ATTENTION
"""Exit status if the compared data differs."""


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
