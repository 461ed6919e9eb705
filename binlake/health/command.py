"""`binlake status`: one line a replication: is it well, how far behind, who holds it, since when, what to do.

It computes what the pages in Airflow show, without Airflow: what only Airflow knows is unknown, and the output says so.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from binlake.common.commandline import Exit, add_output, add_replications, list_replications, parse_seconds
from binlake.common.terminal import format_duration, print_table
from binlake.config.load import find_replications_folder
from binlake.health.survey import UNKNOWN, Row, choose_status, find_airflow, find_files, read_rows
from binlake.pipeline import FEED, LAKE, SINKS

_CLEAR = "\x1b[H\x1b[2J"
_AIRFLOW = "Airflow was not asked: whether a DAG is paused or a run has failed is unknown here (--airflow asks it)"


class StatusCommand:
    """Show the state of replications."""

    help = "show whether replications are well, how far behind, who holds them and what to do"
    examples = ("binlake status", "binlake status orders --airflow --output json", "binlake status --watch 5")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The replications, the format, and whether to repeat."""
        add_replications(parser)
        parser.add_argument(
            "--watch",
            nargs="?",
            type=parse_seconds,
            const=2.0,
            metavar="SECONDS",
            help="show it again every SECONDS (default 2) until Ctrl-C",
        )
        parser.add_argument(
            "--timeout",
            type=parse_seconds,
            default=15.0,
            metavar="SECONDS",
            help="seconds after which a lake that does not answer is unknown (default %(default)g)",
        )
        parser.add_argument(
            "--airflow",
            action="store_true",
            help="ask Airflow's database too, with this machine's Airflow configuration: paused DAGs, failed runs",
        )
        add_output(parser)

    def run(self, args: argparse.Namespace) -> int:
        """0 well; 4 something needs attention or is behind; 5 something does not go on; 6 unknown; 3 no replication."""
        names = list_replications(args)
        ask = find_airflow() if args.airflow else None
        while True:
            rows = read_rows(*find_files(names), args.timeout, ask)
            if not rows:
                print(f"there is no replication in {find_replications_folder()}", file=sys.stderr)
                return Exit.NOT_FOUND
            if args.watch is not None and args.output == "text" and sys.stdout.isatty():
                print(_CLEAR, end="")
            print(json.dumps(rows)) if args.output == "json" else _show(rows, whole=bool(names), asked=args.airflow)
            if args.watch is None:
                return choose_status(rows)
            sys.stdout.flush()
            time.sleep(args.watch)


def _show(rows: Sequence[Row], *, whole: bool, asked: bool) -> None:
    """Print the table, then what holds each replication; `whole`: all problems of each, not only the worst; `asked`:
    Airflow was asked."""
    now = datetime.now(UTC)
    titles = {"landed": LAKE.label, **{name: SINKS[name].label for name in _list_single_sinks()}, "feeds": "feeds"}
    places = [place for place in titles if any(place in _list_positions(row) for row in rows)]
    columns = ["REPLICATION", "STATE", "LAG", *(titles[place].upper() for place in places)]
    print_table(columns, [_build_cells(row, places, now) for row in rows])
    for row in rows:
        for line in _list_problem_lines(row, now, whole=whole):
            print(line)
    if not asked:
        print(_AIRFLOW)


def _build_cells(row: Row, places: Sequence[str], now: datetime) -> list[str]:
    positions = _list_positions(row)
    cells = ["\n".join(positions.get(place, ())) for place in places]
    return [
        row["name"],
        row["state"],
        _describe_lag(row),
        *(cell.replace(now.strftime("%m-%d "), "") for cell in cells),
    ]


def _list_problem_lines(row: Row, now: datetime, *, whole: bool) -> list[str]:
    problems = row["problems"]
    lines = []
    for problem in problems if whole else problems[:1]:
        since = problem["since"] and format_duration((now - datetime.fromisoformat(problem["since"])).total_seconds())
        lines.append(f"{row['name']}: {problem['state']}{f' for {since}' if since else ''}: {problem['text']}")
        lines += [f"    {problem['remedy']}"] if problem["remedy"] else []
    if len(problems) > 1 and not whole:
        lines.append(f"    and {len(problems) - 1} more: binlake status {row['name']}")
    return lines


def _describe_lag(row: Row) -> str:
    """The greatest lag of the lake and of its sinks except feeds, or why it is not known."""
    if row["state"] == UNKNOWN:
        return UNKNOWN
    if not row["source"]["heard"]:
        return "unknown: the source is not heard"
    positions = [row["landed"], *(row["sinks"].get(sink) for sink in _list_single_sinks())]
    lags = [position["lag_seconds"] for position in positions if position is not None]
    return format_duration(max(lags)) if lags else "nothing landed yet"


def _list_single_sinks() -> list[str]:
    """The sinks that have a column of their own."""
    return [name for name in SINKS if name != FEED]


def _list_positions(row: Row) -> dict[str, list[str]]:
    """By place: how far behind it is, and where (UTC); for feeds one line each."""
    if row["state"] == UNKNOWN:
        return {}
    places = {name: [_describe_position(at)] for name, at in row["sinks"].items() if name in _list_single_sinks()}
    feeds = [f"{feed['name']}: {feed['state']}, {_describe_position(feed['position'])}" for feed in row["feeds"]]
    return {"landed": [_describe_position(row["landed"])], **places, **({"feeds": feeds} if feeds else {})}


def _describe_position(position: dict[str, Any] | None) -> str:
    if position is None:
        return "nothing yet"
    moment = datetime.fromisoformat(position["time"]).strftime("%m-%d %H:%M:%S")
    lag_s = position["lag_seconds"]
    return f"at {moment}" if lag_s is None else f"{format_duration(lag_s)} (at {moment})"
