"""`make captures`: applies every capture of a folder to a target by two paths and compares it at recorded states.

`direct`: only core functions, at every state. `windows`: pumps, lake and Spark, at `--states` states, spread evenly
over the capture; one window covers everything between two of them. One line for each capture and path: transactions,
rows, states, windows, seconds, equal or the first difference. Nothing depends on a capture's name or content.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from pyspark.sql import SparkSession

from binlake.config import Replication
from binlake.config.servers import TargetSection
from binlake.errors import BinlakeError, ConfigError, IncompleteWindow
from binlake.rows.codec.values import InvalidText
from binlake.rules import Rules
from binlake.spark_jobs.engine.spark import start_classic_session
from binlake.spark_jobs.job.context import StageContext, StageResult
from binlake.spark_jobs.job.runner import run_window
from binlake.target import TargetSession
from binlake.testkit.captures import compare_state, connect, read_expected_states
from binlake.testkit.captures.capture import Capture, StateAt
from deploy.local.cluster import CaptureCluster, run_capture_cluster
from deploy.local.commitlog import find_tables_in_doubt, plan_ddl, read_log
from deploy.local.direct import DirectReplay
from deploy.local.handwork import Handworks, plan_handwork
from deploy.local.mariadb import MariaDb
from deploy.local.process import ProcessError

DEFAULT = Path(__file__).resolve().parents[2] / "tests" / "captures"
STATES = 12
"""States compared after windows: one window for each of 115 would take 20 minutes."""

_PATIENCE_S = 60.0


@dataclass
class CaptureResult:
    """The result of a capture by one path; empty `difference` = equal. `rows`: compared rows, summed over `states`."""

    name: str
    path: str = "windows"
    transactions: int = 0
    rows: int = 0
    states: int = 0
    recorded: int = 0
    windows: int = 0
    seconds: float = 0.0
    replay_seconds: float = 0.0
    difference: str = ""
    exemptions: Counter[str] = field(default_factory=Counter)
    by_hand: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """True when every state was reached and was equal."""
        return not self.difference

    def format_line(self) -> str:
        """The line to print."""
        verdict = "equal" if self.equal else f"differs: {self.difference}"
        return (
            f"{self.name:<16} {self.path:<7} {self.transactions:>6} transactions {self.rows:>8} rows "
            f"{self.states:>4} of {self.recorded:>3} states {self.windows:>4} windows  {self.seconds:7.1f} s  {verdict}"
        )


def list_captures(folder: Path) -> list[Capture]:
    """The captures in `folder` (or `folder` itself, if it is one), by name. Raises ConfigError if there is none."""
    candidates = [folder, *folder.iterdir()] if folder.is_dir() else []
    captures = sorted(path for path in candidates if any(path.glob("binlogs.bin*")))
    if not captures:
        raise ConfigError("no capture found", where={"folder": folder}, hint="set BINLAKE_CAPTURES=DIR")
    return [Capture(path) for path in captures]


def select_sample(states: list[StateAt], most: int) -> list[StateAt]:
    """`most` of `states` (0 = all), spread evenly, with the last one, and the first one if there are at least two."""
    if most <= 0 or len(states) <= most:
        return states
    step = (len(states) - 1) / max(most - 1, 1)
    return [states[len(states) - 1 - round(n * step)] for n in reversed(range(most))]


def place_states(states: Iterable[StateAt], last_ts: int) -> dict[int, list[StateAt]]:
    """The states by the commit_ts after which they are compared: those read after the last commit, after that one.

    Windows reach a later moment only when PD's clock does, which nothing leads there: 19 minutes in one capture.
    """
    placed: dict[int, list[StateAt]] = {}
    for state in states:
        placed.setdefault(min(state.commit_ts, last_ts), []).append(state)
    return placed


def run_direct(capture: Capture, server: MariaDb) -> CaptureResult:
    """Apply `capture` with core functions only and compare at each of its states; errors as in `run_capture`."""

    def work(outcome: CaptureResult) -> None:
        log = read_log(capture)
        outcome.transactions = len(log.rows) + len(log.ddls)
        target = TargetSection(db_type="mariadb", host=server.host, port=server.port, user=server.user)
        with closing(TargetSession(target)) as session:
            rules = Rules(invalid_text=_choose_invalid_text(capture), second_writes="once", partition_rows="removed")
            hands = plan_handwork(plan_ddl(log), capture.read_states(), find_tables_in_doubt(log))
            replay = DirectReplay(log, session, hands, new_collation=_has_new_collation(capture), rules=rules)
            for state in read_expected_states(capture):
                replay.advance(state.commit_ts)
                outcome.windows, outcome.by_hand = replay.applied.windows, replay.applied.by_hand
                if not _compare(capture, state, server, outcome):
                    return

    return _run_timed(capture, "direct", server, work)


def run_capture(
    capture: Capture,
    server: MariaDb,
    make_spark: Callable[[], SparkSession],
    folder: Path,
    *,
    most_states: int = 0,
    pumps: int = 2,
    mirror: bool = False,
) -> CaptureResult:
    """Replay `capture` through `pumps` and windows, compare at a `sample` of its states; files go below `folder`.

    Errors of the pipeline become the outcome's difference, so a failed capture does not stop the others.
    """

    def work(outcome: CaptureResult) -> None:
        states = select_sample(list(read_expected_states(capture)), most_states)
        commits = read_log(capture)
        hands = plan_handwork(plan_ddl(commits), capture.read_states(), find_tables_in_doubt(commits))
        with run_capture_cluster(capture, folder, pumps=pumps) as cluster:
            outcome.transactions = int(cluster.replay["transactions"])
            outcome.replay_seconds = float(cluster.replay["seconds"])
            compared = place_states(states, commits.last_ts)
            settings = _build_settings(cluster, server, folder, sorted({*compared, *hands.stops}))
            # Start right before the capture's first change, not decades earlier.
            settings["initial-commit-ts"] = str(commits.first_ts - 1)
            settings["source"]["new-collation"] = _has_new_collation(capture)
            settings["source"]["invalid-text"] = _choose_invalid_text(capture)
            settings["source"] |= {"second-writes": "once", "partition-rows": "removed"}
            settings["filter"] = {"ignore-txn-commit-ts": [str(ts) for ts in hands.ignored]}
            replaced = [{"commit-ts": str(ts), "sql": sql} for ts, sql in hands.replaced.items()]
            settings["ddl-replacement"], settings["target"]["tables"] = replaced, list(hands.accepted)
            settings["mirror"] = {"enabled": mirror}
            ctx = StageContext(Replication.model_validate(settings), capture.name, make_spark)
            _run_windows(capture, server, ctx, outcome, compared, hands)

    return _run_timed(capture, "windows", server, work)


def _run_timed(capture: Capture, path: str, server: MariaDb, work: Callable[[CaptureResult], None]) -> CaptureResult:
    began = time.monotonic()
    outcome = CaptureResult(capture.name, path, recorded=sum(1 for _ in capture.read_states()))
    server.wipe()
    try:
        work(outcome)
    except (BinlakeError, ProcessError) as error:
        outcome.difference = f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001 - the other captures still run; the traceback is shown
        traceback.print_exc()
        outcome.difference = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    outcome.seconds = time.monotonic() - began
    return outcome


def _has_new_collation(capture: Capture) -> bool:
    return bool(capture.meta.get("new_collation", True))


def _choose_invalid_text(capture: Capture) -> InvalidText:
    """As an operator would set it for a source with texts that are not UTF-8; the capture counted such texts."""
    return "latin1" if capture.meta.get("text_not_utf8") else "refuse"


def _build_settings(cluster: CaptureCluster, server: MariaDb, folder: Path, stops: list[int]) -> dict[str, Any]:
    return {
        "name": "captures",
        "source": {
            "pd-urls": [cluster.pd_url],
            "status-url": cluster.status_url,
            "cluster-id": str(cluster.cluster_id),
        },
        "lake": {"path": str(folder / "lake")},
        "window": {"stop-at": [str(ts) for ts in stops]},
        "target": {
            "db-type": "mariadb",
            "host": server.host,
            "port": server.port,
            "user": server.user,
            "password": server.password,
        },
    }


def _run_windows(
    capture: Capture,
    server: MariaDb,
    ctx: StageContext,
    outcome: CaptureResult,
    compared: dict[int, list[StateAt]],
    hands: Handworks,
) -> None:
    for stop in ctx.replication.list_stop_points():
        outcome.windows += _advance(ctx, stop)
        with server.connect() as link, link.cursor() as cursor:
            outcome.by_hand += hands.run_due(cursor.execute, stop)
        if not all(_compare(capture, state, server, outcome) for state in compared.get(stop, [])):
            return


def _compare(capture: Capture, state: StateAt, server: MariaDb, outcome: CaptureResult) -> bool:
    connection = connect(server.host, server.port, server.user, server.password)
    try:
        result = compare_state(state, connection, new_collation=_has_new_collation(capture))
    finally:
        connection.close()
    outcome.states += 1
    outcome.rows += result.rows
    outcome.exemptions += result.exemptions
    if not result.equal:
        outcome.difference = f"at {state.commit_ts} ({state.step}): {result.first_difference}"
    return result.equal


def _advance(ctx: StageContext, stop: int) -> int:
    """Run windows until everything at or below `stop` is applied; returns their number. Raises IncompleteWindow."""
    windows, until = 0, time.monotonic() + _PATIENCE_S
    while (ctx.windows.find_landed_ts() or 0) < stop:
        results = run_window(ctx)
        if _has_landed(results):
            windows, until = windows + 1, time.monotonic() + _PATIENCE_S
        elif time.monotonic() > until:
            reason = results[0].detail.get("reason", results[0].state)
            raise IncompleteWindow(f"no window for {_PATIENCE_S:.0f} s: {reason}", where={"stop": stop})
        else:
            time.sleep(0.1)
    return windows


def _has_landed(results: list[StageResult]) -> bool:
    return any(result.stage == "land" for result in results)


def run_all(
    captures: Iterable[Capture], server: MariaDb, make_spark: Callable[[], SparkSession], most_states: int
) -> int:
    """Run every capture by both paths; print a line each, with exemptions and manual DDL. Returns the exit status."""
    outcomes: list[CaptureResult] = []
    for capture in captures:
        outcomes.append(_print_notes(run_direct(capture, server)))
        with tempfile.TemporaryDirectory(prefix=f"binlake-{capture.name}-") as folder:
            outcomes.append(
                _print_notes(run_capture(capture, server, make_spark, Path(folder), most_states=most_states))
            )
    differing = sorted({outcome.name for outcome in outcomes if not outcome.equal})
    total = len({outcome.name for outcome in outcomes})
    print(f"{total} captures, {len(differing)} differ" + (f": {', '.join(differing)}" if differing else ""))
    return 1 if differing else 0


def _print_notes(outcome: CaptureResult) -> CaptureResult:
    print(outcome.format_line(), flush=True)
    for name, count in sorted(outcome.exemptions.items()):
        print(f"    exempt {count:>6} x {name}", flush=True)
    for query in outcome.by_hand:
        print(f"    by hand: {query}", flush=True)
    return outcome


def main() -> int:
    """Parse the arguments, start one target and one Spark session, run; 1 if a capture differs or cannot be read."""
    parser = argparse.ArgumentParser(prog="make captures", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT, help="folder of captures, or one capture")
    parser.add_argument("--states", type=int, default=STATES, help="states to compare after windows; 0 = all of them")
    arguments = parser.parse_args()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    # SIGTERM exits like any other end: servers are stopped and folders removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        captures = list_captures(arguments.folder)
        with MariaDb() as server:
            spark = start_classic_session("captures", "local[2]")
            try:
                return run_all(captures, server, lambda: spark, arguments.states)
            finally:
                spark.stop()
    except (BinlakeError, ProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
