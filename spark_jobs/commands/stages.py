"""`binlake stage` and `binlake window`: run the stages of a window without Airflow."""

from __future__ import annotations

import argparse
import json

from binlake import tso
from binlake.common.commandline import add_output, parse_count
from binlake.common.process import share_arenas
from binlake.common.terminal import print_table
from binlake.config import Replication, load_replication
from binlake.errors import ConfigError
from binlake.feed import state as feed_state
from binlake.lake.failures import FAILURE, Failure
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowLog
from binlake.pipeline import BY_NAME, FEED, Stage, name_task
from binlake.spark_jobs.commands.main import add_bounds, add_feed, add_plan, execute
from binlake.spark_jobs.job.results import DEFAULT_MASTER, add_job, add_where, show
from binlake.window.events import EventRow

_BOUNDS = "--lo 470548480035651584 --hi 470549480035651584"
_STAGE_EXAMPLES = tuple(
    f"binlake stage {name}{'' if name == 'plan' else f' {_BOUNDS}'}{' --feed kafka-avro' * (stage.sink == FEED)}"
    " --replication orders.toml"
    for name, stage in BY_NAME.items()
)


class StageCommand:
    """Run one stage of a window."""

    examples = _STAGE_EXAMPLES
    help = "run one stage of a window"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The stage and the arguments of a job."""
        stages = parser.add_subparsers(dest="stage", metavar="STAGE", required=True)
        for name, stage in BY_NAME.items():
            own = stages.add_parser(name, help=f"run {name} of one window")
            add_job(own)
            _add_stage_arguments(own, stage)
            add_where(own)
            add_output(own)

    def run(self, args: argparse.Namespace) -> int:
        """Run it and print its result."""
        _default_to_local(args)
        show(execute(args.stage, args), args.output)
        return 0


class WindowCommand:
    """Run the next window through all stages, or list windows."""

    examples = (
        "binlake window run --replication orders.toml",
        "binlake window list --limit 20 --replication orders.toml",
    )
    help = "run the next window through all its stages, or list windows"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """`run` or `list`, and the arguments of a job."""
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        run = actions.add_parser("run", help="run the next window through all its stages")
        add_job(run)
        add_plan(run)
        add_where(run)
        list_ = actions.add_parser("list", help="list what the stages of all windows did, and their failures")
        list_.add_argument("--replication", required=True, metavar="FILE", help="the replication's TOML")
        list_.add_argument("--sink", help="the events of one sink only (sql, mirror, feed.NAME)")
        list_.add_argument("--limit", type=parse_count, metavar="N", help="only the N last events, the newest first")
        for each in (run, list_):
            add_output(each)

    def run(self, args: argparse.Namespace) -> int:
        """Run the next window, or print the events of windows."""
        if args.action == "list":
            _list(args)
            return 0
        _default_to_local(args)
        share_arenas()
        results = execute("window", args)
        show(results, args.output)
        return 1 if any(result.state == "failed" for result in results) else 0


def _list(args: argparse.Namespace) -> None:
    events = _read_events(load_replication(args.replication), args.sink, args.limit)
    if args.output == "json":
        shown = [{**event, "lo": str(event["lo"]), "hi": str(event["hi"])} for event in events]
        print(json.dumps(shown))
        return
    rows = []
    for event in events:
        time = tso.to_datetime(event["hi"]).strftime("%Y-%m-%d %H:%M:%S")
        rows.append([name_task(event["stage"], event["sink"]), event["state"], str(event["lo"]), str(event["hi"]), time,
                     f"{event['rows']:,}", f"{event['seconds']:.2f}", _describe_cause(event)])  # fmt: skip
    columns = ("stage", "state", "lo", "hi", "commit time", "rows", "seconds", "blocked by, or what failed")
    empty = f"{args.replication} has run no window yet: binlake window run --replication {args.replication}"
    print_table(columns, rows, whole=("lo", "hi"), empty=empty)


def _describe_cause(event: EventRow) -> str:
    if event["stage"] == FAILURE:
        return str(Failure.of(event))
    if event["stage"] == feed_state.STAGE:
        state = feed_state.parse_state(event)
        return str(state.error) if state.error is not None else state.reason
    return event["blocked_by"]


def _add_stage_arguments(parser: argparse.ArgumentParser, stage: Stage) -> None:
    """What the stage takes; for the rest, what `execute` expects if it is not given."""
    parser.set_defaults(lo=None, hi=None, start_ts=None, stop_ts=None, feed="")
    if stage.name == "plan":
        add_plan(parser)
    else:
        add_bounds(parser)
    if stage.sink == FEED:
        add_feed(parser)


def _read_events(replication: Replication, sink: str | None, limit: int | None) -> list[EventRow]:
    """All events in order of time, or the `limit` last, the newest first; only of `sink`, which may be a former one.

    Raises ConfigError for a sink that was never used.
    """
    log = WindowLog(LakePaths.of(replication))
    if limit is not None and (found := log.read_last_events(None, limit, sink=sink)):
        return found
    events = log.read_events()
    if sink is None:
        return events
    of_sink = [event for event in events if event["sink"] == sink]
    known = {stage.sink for stage in replication.list_stages() if stage.sink}
    if not of_sink and sink not in known:
        used = sorted({*known, *(event["sink"] for event in events if event["sink"])})
        raise ConfigError("there is no such sink", where={"sink": sink}, hint=f"use one of {', '.join(used)}")
    return of_sink


def _default_to_local(args: argparse.Namespace) -> None:
    if not (args.remote or args.master or args.without_spark or args.spark_later):
        args.master = DEFAULT_MASTER
