"""`binlake audit`: a row's history, a table as of a time, one transaction; reads the lake without Spark.

Exit status 0 with an answer, 3 if the lake covers the range and has nothing in it, 1 if it does not cover the range.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from binlake import tso
from binlake.audit.audit import Audit, TableAsOf
from binlake.audit.diff import TableDifference, diff_table
from binlake.common.commandline import Exit, add_output
from binlake.common.terminal import escape_invisible, format_value, print_table, show_progress
from binlake.config import load_replication
from binlake.errors import ConfigError
from binlake.lake.mutations import RowVersion
from binlake.lake.paths import LakePaths
from binlake.lake.transactions import LandedTransaction, Passages
from binlake.lake.windowlog import WindowLog
from binlake.rules import Rules
from binlake.spark_jobs.commands.views import ENGINES, create_views, render_history_query, render_table_query
from binlake.spark_jobs.job.results import parse_commit_ts, parse_moment

_WHOLE = ("commit_ts", "start_ts")


class AuditCommand:
    """Ask the lake about the past."""

    name = "audit"
    examples = (
        "binlake audit row shop.item '[\"7\"]' --follow --replication orders.toml",
        "binlake audit table shop.item --at 2026-11-29T10:00:00Z --replication orders.toml",
        "binlake audit diff shop.item --from 2026-11-29T10:00:00Z --to 2026-11-29T11:00:00Z --replication orders.toml",
        "binlake audit transaction 470548480035651584 --replication orders.toml",
        "binlake audit sql --table shop.item --replication orders.toml",
        "binlake audit sql --history shop.item --engine duckdb --replication orders.toml",
    )
    help = "show a row's history, a table as of a time, its difference between two times, or a transaction"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """`row TABLE KEY`, `table TABLE --at`, `transaction TS`, `sql`."""
        actions = parser.add_subparsers(dest="action", required=True)
        row = actions.add_parser("row", help="all changes of one row")
        row.add_argument("table", metavar="DB.TABLE", help="its name at the source")
        row.add_argument("key", nargs="+", help="the key's values in order, or one JSON array; keyless: the whole row")
        row.add_argument("--at", type=parse_moment, metavar="TS", help="only the last change up to a commit_ts or time")
        row.add_argument(
            "--between", type=parse_moment, nargs=2, metavar=("A", "B"), help="only changes with A < commit_ts <= B"
        )
        row.add_argument("--follow", action="store_true", help="also follow the row to other keys")
        table = actions.add_parser("table", help="a table as it was at a commit_ts or time")
        table.add_argument("table", metavar="DB.TABLE", help="its name at the source")
        table.add_argument(
            "--at", "--as-of", dest="at", type=parse_moment, required=True, metavar="TS",
            help="commit_ts, or a time (ISO 8601, UTC when it names no zone)",
        )  # fmt: skip
        table.add_argument("--limit", type=int, default=50, help="rows shown as text (all of them in JSON)")
        diff = actions.add_parser("diff", help="the keys of a table that differ between two moments")
        diff.add_argument("table", metavar="DB.TABLE", help="its name at the source")
        diff.add_argument(
            "--from", dest="begin", type=parse_moment, required=True, metavar="TS", help="first commit_ts or time"
        )
        diff.add_argument(
            "--to", dest="end", type=parse_moment, metavar="TS", help="second one (default: all that is merged)"
        )
        diff.add_argument("--limit", type=int, default=50, help="rows shown as text (all of them in JSON)")
        transaction = actions.add_parser("transaction", help="all changes of one transaction, in order")
        transaction.add_argument("ts", type=parse_commit_ts, metavar="TS", help="its commit_ts or start_ts")
        sql = actions.add_parser(
            "sql", help="print SQL: the audit views, a table as of --at (both for Spark), or a table's typed history"
        )
        what = sql.add_mutually_exclusive_group()
        what.add_argument("--table", metavar="DB.TABLE", help="a table of the source: print it as of --at")
        what.add_argument("--history", metavar="DB.TABLE", help="a table of the source: print all its changes")
        sql.add_argument("--engine", choices=sorted(ENGINES), default="spark", help="whose SQL --history is")
        sql.add_argument(
            "--at", type=parse_moment, metavar="TS", help="commit_ts or time (default: the end of the lake)"
        )
        for each in (row, table, diff, transaction, sql):
            each.add_argument("--replication", required=True, type=Path, metavar="FILE", help="the replication's TOML")
            add_output(each)

    def run(self, args: argparse.Namespace) -> int:
        """Print the answer. Raises LostRange, SchemaError, ConfigError."""
        replication = load_replication(args.replication)
        paths, args.rules = LakePaths.of(replication), Rules.of(replication)
        status: int = {
            "row": _run_row, "table": _run_table, "diff": _run_diff, "transaction": _run_transaction, "sql": _run_sql,
        }[args.action](paths, args)  # fmt: skip
        return status


def parse_key(words: list[str]) -> list[str | None]:
    """The key's values from the command line: one JSON array, or one argument for each column."""
    if len(words) == 1 and words[0].startswith("["):
        try:
            return [None if value is None else str(value) for value in json.loads(words[0])]
        except ValueError as error:
            raise ConfigError(f"the key is not a JSON array: {error}", where={"key": words[0]}) from error
    return list(words)


def _parse_name(text: str) -> tuple[str, str]:
    db, _, table = text.partition(".")
    if not table:
        raise ConfigError(f"{text!r} does not name a table", hint="write it as db.table")
    return db, table


def _run_row(paths: LakePaths, args: argparse.Namespace) -> int:
    audit = Audit(paths, args.rules)
    after, upto = args.between or (-1, args.at)
    ask = audit.read_row_history_across_keys if args.follow else audit.read_row_history
    with show_progress(f"reading the versions of {args.table}"):
        versions = ask(*_parse_name(args.table), parse_key(args.key), after=after, upto=upto)
    versions = versions[-1:] if args.at is not None else versions
    if not versions:
        first, last = audit.read_merged_range()
        print(f"no change of this row in ({max(first, after)}, {last if upto is None else upto}]; the lake holds "
              f"({first}, {last}]", file=sys.stderr)  # fmt: skip
    shown = _with_passages(paths, versions)
    if args.output == "json":
        print(json.dumps(shown, ensure_ascii=False))
    elif versions:
        _print_changes(shown, "applied by", [_find_applying_run(change) for change in shown])
    return 0 if versions else Exit.NOT_FOUND


def _with_passages(paths: LakePaths, versions: Sequence[RowVersion]) -> list[dict[str, Any]]:
    """The changes, each with the window that landed it and the runs that processed it."""
    if not versions:
        return []
    passages = Passages(WindowLog(paths).read_events(within=(versions[0].commit_ts - 1, versions[-1].commit_ts)))
    taken = [[passage.to_dict() for passage in passages.find_at(change.commit_ts)] for change in versions]
    return [
        {**change.to_dict(), "window": _find_window(taken_by), "passages": taken_by}
        for change, taken_by in zip(versions, taken, strict=True)
    ]


def _find_window(passages: Sequence[Mapping[str, str]]) -> str:
    return next((passage["window"] for passage in passages if passage["stage"] == "land"), "")


def _find_applying_run(change: Mapping[str, Any]) -> str:
    return next((p["run_id"] for p in change["passages"] if p["stage"] == "finalize"), "")


def _print_changes(changes: Sequence[Mapping[str, Any]], last: str, texts: Sequence[str]) -> None:
    columns = ("commit_ts", "commit time", "start_ts", "table", "op", "before", "after", last)
    rows = [
        [
            *(change["commit_ts"], change["commit_time"], change["start_ts"], f"{change['db']}.{change['table']}"),
            *(change["op"], *(_format_image(change[side]) for side in ("before", "after")), text),
        ]
        for change, text in zip(changes, texts, strict=True)
    ]
    print_table(columns, rows, whole=_WHOLE)


def _format_image(image: Mapping[str, str | None] | None) -> str:
    return "" if image is None else escape_invisible(json.dumps(image, ensure_ascii=False))


def _run_table(paths: LakePaths, args: argparse.Namespace) -> int:
    with show_progress(f"reading {args.table}"):
        table = Audit(paths, args.rules).read_table_as_of(*_parse_name(args.table), args.at)
    if args.output == "json":
        rows = [[row[name] for name in table.columns] for row in table.rows]
        time = tso.to_datetime(table.ts).isoformat(timespec="milliseconds")
        answer = {"as_of": str(table.ts), "time": time, "columns": table.columns, "rows": rows,
                  "inexact": table.inexact,
                  "mirror": {"db": table.base.db, "table": table.base.table,
                             "delta_version": table.base.delta_version, "hi": str(table.base.hi)}}  # fmt: skip
        print(json.dumps(answer, ensure_ascii=False))
    else:
        _print_table(table, args)
    return 0


def _print_table(table: TableAsOf, args: argparse.Namespace) -> None:
    time = tso.to_datetime(table.ts).isoformat(timespec="milliseconds")
    print(f"{args.table} as of {table.ts} ({time})")
    rows = ([format_value(row[name]) for name in table.columns] for row in table.rows[: args.limit])
    print_table(list(table.columns), rows)
    base = table.base
    source = f"version {base.delta_version} of its mirror, at {base.hi}" if base.delta_version >= 0 else "no mirror yet"
    shown = f"{len(table.rows)} rows; from {source}, and the row changes after it"
    print(shown + (f"; {table.inexact}" if table.inexact else ""))


def _run_diff(paths: LakePaths, args: argparse.Namespace) -> int:
    audit = Audit(paths, args.rules)
    with show_progress(f"comparing {args.table}"):
        end = audit.read_merged_range()[1] if args.end is None else args.end
        found = diff_table(audit, _parse_name(args.table), args.begin, end)
    if args.output == "json":
        rows = [{**vars(row), "key": json.loads(row.key)} for row in found.rows]
        answer = {"from": str(found.lo), "to": str(found.hi), "counts": found.count(), "columns": found.columns,
                  "ddls": [str(ts) for ts in found.ddls], "inexact": found.inexact, "rows": rows}  # fmt: skip
        print(json.dumps(answer, ensure_ascii=False))
    else:
        _print_diff(found, args)
    return 0 if found.rows else Exit.NOT_FOUND


def _print_diff(found: TableDifference, args: argparse.Namespace) -> None:
    rows = [
        (escape_invisible(row.key), row.kind, _format_image(row.before), _format_image(row.after))
        for row in found.rows[: args.limit]
    ]
    print_table(("key", "difference", "before", "after"), rows)
    counts = ", ".join(f"{count} {kind}" for kind, count in found.count().items())
    print(f"{args.table} from {found.lo} to {found.hi}: {counts}" + (f"; {found.inexact}" if found.inexact else ""))


def _run_transaction(paths: LakePaths, args: argparse.Namespace) -> int:
    audit = Audit(paths, args.rules)
    with show_progress(f"looking for the transaction {args.ts}"):
        transaction = audit.find_transaction(args.ts)
    if transaction is None:
        first, last = audit.read_merged_range()
        print(f"no transaction with commit_ts or start_ts {args.ts}; the lake holds ({first}, {last}]", file=sys.stderr)
        return Exit.NOT_FOUND
    if args.output == "json":
        print(json.dumps(transaction.to_dict(), ensure_ascii=False))
    else:
        _print_transaction(transaction)
    return 0


def _print_transaction(transaction: LandedTransaction) -> None:
    shown = transaction.to_dict()
    print(
        f"{transaction.kind} committed {shown['commit_ts']} ({shown['commit_time']}), started {shown['start_ts']}, "
        f"schema version {transaction.schema_version}, from {', '.join(transaction.pumps)}, {transaction.bytes} bytes"
    )
    for ddl in transaction.ddls:
        print(escape_invisible(f"{ddl.decision}: {ddl.sql}" + (f" ({ddl.reason})" if ddl.reason else "")))
    if transaction.changes:
        _print_changes(shown["changes"], "seq", [str(change.seq) for change in transaction.changes])
    if transaction.remark:
        print(transaction.remark)
    rows = [[passage["task"], passage["window"], passage["run_id"], passage["at"]] for passage in shown["passages"]]
    print_table(("stage", "window", "run", "at"), rows, whole=("window",))


def _run_sql(paths: LakePaths, args: argparse.Namespace) -> int:
    if args.history is not None:
        texts = [render_history_query(paths, *_parse_name(args.history), args.engine, args.rules)]
    elif args.engine != "spark":
        raise ConfigError(f"only --history is SQL of {args.engine}", hint="the views and --table are Spark SQL")
    elif args.table is None:
        texts = create_views(paths)
    else:
        texts = [render_table_query(paths, *_parse_name(args.table), args.at, args.rules)]
    if args.output == "json":
        print(json.dumps(texts))
    else:
        print("\n\n".join(f"{text};" for text in texts))
    return 0
