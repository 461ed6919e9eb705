"""`binlake bootstrap`: the full load of a replication's source, until the lake and the target have all its rows.

A feeder loads its sources itself; this command then only follows the feeder's progress. The tables of a TiDB source are
read by SQL and become the first windows of the lake. A second run resumes an interrupted load.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import closing

import structlog

from binlake.base.commandline import add_output
from binlake.base.terminal import Tell, show_progress, tell_nobody
from binlake.cluster.source.tidb import StatusPort
from binlake.config import Replication, load_replication
from binlake.errors import ConfigError, SourceUnavailable
from binlake.lake.baseload import BaseLoad
from binlake.rpc import Tls
from binlake.spark_jobs.bootstrap.loading import BootstrapLoader, BootstrapProgress
from binlake.spark_jobs.job.arguments import DEFAULT_MASTER, add_where, parse_moment
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.opening import build_context
from binlake.spark_jobs.job.runner import run_landed
from binlake.target import read_checkpoint_ts
from binlake.target.commands.bootstrap import (
    APPLIED,
    LANDED,
    LOADED,
    STATUS_PATH,
    Bootstrap,
    SourceLoad,
    follow_bootstrap,
)

log = structlog.get_logger()

TIDB = "tidb"
"""The source name that progress shows for a load by SQL."""


class BootstrapCommand:
    """The command."""

    name = "bootstrap"
    examples = ("binlake bootstrap --without-spark --replication orders.toml",)
    help = "load all rows of the source, or follow the feeder's load, until the lake and the target have them"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The replication, how far to go, and for a TiDB source the snapshot."""
        parser.add_argument("--replication", required=True, metavar="FILE", help="the replication's TOML")
        parser.add_argument(
            "--until",
            choices=(LOADED, LANDED, APPLIED),
            help="loaded: the pumps have the rows; landed: the lake has them; applied: the target has them"
            " (default if the replication has a target)",
        )
        parser.add_argument(
            "--at",
            type=parse_moment,
            metavar="TS",
            help="TiDB source only: load it as of this commit_ts or time; the pumps' binlogs must reach back to it"
            " (default: now)",
        )
        parser.add_argument("--run-id", default="", help="name of this run in the table `window`")
        add_where(parser)
        add_output(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Load or follow; returns 0 once `--until` is reached."""
        replication = load_replication(args.replication)
        until = args.until or (APPLIED if replication.target is not None else LANDED)
        if until == APPLIED:
            replication.require_sql_target()
        if not (args.remote or args.master or args.without_spark or args.spark_later):
            args.master = DEFAULT_MASTER
        with show_progress("bootstrap") as tell:
            done = self._load(replication, args, until, build_show(tell, args.output))
        if args.output == "json":
            print(json.dumps(done.to_dict()))
        return 0

    def _load(
        self, replication: Replication, args: argparse.Namespace, until: str, show: Callable[[Bootstrap], None]
    ) -> Bootstrap:
        if replication.source.sql is None or _has_feeder(replication):
            if args.at is not None:
                raise ConfigError(
                    "--at is only for a TiDB source", hint="omit --at: a feeder loads its sources as they are now"
                )
            return follow_bootstrap(replication, until, show)
        return load_tidb(build_context(replication, "bootstrap", args, args.run_id), until, show, args.at)


def build_show(tell: Tell, output: str) -> Callable[[Bootstrap], None]:
    """Shows each step: as one line on a terminal, which the next step replaces; else as a line or an event of its own.

    The last step is always printed.
    """
    if output == "json":
        return _log_progress

    def show(state: Bootstrap) -> None:
        if tell is tell_nobody or state.phase != "loading":
            print(state.text, flush=True)
        tell(state.text)

    return show


def load_tidb(ctx: StageContext, until: str, show: Callable[[Bootstrap], None], at_ts: int | None = None) -> Bootstrap:
    """Load the source of `ctx` by SQL. With `until` applied, each window goes through all stages once it is sealed.

    Raises BinlakeError.
    """
    shown: list[Bootstrap] = []

    def show_step(progress: BootstrapProgress) -> None:
        state = Bootstrap("loading", (_load_of(progress.load, progress.rows, progress.tables_read),))
        if not shown or shown[-1] != state:
            shown[:] = [state]
            show(state)

    def apply(bounds: Bounds) -> None:
        run_landed(ctx, bounds)

    load = BootstrapLoader(ctx, show_step, apply if until == APPLIED else lambda _: None).load(at_ts)
    if until == APPLIED and (_read_applied_ts(ctx) or 0) < load.base_ts:
        # An earlier attempt died after a seal, or was run only until the lake had the rows.
        run_landed(ctx, Bounds(*ctx.windows.list_landed()[-1]))
    phase = APPLIED if until == APPLIED else LANDED
    done = Bootstrap(
        phase, (_load_of(load, load.rows, load.tables),), ctx.windows.find_landed_ts(), _read_applied_ts(ctx)
    )
    show(done)
    return done


def _read_applied_ts(ctx: StageContext) -> int | None:
    manifest = ctx.windows.read_last_manifest()
    return None if manifest is None else read_checkpoint_ts(ctx.replication, manifest.cluster_id)


def _load_of(load: BaseLoad, rows: int, tables_read: int) -> SourceLoad:
    state = "done" if load.done else "reading"
    estimated = max(load.rows_estimated, rows)
    return SourceLoad(TIDB, state, rows, estimated, load.tables, tables_read, load.from_ts, load.base_ts)


def _has_feeder(replication: Replication) -> bool:
    source = replication.source
    with closing(StatusPort(source.status_url, source.timeout_s, Tls.of(*source.security.list_files()))) as port:
        try:
            return port.find(STATUS_PATH) is not None
        except SourceUnavailable as error:
            # Some sites block a TiDB's status port. If the server is not a TiDB, setting tidb_snapshot fails later.
            log.info("status_port_not_asked", reason=str(error))
            return False


def _log_progress(state: Bootstrap) -> None:
    log.info("bootstrap", phase=state.phase, text=state.text)
