"""Options that the commands of all rooms share."""

from __future__ import annotations

import argparse
import math

from binlake import tso


def add_output(parser: argparse.ArgumentParser) -> None:
    """Declare `--output`, text or json."""
    parser.add_argument(
        "--output",
        choices=("text", "json"),
        default="text",
        help="format of the result; JSON has timestamps as text",
    )


def add_replications(parser: argparse.ArgumentParser) -> None:
    """Declare REPLICATION, any number of them, also as `--replication` as in commands of one replication."""
    about = "its name or its TOML file (default: all)"
    parser.add_argument("replication", nargs="*", metavar="REPLICATION", help=about)
    parser.add_argument("--replication", dest="named", action="append", metavar="REPLICATION", help="the same")


def list_replications(args: argparse.Namespace) -> list[str]:
    """The replications that the arguments of `add_replications` name; empty: all."""
    return [*args.replication, *(args.named or ())]


def read_moment(text: str) -> int:
    """The argparse type of an option whose value is a commit_ts or a time."""
    try:
        return tso.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def parse_seconds(text: str) -> float:
    """The argparse type of an option whose value is a number of seconds above 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def parse_count(text: str) -> int:
    """The argparse type of an option whose value is a number above 0."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)
