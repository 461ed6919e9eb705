"""`binlake config check --against source`: which of the source's tables each rule of a replication matches.

A rule that matches no table is a warning and no failure: its table may come later. The command is here, and not beside
the check of the file alone, because it asks the source: for its present tables, from its history of DDL; PD is not
asked.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from binlake.cluster.placement import open_placement
from binlake.cluster.source.ddlhistory import SqlHistory
from binlake.cluster.source.tidb import TidbSource
from binlake.common.terminal import print_table
from binlake.config import command
from binlake.config.load import resolve_server
from binlake.config.matching import RuleMatch, match_rules, select_own_tables
from binlake.config.model import Replication
from binlake.config.sidefiles import build_feed_path
from binlake.rows.schema import SchemaState
from binlake.rows.schema.state import JobSpool
from binlake.rules import Rules

if TYPE_CHECKING:
    from binlake.config.servers import SourceSection

_MOST_SHOWN = 10
_NO_TABLE = (
    "warning: no rule was compared: the source has no table yet. A feeder knows a server's tables once it has begun to"
    " read it (`binlake feeder status`); then check again"
)


class SourceConfigCommand(command.ConfigCommand):
    """Check a replication file, alone or against the source's tables, or print the reference of all keys."""

    examples: Sequence[str] = (*command.ConfigCommand.examples, "binlake config check orders.toml --against source")

    def add_check_arguments(self, parser: argparse.ArgumentParser) -> None:
        """`--against`."""
        parser.add_argument(
            "--against",
            choices=("source",),
            help="print, instead of the settings, which of the source's tables each rule matches",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Print the tables of each rule, the effective configuration, or the reference.

        Raises ConfigError, and with `--against source` what reading the source raises.
        """
        if args.action != "check" or args.against is None:
            return super().run(args)
        _check_against_source(self.check(args), Path(args.file))
        return 0


def _check_against_source(replication: Replication, file: Path) -> None:
    """Print the tables that each rule matches; a warning for each rule that matches none."""
    source = replication.source
    if source.sql is not None:
        source = source.model_copy(update={"sql": resolve_server("source.sql", source.sql, file)})
    tables = select_own_tables(replication, read_table_names(source))
    if not tables:
        print(_NO_TABLE, file=sys.stderr)
        return
    matches = match_rules(replication, tables)
    if matches:
        print_table(("rule", "pattern", "tables"), [(m.place, m.pattern, _show_tables(m.tables)) for m in matches])
    rules = Rules.of(replication)
    kept = sum(rules.keeps(*name) for name in tables)
    print(f"{kept} of {len(tables)} tables of the source are replicated")
    for match in matches:
        if not match.tables:
            own = build_feed_path(file, replication.name, match.feed)
            print(_describe_unmatched(match, own if match.feed and own.exists() else file), file=sys.stderr)


def _show_tables(tables: Sequence[tuple[str, str]]) -> str:
    names = [f"{db}.{table}" for db, table in tables[:_MOST_SHOWN]]
    rest = [f"and {len(tables) - _MOST_SHOWN} more"] if len(tables) > _MOST_SHOWN else []
    return "\n".join([*names, *rest]) or "none"


def _describe_unmatched(match: RuleMatch, file: Path) -> str:
    return (
        f"warning: {match.place}: the pattern `{match.pattern}` matches no {match.seen} [file={file}]. Hint: correct"
        " it (docs/reference/filters.md has the grammar of each list) or remove it; keep it if its tables come later"
    )


def read_table_names(source: SourceSection) -> list[tuple[str, str]]:
    """(db, table) of all tables, views and sequences of `source`. Raises SourceUnavailable, SchemaError, Transient.

    `source` has its password. A feeder's status address gives the tables of its servers under its own names.
    """
    with open_placement(source) as placement:
        tls = placement.tls
        history = SqlHistory(source.sql, source.timeout_s, source.sql_security) if source.sql is not None else None
        opened = TidbSource(placement.pd, source.status_url, source.timeout_s, tls=tls, history=history)
        with closing(opened) as tidb, JobSpool() as spool:
            spool.fill(tidb.fetch_ddl_jobs(0))
            state = SchemaState().fold(spool.iterate_jobs())
    return [(table.db, table.name) for table in state.list_tables()]
