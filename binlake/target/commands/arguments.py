"""The arguments that the commands for a target share: they select the checkpoint row."""

from __future__ import annotations

import argparse
from typing import NamedTuple

from binlake.base.arguments import add_output
from binlake.config.load import load_replication
from binlake.config.model import Replication, Target


class Row(NamedTuple):
    """A replication, its target, and the source cluster whose row is selected; 0 = the only row."""

    replication: Replication
    target: Target
    cluster_id: int


def add_arguments(parser: argparse.ArgumentParser, actions: tuple[str, ...]) -> None:
    """Declare the action, `--replication`, `--cluster-id` and `--output`."""
    parser.add_argument("action", choices=actions)
    parser.add_argument("--replication", required=True, metavar="FILE", help="the replication's TOML")
    parser.add_argument("--cluster-id", type=int, help="default: source.cluster-id, else the only row of the table")
    add_output(parser)


def read_row_arguments(args: argparse.Namespace) -> Row:
    """The row that `args` select. Raises ConfigError, also for a replication without an SQL target."""
    replication = load_replication(args.replication)
    configured = replication.source.expected_cluster
    return Row(
        replication, replication.require_sql_target(), configured if args.cluster_id is None else args.cluster_id
    )
