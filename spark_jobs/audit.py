"""`binlake audit`: the history of a row, and a table as of any commit_ts; reads the lake without Spark."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from binlake import tso
from binlake.config import load_replication
from binlake.errors import ConfigError
from binlake.lake.audit import Audit, RowVersion, TableAsOf
from binlake.lake.paths import LakePaths


class AuditCommand:
    """Ask the lake about the past."""

    name = "audit"
    help = "the history of a row, or a table as of a commit_ts"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """`row TABLE KEY` and `table TABLE --as-of`."""
        actions = parser.add_subparsers(dest="action", required=True)
        row = actions.add_parser("row", help="all changes of one row")
        row.add_argument("table", metavar="DB.TABLE")
        row.add_argument("key", nargs="+", help="the key's values in order, or one JSON array")
        row.add_argument("--at", type=moment, metavar="TS", help="only the last change up to a commit_ts or time")
        row.add_argument(
            "--between", type=moment, nargs=2, metavar=("A", "B"), help="only changes with A < commit_ts <= B"
        )
        table = actions.add_parser("table", help="a table as it was")
        table.add_argument("table", metavar="DB.TABLE")
        table.add_argument("--as-of", type=moment, required=True, metavar="TS", help="commit_ts, or a time (ISO 8601)")
        table.add_argument("--limit", type=int, default=50, help="rows shown as text (all of them in JSON)")
        for each in (row, table):
            each.add_argument("--replication", required=True, type=Path, metavar="FILE", help="the replication's TOML")
            each.add_argument("--output", choices=("text", "json"), default="text")

    def run(self, args: argparse.Namespace) -> int:
        """Print the answer. Raises LostRange, SchemaError, ConfigError."""
        audit = Audit(LakePaths.of(load_replication(args.replication)))
        db, _, table = args.table.partition(".")
        if not table:
            raise ConfigError(f"{args.table!r} names no table", hint="write it as db.table")
        if args.action == "row":
            _show_history(_history(audit, db, table, args), args.output)
        else:
            _show_table(audit.table_as_of(db, table, args.as_of), args)
        return 0


def moment(text: str) -> int:
    """A commit_ts in decimal, or the last commit_ts of a time (ISO 8601; UTC when it names no zone)."""
    if text.isdigit():
        return int(text)
    time = datetime.fromisoformat(text)
    return tso.from_datetime(time if time.tzinfo else time.replace(tzinfo=UTC)) | tso.MAX_LOGICAL


def key_of(words: list[str]) -> list[str | None]:
    """The key's texts from the command line: one JSON array, or a word for each column."""
    if len(words) == 1 and words[0].startswith("["):
        try:
            return [None if value is None else str(value) for value in json.loads(words[0])]
        except ValueError as error:
            raise ConfigError(f"the key is no JSON array: {error}", where={"key": words[0]}) from error
    return list(words)


def _history(audit: Audit, db: str, table: str, args: argparse.Namespace) -> list[RowVersion]:
    after, upto = args.between or (-1, args.at)
    found = audit.row_history(db, table, key_of(args.key), after=after, upto=upto)
    return found[-1:] if args.at is not None else found


def _show_history(history: list[RowVersion], output: str) -> None:
    if output == "json":
        print(json.dumps([version.to_dict() for version in history], ensure_ascii=False))
        return
    table = Table("commit_ts", "commit time", "start_ts", "op", "before", "after")
    for version in history:
        shown = version.to_dict()
        images = (json.dumps(shown[side], ensure_ascii=False) for side in ("before", "after"))
        table.add_row(shown["commit_ts"], shown["commit_time"], shown["start_ts"], version.op, *images)
    Console().print(table)


def _show_table(found: TableAsOf, args: argparse.Namespace) -> None:
    if args.output == "json":
        rows = [list(row.values()) for row in ({name: row[name] for name in found.columns} for row in found.rows)]
        answer = {"as_of": str(found.ts), "columns": found.columns, "rows": rows, "inexact": found.inexact}
        print(json.dumps(answer, ensure_ascii=False))
        return
    table = Table(*found.columns, title=f"{args.table} as of {found.ts} ({tso.to_datetime(found.ts).isoformat()})")
    for row in found.rows[: args.limit]:
        table.add_row(*("NULL" if row[name] is None else row[name] for name in found.columns))
    console = Console()
    console.print(table)
    console.print(f"{len(found.rows)} rows" + (f"; {found.inexact}" if found.inexact else ""))
