"""`binlake dm import` and `binlake drainer import`: convert configuration files of DM and the drainer to Binlake's.

Rule: nothing is written unless the result is a valid replication, and files are overwritten only with --force.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from binlake.common.commandline import add_output
from binlake.common.tomlfile import build_readable_error, to_toml_sections
from binlake.config.model import Replication
from binlake.config.problems import find_problems
from binlake.errors import ConfigError
from binlake.extras.importing.dmtask import Choices, import_task
from binlake.extras.importing.document import FATES, ImportOutcome, read_toml_entries, read_yaml
from binlake.extras.importing.drainer import import_drainer

_LAKE = "/var/lib/binlake/lake"


class DmCommand:
    """`import TASK SOURCE...`."""

    examples = ("binlake dm import task.yaml source1.yaml --lake /var/lib/binlake/lake --out replications",)
    help = "write a replication and a feeder.toml from DM's task file and source files"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the files, and settings that they do not contain."""
        parser.add_argument("action", choices=("import",), help="write the replication's TOML")
        parser.add_argument("task", type=Path, help="DM's task file")
        parser.add_argument("sources", type=Path, nargs="+", help="the source file of each of the task's instances")
        parser.add_argument("--pd-urls", default="http://127.0.0.1:2379", help="address of the pumps' PD (%(default)s)")
        parser.add_argument("--status-addr", default="127.0.0.1:10080", help="HOST:PORT that the feeder will serve")
        parser.add_argument(
            "--tracker", default="127.0.0.1:3306", metavar="HOST:PORT",
            help="a server of the sources' family on which the feeder may create databases, never a source",
        )  # fmt: skip
        parser.add_argument("--target-type", choices=("tidb", "mysql", "mariadb"), default="tidb", help="(%(default)s)")
        parser.add_argument(
            "--keep-schema-names", action="store_true",
            help="keep database names without the source's name as prefix; they must differ between sources",
        )  # fmt: skip
        _add_files(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Write the files, and print a line about each key. Raises ConfigError."""
        choices = Choices(args.lake, args.pd_urls, args.status_addr, args.tracker, args.target_type,
                          args.keep_schema_names)  # fmt: skip
        outcome = import_task(read_yaml(args.task), [read_yaml(path) for path in args.sources], choices)
        return _finish(args, outcome, args.task)


class DrainerCommand:
    """`import FILE`."""

    examples = ("binlake drainer import drainer.toml --lake /var/lib/binlake/lake --out replications",)
    help = "write a replication from a drainer's configuration file"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the file, and settings that it does not contain."""
        parser.add_argument("action", choices=("import",), help="write the replication's TOML")
        parser.add_argument("file", type=Path, help="drainer.toml")
        parser.add_argument("--name", default="drainer", help="name of the replication (%(default)s)")
        parser.add_argument("--status-url", default="http://127.0.0.1:10080", help="TiDB's status port (%(default)s)")
        _add_files(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Write the file, and print a line about each key. Raises ConfigError."""
        file = read_toml_entries(args.file)
        return _finish(
            args, import_drainer(file, name=args.name, lake=args.lake, status_url=args.status_url), args.file
        )


def _add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lake", default=_LAKE, help="root of the lake (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path(), help="folder to write into; default: the current folder")
    parser.add_argument("--force", action="store_true", help="overwrite existing files")
    add_output(parser)


def _finish(args: argparse.Namespace, outcome: ImportOutcome, source: Path) -> int:
    name = outcome.replication["name"]
    _require_valid(outcome.replication, source)
    files = {args.out / f"{name}.toml": outcome.replication}
    if outcome.feeder:
        # Not in the folder itself, where each `*.toml` is a replication.
        files[args.out / "feeder" / f"{name}.toml"] = outcome.feeder
    existing = [str(path) for path in files if path.exists()]
    if existing and not args.force:
        raise ConfigError(
            "a file already exists",
            where={"file": ", ".join(existing)},
            hint="choose another folder with --out DIR, or overwrite it with --force",
        )
    head = f"# Made from {source} by `binlake {'dm' if outcome.feeder else 'drainer'} import`."
    for path, values in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{head}\n{to_toml_sections(values)}")
    secrets = list(dict.fromkeys(outcome.secrets))
    if args.output == "json":
        report = {"files": [str(path) for path in files], "lines": [asdict(line) for line in outcome.lines],
                  "environment": secrets}  # fmt: skip
        print(json.dumps(report))
        return 0
    _print_report(outcome, [str(path) for path in files], secrets)
    return 0


def _print_report(outcome: ImportOutcome, files: list[str], secrets: list[str]) -> None:
    for line in sorted(outcome.lines, key=lambda line: (line.file, line.line)):
        print(line)
    counts = Counter(line.fate for line in outcome.lines)
    print()
    for fate, words in FATES.items():
        print(f"{counts[fate]:4} {fate:<8} {words}")
    print(f"Written: {', '.join(files)}")
    if secrets:
        print(f"Passwords are read from the environment: {', '.join(secrets)}")


def _require_valid(values: dict[str, Any], source: Path) -> None:
    """Check the values as `binlake config check` does. Raises ConfigError."""
    from binlake.rules import Rules

    try:
        replication = Replication.model_validate(values)
    except ValidationError as error:
        raise build_readable_error(error, Replication, source) from None
    problems = find_problems(replication)
    if problems:
        raise ConfigError("; ".join(problems), where={"file": source})
    try:
        Rules.of(replication)
        for feed in replication.feed:
            feed.require_rules()
    except ConfigError as error:
        raise ConfigError(error.message, where={"file": source, **error.where}, hint=error.hint) from None
