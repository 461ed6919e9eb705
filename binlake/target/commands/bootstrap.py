"""Follows the full load of a feeder's sources until the lake and the target have the base.

The feeder starts the load by itself at its first start, and windows carry the load like any other change. So this
module writes nothing: it shows the progress. It refuses a lake that begins after the load, because the base would never
arrive.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from binlake.base.terminal import format_pace
from binlake.cluster.source.tidb import StatusPort
from binlake.config.model import Replication
from binlake.errors import CheckpointConflict, ConfigError, SourceUnavailable, WireError
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowLog
from binlake.rpc import Tls
from binlake.target.apply.position import read_checkpoint_ts

STATUS_PATH = "/feeder"
LOADED, LANDED, APPLIED = "loaded", "landed", "applied"
_ORDER = ("loading", LOADED, LANDED, APPLIED)
_EVERY_S = 2.0
_READING = "reading"
_NUMBERS = ("rows", "rows_estimated", "tables", "tables_done", "from_ts", "commit_ts")


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
