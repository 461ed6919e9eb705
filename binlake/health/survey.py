"""The health of several replications at once: a lake that hangs or fails hides no other, and is `unknown`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from binlake.common.commandline import Exit
from binlake.common.installation import explain_missing
from binlake.common.reachability import begin_in_thread
from binlake.config import Replication
from binlake.config.load import find_replications, find_replications_folder, load_replication
from binlake.errors import BinlakeError, ConfigError, Transient
from binlake.health.orchestration import DagFacts, SchedulerFacts
from binlake.health.positions import build_feeds_view, build_status_view
from binlake.health.problem import STATES, Problem, fill_in
from binlake.health.state import Surroundings, build_health_view
from binlake.health.surroundings import (
    FindAddresses,
    build_nodes_view,
    build_reach_view,
    build_sources_view,
    hear_sources,
)
from binlake.lake.damage import translate_storage_error
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowLog
from binlake.pipeline import name_feed_sink

UNKNOWN = "unknown"
"""The state of a replication whose file or lake cannot be read."""
ORDER = (UNKNOWN, *STATES, "empty", "running")
"""All states, the worst first."""
_GOES_ON = frozenset({"behind", "attention"})
_WELL = frozenset({"empty", "running"})
Row = dict[str, Any]
GROUP = "binlake.orchestration"


def _know_no_address() -> tuple[tuple[str, int], ...]:
    return ()


@dataclass(frozen=True)
class Orchestration:
    """What only Airflow knows: the DAGs of the replication by kind, its scheduler, and where Spark is.

    Without arguments: Airflow was not asked, so nothing of this is known and none of it counts as a problem.
    """

    dags: Mapping[str, DagFacts] = field(default_factory=dict)
    scheduler: SchedulerFacts | None = None
    find_spark: FindAddresses = _know_no_address


Ask = Callable[[Replication], Orchestration]


def find_files(names: Sequence[str]) -> tuple[dict[Path, Replication], dict[Path, ConfigError]]:
    """The replications that are named by name or file (none: all of the folder), and the files that are not valid.

    Raises ConfigError for a name that no file has.
    """
    if not names:
        found = find_replications()
        return dict(found.good), dict(found.broken)
    good: dict[Path, Replication] = {}
    broken: dict[Path, ConfigError] = {}
    for name in names:
        path = find_file(name)
        try:
            good[path] = load_replication(path, secrets=False)
        except ConfigError as error:
            broken[path] = error
    return good, broken


def find_file(name: str) -> Path:
    """The file of a replication that is named by its name or its file. Raises ConfigError."""
    if name.endswith(".toml") or Path(name).is_file():
        return Path(name)
    found = find_replications()
    path = next((path for path, one in found.good.items() if one.name == name), None)
    # A file that is not valid has no name to compare: by custom it is that of the file.
    path = path or next((path for path in found.broken if path.stem == name), None)
    if path is None:
        known = ", ".join(sorted(one.name for one in found.good.values())) or "none"
        raise ConfigError(
            "there is no such replication",
            where={"name": name, "folder": find_replications_folder()},
            hint=f"known are: {known}; or name its file",
        )
    return path


def find_airflow() -> Ask:
    """What asks Airflow. Raises ConfigError if its packages are not installed here."""
    (point,) = entry_points(group=GROUP, name="airflow")
    try:
        ask: Ask = point.load()
    except ModuleNotFoundError as error:
        raise explain_missing(error, "status --airflow", tuple(point.extras)) or error from error
    return ask


def read_rows(
    good: Mapping[Path, Replication],
    broken: Mapping[Path, ConfigError],
    timeout_s: float,
    ask: Ask | None = None,
) -> list[Row]:
    """A row for each file, the worst first: what `read_health` returns, its `file`, and `orchestration`.

    `ask`: what the scheduler knows; None = it is unknown.
    """
    until = time.monotonic() + timeout_s
    work = {
        path: begin_in_thread(partial(_read_row, path, one, ask), f"status-{one.name}") for path, one in good.items()
    }
    rows = [_build_unknown_row(path, path.stem, str(error)) for path, error in broken.items()]
    rows += [_await_row(path, good[path].name, future, until, timeout_s) for path, future in work.items()]
    return sorted(rows, key=lambda row: (ORDER.index(row["state"]), row["name"]))


def choose_status(rows: Sequence[Row]) -> Exit:
    """The exit status for these rows."""
    states = {row["state"] for row in rows}
    if UNKNOWN in states:
        return Exit.UNKNOWN
    if states - _GOES_ON - _WELL:
        return Exit.STOPPED
    return Exit.ATTENTION if states & _GOES_ON else Exit.DONE


def _read_row(path: Path, replication: Replication, ask: Ask | None) -> Row:
    orchestration = _ask_airflow(replication, ask) if ask is not None else Orchestration()
    status, _ = read_health(replication, WindowLog(LakePaths.of(replication)), orchestration)
    for problem in status["problems"]:
        problem["remedy"] = fill_in(problem["remedy"], path, replication.source.pd_urls)
    return {**status, "file": str(path), "orchestration": UNKNOWN if ask is None else "airflow"}


def _ask_airflow(replication: Replication, ask: Ask) -> Orchestration:
    try:
        return ask(replication)
    except Exception as error:
        # The errors are those of Airflow and of its database's driver, which the core cannot import.
        raise Transient(
            f"Airflow's database cannot be read: {type(error).__name__}",
            hint="run it where Airflow's own commands work (AIRFLOW_HOME), or without --airflow",
        ) from error


def _await_row(path: Path, name: str, future: Future[Row], until: float, timeout_s: float) -> Row:
    try:
        return future.result(max(until - time.monotonic(), 0.0))
    except FutureTimeout:
        return _build_unknown_row(path, name, f"its lake did not answer within {timeout_s:g} s")
    except BinlakeError as error:
        return _build_unknown_row(path, name, str(error))
    except Exception as error:
        known = translate_storage_error(error)
        if known is None:
            raise
        return _build_unknown_row(path, name, str(known))


def _build_unknown_row(path: Path, name: str, text: str) -> Row:
    problem = Problem(UNKNOWN, text, remedy=f"binlake doctor {path}")
    return {
        "name": name, "file": str(path), "state": UNKNOWN, "problems": [problem.to_dict()], "landed": None, "sinks": {},
        "feeds": [], "source": None, "orchestration": UNKNOWN,
    }  # fmt: skip


def read_health(
    replication: Replication, log: WindowLog, orchestration: Orchestration
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The replication's status with its health, and the registry's nodes (as `build_nodes_view`)."""
    now_ms, nodes = time.time_ns() // 1_000_000, build_nodes_view(replication)
    hearing = hear_sources(replication, nodes["tidb"])
    # How far a commit_ts is behind is a question to the clock that gave it; what Binlake recorded has this one's times.
    source_ms = now_ms + nodes["skew_ms"]
    status = build_status_view(replication, log, source_ms, hearing)
    feeds = build_feeds_view(replication, log, source_ms, hearing)
    status["sinks"] |= {name_feed_sink(feed["name"]): feed["position"] for feed in feeds}
    reach = build_reach_view(replication, orchestration.find_spark)
    around = Surroundings(orchestration.dags, reach, nodes, hearing, orchestration.scheduler)
    health = build_health_view(replication, log, status, around, now_ms, feeds)
    source = build_sources_view(hearing, now_ms)
    return {**status, **health, "source": source, "feeds": feeds, "skew_ms": nodes["skew_ms"]}, nodes
