"""Options that commands of every room share."""

from __future__ import annotations

import argparse


def add_output(parser: argparse.ArgumentParser) -> None:
    """Declare `--output`, text or json."""
    parser.add_argument(
        "--output",
        choices=("text", "json"),
        default="text",
        help="form of the result; in JSON timestamps are text",
    )
