"""The arguments that the commands for a target share: they select the checkpoint row."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import NamedTuple

from binlake.base.commandline import add_output
from binlake.config.load import load_replication
from binlake.config.model import Replication
from binlake.config.servers import TargetSection


class Row(NamedTuple):
    """A replication, its target, and the source cluster whose row is selected; 0 = the only row."""

    replication: Replication
    target: TargetSection
    cluster_id: int


def add_actions(parser: argparse.ArgumentParser, actions: Mapping[str, str]) -> dict[str, argparse.ArgumentParser]:
    """Declare each action with its help, `--replication`, `--cluster-id` and `--output`; returns their parsers."""
    parsers = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    made = {name: parsers.add_parser(name, help=text) for name, text in actions.items()}
    for each in made.values():
        each.add_argument("--replication", required=True, metavar="FILE", help="the replication's TOML")
        each.add_argument(
            "--cluster-id",
            type=int,
            metavar="NUMBER",
            help="number of the row's cluster (default: source.cluster-id, else the only row of the table)",
        )
        add_output(each)
    return made


def read_row_arguments(args: argparse.Namespace) -> Row:
    """The row that `args` select. Raises ConfigError, also for a replication without an SQL target."""
    replication = load_replication(args.replication)
    configured = replication.source.expected_cluster
    return Row(
        replication, replication.require_sql_target(), configured if args.cluster_id is None else args.cluster_id
    )
