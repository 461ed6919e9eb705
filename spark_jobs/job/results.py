"""What a job gets and gives: arguments that commands share, its bounds, its result, and how it is reported.

An outcome is text or JSON, and goes to `--result`. This imports no Spark, because some commands run without it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from binlake import tso
from binlake.common.commandline import Exit
from binlake.common.terminal import print_table
from binlake.errors import BinlakeError, Permanent
from binlake.window.cuts import describe_waiting_ddl
from binlake.window.manifest import OfWindow

MORE = "more"
"""In the outcome of a window after which the process goes on: the outcome of the whole follows."""
STAGE = "stage"
"""As the value of MORE: the outcome is that of one stage of a window, not of a whole one."""
CUT = "cut_at_bytes"
"""In the detail of a landed window: it ends below the requested hi, because it reached `window.max-bytes`."""

BYTES = "bytes"
"""In the detail of a landed window: its bytes of binlogs."""
DEFAULT_MASTER = "local[*]"
"""The Spark of a command if none was named. It starts only if a stage cannot do without."""
PARTIAL = Exit.NOT_FOUND
"""Exit status if everything that could be compared is equal, but something could not be compared."""
DIFFERENT = Exit.ATTENTION
"""Exit status if the compared data differs."""


class SparkNeeded(Permanent):
    """A stage needs a Spark session in a process that may not start one. The stage can be repeated safely."""

    def __init__(self) -> None:
        super().__init__(
            "this needs Spark, but `--without-spark` or `--spark-later` forbids starting it",
            hint='omit that option (with `window.engine = "auto"` this process then runs it), or name a Connect server'
            " (`--remote`) or a master (`--master`)",
        )


@dataclass(frozen=True)
class Bounds(OfWindow):
    """The window (lo, hi] a stage works on; both are commit_ts."""

    lo: int
    hi: int


@dataclass(frozen=True)
class StageResult:
    """How a stage ended: `state` done, already, ready, blocked, waiting or skipped; bounds; rows; seconds; detail.

    `recover` has other states: recovered, nothing-to-do, pd-answers. `derived`: for the next stage in this process.
    """

    stage: str
    state: str
    lo: int
    hi: int
    rows: int = 0
    seconds: float = 0.0
    blocked_by: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)
    derived: Any = field(default=None, compare=False, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """For XCom and `--output json`: commit_ts as decimal strings (invariant 12)."""
        shown = {name: value for name, value in vars(self).items() if name != "derived"}
        return {**shown, "lo": str(self.lo), "hi": str(self.hi), "detail": dict(self.detail)}


def build_outcome(results: Sequence[StageResult]) -> dict[str, Any]:
    """The outcome of a job that succeeded."""
    return {"ok": True, "results": [result.to_dict() for result in results]}


def build_error_outcome(error: BinlakeError) -> dict[str, Any]:
    """The outcome of a job that failed; `kind` tells the caller whether to retry."""
    return {"ok": False, "error": {"kind": error.kind, "class": type(error).__name__, "message": str(error)}}


def append_outcome(outcome: Mapping[str, Any], place: Path | None) -> None:
    """Add the outcome to those in the file `place`, each in its own line, if the caller named one."""
    if place is not None:
        with place.open("a", encoding="utf-8") as file:
            file.write(json.dumps(outcome) + "\n")


def write_outcome(outcome: Mapping[str, Any], place: Path | None) -> None:
    """Write the outcome as JSON to the file `place`, if the caller named one."""
    if place is not None:
        place.write_text(json.dumps(outcome), encoding="utf-8")


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
