"""`binlake bootstrap`: the full load of a replication's source, until the lake and the target have all its rows.

A feeder starts the load of its sources by itself at its first start, and windows carry the load like any other change.
So for these this command writes nothing: it follows the progress. It refuses a lake that begins after the load, because
the base would never arrive. The tables of a TiDB source are read by SQL and become the first windows of the lake. A
second run resumes an interrupted load.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import structlog

from binlake.cluster.source.tidb import StatusPort
from binlake.common.commandline import add_output
from binlake.common.terminal import Tell, format_pace, show_progress, tell_nobody
from binlake.config import Replication, load_replication
from binlake.errors import CheckpointConflict, ConfigError, SourceUnavailable, WireError
from binlake.lake.baseload import BaseLoad
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowLog
from binlake.rpc import Tls
from binlake.spark_jobs.bootstrap.loading import BootstrapLoader, BootstrapProgress
from binlake.spark_jobs.job.context import Bounds, StageContext, build_context
from binlake.spark_jobs.job.results import DEFAULT_MASTER, add_where, parse_moment
from binlake.spark_jobs.job.runner import run_landed
from binlake.target import read_checkpoint_ts

STATUS_PATH = "/feeder"
LOADED, LANDED, APPLIED = "loaded", "landed", "applied"
_ORDER = ("loading", LOADED, LANDED, APPLIED)
_EVERY_S = 2.0
_READING = "reading"
_NUMBERS = ("rows", "rows_estimated", "tables", "tables_done", "from_ts", "commit_ts")
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


@dataclass(frozen=True)
class SourceLoad:
    """The full load of one source, in (`from_ts`, `commit_ts`]; 0 = unknown. `state` as the feeder reports it.
    `seconds_left`: until all rows are read; None = not known."""

    source: str
    state: str
    rows: int
    rows_estimated: int
    tables: int
    tables_done: int
    from_ts: int
    commit_ts: int
    rows_per_second: float = 0.0
    seconds_left: float | None = None

    @property
    def text(self) -> str:
        """One line for people."""
        if self.state == "done":
            return f"{self.source}: {self.rows:,} rows of {self.tables} tables"
        share = 100 * self.rows // max(self.rows_estimated, self.rows, 1)
        rows = f"{self.rows:,} of about {self.rows_estimated:,} rows ({share} %)"
        pace = format_pace(self.rows_per_second, self.seconds_left)
        return f"{self.source}: {self.state}, {rows}, {self.tables_done} of {self.tables} tables{pace}"


@dataclass(frozen=True)
class Bootstrap:
    """The progress of a full load: `phase` is `loading`, `loaded`, `landed` or `applied`."""

    phase: str
    loads: tuple[SourceLoad, ...]
    landed_ts: int | None = None
    applied_ts: int | None = None

    @property
    def commit_ts(self) -> int:
        """The commit_ts of the last transaction of all loads."""
        return max(load.commit_ts for load in self.loads)

    @property
    def text(self) -> str:
        """One line for people."""
        loads = "; ".join(load.text for load in self.loads)
        ends = f"; base ends at {self.commit_ts}, landed {self.landed_ts or '-'}, target {self.applied_ts or '-'}"
        return f"{self.phase}: {loads}{ends if self.phase != 'loading' else ''}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        loads = [{**vars(load), "from_ts": str(load.from_ts), "commit_ts": str(load.commit_ts)} for load in self.loads]
        positions = {"landed_ts": self.landed_ts, "applied_ts": self.applied_ts}
        return {"phase": self.phase, "loads": loads, **{k: None if v is None else str(v) for k, v in positions.items()}}


def follow_bootstrap(
    replication: Replication,
    until: str,
    show: Callable[[Bootstrap], None],
    pause: Callable[[float], None] = time.sleep,
) -> Bootstrap:
    """Wait for the phase `until`. `show` is called on each change.

    Raises SourceUnavailable, ConfigError, CheckpointConflict.
    """
    source = replication.source
    tls = Tls.of(*source.security.list_files())
    with closing(StatusPort(source.status_url, source.timeout_s, tls)) as port:
        last = None
        while True:
            state = read_bootstrap(replication, read_loads(port.find(STATUS_PATH)))
            if state != last:
                show(state)
            if _ORDER.index(state.phase) >= _ORDER.index(until):
                return state
            last = state
            pause(_EVERY_S)


def read_loads(page: str | None) -> tuple[SourceLoad, ...]:
    """The loads on the feeder's page. Raises ConfigError if it has none, SourceUnavailable if a source failed."""
    if page is None:
        raise ConfigError(
            "source.status-url is not that of a feeder, and without [source.sql] a TiDB source cannot be read",
            hint="add a section [source.sql] that names a TiDB server of the source; or load the target with its own"
            " tools and record it: binlake checkpoint set --base",
        )
    try:
        sources: Sequence[Mapping[str, Any]] = json.loads(page)["sources"]
        for source in sources:
            if source["state"] == "failed":
                raise SourceUnavailable(
                    f"the feeder gave up on a source: {source['trouble']}", where={"source": source["source"]}
                )
        loads = tuple(_parse_load(source) for source in sources if "load" in source or source["state"] != _READING)
    except (ValueError, KeyError, TypeError) as error:
        raise WireError(f"the feeder's page cannot be read: {error!r}") from error
    if not loads:
        raise ConfigError(
            "no source of the feeder had a full load", hint='set `mode = "snapshot"` in [source.start] of feeder.toml'
        )
    return loads


def read_bootstrap(replication: Replication, loads: tuple[SourceLoad, ...]) -> Bootstrap:
    """How much of the base lake and target have. Raises CheckpointConflict for a lake that begins after the load."""
    if any(load.state != "done" for load in loads):
        return Bootstrap("loading", loads)
    windows = WindowLog(LakePaths.of(replication))
    start, landed = windows.start_ts(), windows.find_landed_ts()
    first = min(load.from_ts for load in loads)
    if start is not None and start > first:
        raise CheckpointConflict(
            "the lake begins after the full load, so the load will never reach it",
            where={"lake_starts": start, "load_starts": first},
            hint='give the replication a new lake folder, initial-commit-ts = "0" and a target without checkpoint',
        )
    applied = read_checkpoint_ts(replication, replication.source.expected_cluster)
    last = max(load.commit_ts for load in loads)
    phase = LOADED
    if landed is not None and landed >= last:
        phase = APPLIED if applied is not None and applied >= last else LANDED
    return Bootstrap(phase, loads, landed, applied)


def _parse_load(source: Mapping[str, Any]) -> SourceLoad:
    load = source.get("load", {"state": "waiting"})
    counts = {name: int(load.get(name, 0)) for name in ("rows", "rows_estimated", "tables", "tables_done")}
    return SourceLoad(
        source["source"],
        load["state"],
        **counts,
        from_ts=int(load.get("from_ts", 0)),
        commit_ts=int(load.get("commit_ts", 0)),
        rows_per_second=float(load.get("rows_per_second") or 0),
        seconds_left=load.get("seconds_left"),
    )
