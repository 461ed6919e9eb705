"""Options that the commands of all rooms share."""

from __future__ import annotations

import argparse

from binlake import tso


def add_output(parser: argparse.ArgumentParser) -> None:
    """Declare `--output`, text or json."""
    parser.add_argument(
        "--output",
        choices=("text", "json"),
        default="text",
        help="format of the result; JSON has timestamps as text",
    )


def read_moment(text: str) -> int:
    """The argparse type of an option whose value is a commit_ts or a time."""
    try:
        return tso.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
