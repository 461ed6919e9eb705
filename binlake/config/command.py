"""`binlake config`: check a replication's TOML and print the configuration reference."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from binlake.base.secrets import names_secret
from binlake.config.load import check_replication
from binlake.config.model import Replication
from binlake.config.problems import list_plain_secrets
from binlake.config.reference import render_reference
from binlake.config.sinkuri import mask_credentials, mask_sink_uri
from binlake.config.storage import list_storage_warnings
from binlake.errors import ConfigError


class ConfigCommand:
    """Check a replication file, or print the reference of all keys."""

    examples: Sequence[str] = (
        "binlake config check orders.toml",
        "binlake config reference",
    )
    help = "check a replication's TOML, or print the reference of all keys"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """`check FILE` or `reference`."""
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        check = actions.add_parser("check", help="print the effective settings of a file, or what is wrong with it")
        check.add_argument("file", nargs="?", metavar="FILE", help="the replication's TOML")
        self.add_check_arguments(check)
        actions.add_parser("reference", help="print the reference of all keys in Markdown")

    def add_check_arguments(self, parser: argparse.ArgumentParser) -> None:
        """More arguments of `check`; the file alone is checked here."""

    def run(self, args: argparse.Namespace) -> int:
        """Print the effective configuration without secrets, or the reference in Markdown. Raises ConfigError."""
        if args.action == "reference":
            print(render_reference())
            return 0
        settings = self.check(args).model_dump(mode="json", by_alias=True)
        print(json.dumps(_mask_secrets(settings), indent=2, ensure_ascii=False))
        return 0

    def check(self, args: argparse.Namespace) -> Replication:
        """The replication of the checked file; its warnings are printed. Raises ConfigError."""
        if not args.file:
            raise ConfigError("no file to check", hint="binlake config check FILE, the replication's TOML")
        replication = check_replication(args.file)
        for feed in replication.feed:
            for text in list_storage_warnings(feed.sink.storage):
                print(f"warning: feed {feed.name}: {text}", file=sys.stderr)
            for key in list_plain_secrets(feed):
                text = f"{key} has the password itself; write env:NAME or airflow:CONN_ID"
                print(f"warning: feed {feed.name}: {text}", file=sys.stderr)
        return replication


def _mask_secrets(value: Any, *, secret: bool = False) -> Any:
    """Replace passwords and arguments of notifiers by ***, but keep names of environment variables."""
    if isinstance(value, dict):
        return {key: _mask_secrets(item, secret=secret or key in _SECRET) for key, item in value.items()}
    if isinstance(value, list):
        return [_mask_secrets(item, secret=secret) for item in value]
    if not isinstance(value, str):
        return "***" if secret and value is not None else value
    if secret and value and not names_secret(value):
        return "***"
    if "://" in value and "?" in value:
        value = mask_sink_uri(value)
    return mask_credentials(value)


_SECRET = ("password", "kwargs")
