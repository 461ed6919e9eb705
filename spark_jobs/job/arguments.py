"""Command-line arguments that the commands share. Imports no Spark, because some commands do not need it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from binlake import tso

DEFAULT_MASTER = "local[*]"
"""The Spark of a command if none was named. It starts only if a stage cannot do without."""


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
