"""`binlake config`: check a replication's TOML and print the configuration reference."""

from __future__ import annotations

import argparse
import json

from binlake.config.load import load_replication
from binlake.config.reference import reference_text


class ConfigCommand:
    """Check a replication file, or print the reference of all keys."""

    help = "check a replication's TOML, or print the reference of all keys"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """`check FILE` or `reference`."""
        parser.add_argument("action", choices=("check", "reference"))
        parser.add_argument("file", nargs="?", help="the replication's TOML (for check)")

    def run(self, args: argparse.Namespace) -> int:
        """Print the effective configuration without its password, or the reference in Markdown."""
        if args.action == "reference":
            print(reference_text())
            return 0
        replication = load_replication(args.file or "")
        shown = replication.model_dump(mode="json", by_alias=True)
        if shown.get("target"):
            shown["target"]["password"] = "***"
        print(json.dumps(shown, indent=2))
        return 0
