"""Options that commands of every room share."""

from __future__ import annotations

import argparse

from binlake import tso


def add_output(parser: argparse.ArgumentParser) -> None:
    """Declare `--output`, text or json."""
    parser.add_argument(
        "--output",
        choices=("text", "json"),
        default="text",
        help="form of the result; in JSON timestamps are text",
    )


def read_moment(text: str) -> int:
    """The type of an option that takes a commit_ts or a time."""
    try:
        return tso.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
