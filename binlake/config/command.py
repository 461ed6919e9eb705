"""`binlake config`: check a replication's TOML, also against the source's tables, and print the reference.

A rule that matches no table is a warning and no failure: its table may come later.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from binlake.base.terminal import print_table
from binlake.config.feedfiles import build_feed_path
from binlake.config.load import check_replication, resolve_secret
from binlake.config.matching import RuleMatch, match_rules, select_own_tables
from binlake.config.model import Replication
from binlake.config.reference import render_reference
from binlake.config.sinkuri import mask_credentials, mask_sink_uri
from binlake.config.storage import list_storage_warnings
from binlake.errors import ConfigError
from binlake.rules import Rules


class ConfigCommand:
    """Check a replication file, or print the reference of all keys."""

    help = "check a replication's TOML, or print the reference of all keys"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """`check FILE` or `reference`."""
        parser.add_argument("action", choices=("check", "reference"))
        parser.add_argument("file", nargs="?", help="the replication's TOML (for check)")
        parser.add_argument(
            "--against",
            choices=("source",),
            help="print, instead of the settings, which of the source's tables each rule matches",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Print the effective configuration without secrets, the tables of each rule, or the reference in Markdown.

        Raises ConfigError, and with `--against source` what reading the source raises.
        """
        if args.action == "reference":
            print(render_reference())
            return 0
        if not args.file:
            raise ConfigError("no file to check", hint="binlake config check FILE, the replication's TOML")
        replication = check_replication(args.file)
        for feed in replication.feed:
            for text in list_storage_warnings(feed.sink.storage):
                print(f"warning: feed {feed.name}: {text}", file=sys.stderr)
        if args.against == "source":
            _check_against_source(replication, Path(args.file))
            return 0
        settings = replication.model_dump(mode="json", by_alias=True)
        print(json.dumps(_mask_secrets(settings), indent=2, ensure_ascii=False))
        return 0


def _check_against_source(replication: Replication, file: Path) -> None:
    """Print the tables that each rule matches; a warning for each rule that matches none."""
    # Imported late: without `--against`, the command opens no connection.
    from binlake.cluster.source.tables import read_table_names

    source = replication.source
    if source.sql is not None:
        password = resolve_secret("source.sql.password", source.sql.password, file)
        source = source.model_copy(update={"sql": source.sql.model_copy(update={"password": password})})
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


def _mask_secrets(value: Any, *, secret: bool = False) -> Any:
    """Replace passwords and arguments of notifiers by ***, but keep names of environment variables."""
    if isinstance(value, dict):
        return {key: _mask_secrets(item, secret=secret or key in _SECRET) for key, item in value.items()}
    if isinstance(value, list):
        return [_mask_secrets(item, secret=secret) for item in value]
    if not isinstance(value, str):
        return "***" if secret and value is not None else value
    if secret and value and not re.fullmatch(r"env:\w+", value):
        return "***"
    if "://" in value and "?" in value:
        value = mask_sink_uri(value)
    return mask_credentials(value)


_SECRET = ("password", "kwargs")
_MOST_SHOWN = 10
_NO_TABLE = (
    "warning: no rule was compared: the source has no table yet. A feeder knows a server's tables once it has begun to"
    " read it (`binlake feeder status`); then check again"
)
