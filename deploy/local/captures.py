"""`make captures`: puts every capture of a folder through pumps and windows and compares the target at each state.

One line a capture: name, transactions, rows, states, equal or the first difference, seconds. Nothing depends on what a
capture is called or holds.
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
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from pyspark.sql import SparkSession

from binlake.capture import Capture
from binlake.compare import compare_state, connect, expected_states
from binlake.config import Replication
from binlake.errors import BinlakeError, ConfigError, IncompleteWindow
from deploy.local.cluster import CaptureCluster, capture_cluster
from deploy.local.mariadb import MariaDb
from deploy.local.process import ProcessError
from spark_jobs.context import StageContext, StageResult
from spark_jobs.runner import run_window
from spark_jobs.session import classic_session

DEFAULT = Path(__file__).resolve().parents[2] / "tests" / "captures"
_PATIENCE_S = 60.0


@dataclass
class Outcome:
    """How a capture went; `difference` empty = equal. `rows`: rows compared, summed over `states`."""

    name: str
    transactions: int = 0
    rows: int = 0
    states: int = 0
    windows: int = 0
    seconds: float = 0.0
    replay_seconds: float = 0.0
    difference: str = ""
    exemptions: Counter[str] = field(default_factory=Counter)

    @property
    def equal(self) -> bool:
        """True when every state was reached and equal."""
        return not self.difference

    def line(self) -> str:
        """The one line that is printed."""
        verdict = "equal" if self.equal else f"differs: {self.difference}"
        return (
            f"{self.name:<16} {self.transactions:>6} transactions {self.rows:>8} rows {self.states:>4} states "
            f"{self.windows:>4} windows  {self.seconds:7.1f} s  {verdict}"
        )


def captures_in(folder: Path) -> list[Capture]:
    """The captures in `folder` (or the one it is), by name. Raises ConfigError when there is none."""
    candidates = [folder, *folder.iterdir()] if folder.is_dir() else []
    found = sorted(path for path in candidates if any(path.glob("binlogs.bin*")))
    if not found:
        raise ConfigError("no capture found", where={"folder": folder}, hint="set BINLAKE_CAPTURES=DIR")
    return [Capture(path) for path in found]


def run_capture(
    capture: Capture,
    server: MariaDb,
    make_spark: Callable[[], SparkSession],
    folder: Path,
    *,
    only_states: Collection[int] | None = None,
    mirror: bool = False,
) -> Outcome:
    """Replay `capture` and compare at its states (`only_states`: these numbers); its files go below `folder`.

    Errors of the pipeline become the outcome's difference: one capture that fails stops no other.
    """
    began = time.monotonic()
    outcome = Outcome(capture.name)
    server.wipe()
    try:
        points = [state.commit_ts for state in expected_states(capture)]
        with capture_cluster(capture, folder) as cluster:
            outcome.transactions = int(cluster.replay["transactions"])
            outcome.replay_seconds = float(cluster.replay["seconds"])
            replication = _replication(cluster, server, folder, points, mirror)
            _compare_all(capture, server, StageContext(replication, capture.name, make_spark), outcome, only_states)
    except (BinlakeError, ProcessError) as error:
        outcome.difference = f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001 - the other captures are run all the same; the traceback is shown
        traceback.print_exc()
        outcome.difference = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    outcome.seconds = time.monotonic() - began
    return outcome


def _replication(
    cluster: CaptureCluster, server: MariaDb, folder: Path, points: list[int], mirror: bool
) -> Replication:
    return Replication.model_validate(
        {
            "name": "captures",
            "initial-commit-ts": "0",
            "source": {
                "pd-urls": [cluster.pd_url],
                "status-url": cluster.status_url,
                "cluster-id": str(cluster.cluster_id),
            },
            "lake": {"path": str(folder / "lake")},
            "window": {"stop-at": [str(ts) for ts in sorted(set(points))]},
            "target": {
                "db-type": "mariadb",
                "host": server.host,
                "port": server.port,
                "user": server.user,
                "password": server.password,
            },
            "mirror": {"enabled": mirror},
        }
    )


def _compare_all(
    capture: Capture, server: MariaDb, ctx: StageContext, outcome: Outcome, only_states: Collection[int] | None
) -> None:
    for number, state in enumerate(expected_states(capture)):
        outcome.windows += _advance(ctx, state.commit_ts)
        if only_states is not None and number not in only_states:
            continue
        connection = connect(server.host, server.port, server.user, server.password)
        try:
            result = compare_state(state, connection)
        finally:
            connection.close()
        outcome.states += 1
        outcome.rows += result.rows
        outcome.exemptions += result.exemptions
        if not result.equal:
            outcome.difference = f"at {state.commit_ts} ({state.step}): {result.first_difference}"
            return


def _advance(ctx: StageContext, stop: int) -> int:
    """Run windows until everything at or below `stop` is applied; how many. Raises IncompleteWindow after a while."""
    windows, until = 0, time.monotonic() + _PATIENCE_S
    while (ctx.windows.landed_ts() or 0) < stop:
        results = run_window(ctx)
        if _landed(results):
            windows, until = windows + 1, time.monotonic() + _PATIENCE_S
        elif time.monotonic() > until:
            reason = results[0].detail.get("reason", results[0].state)
            raise IncompleteWindow(f"no window for {_PATIENCE_S:.0f} s: {reason}", where={"stop": stop})
        else:
            time.sleep(0.1)
    return windows


def _landed(results: list[StageResult]) -> bool:
    return any(result.stage == "land" for result in results)


def run_all(captures: Iterable[Capture], server: MariaDb, make_spark: Callable[[], SparkSession]) -> int:
    """Every capture, a line each; the exit status."""
    outcomes: list[Outcome] = []
    for capture in captures:
        with tempfile.TemporaryDirectory(prefix=f"binlake-{capture.name}-") as folder:
            outcomes.append(run_capture(capture, server, make_spark, Path(folder)))
        print(outcomes[-1].line(), flush=True)
        for name, count in sorted(outcomes[-1].exemptions.items()):
            print(f"    exempt {count:>6} x {name}", flush=True)
    differing = [outcome.name for outcome in outcomes if not outcome.equal]
    print(f"{len(outcomes)} captures, {len(differing)} differ" + (f": {', '.join(differing)}" if differing else ""))
    return 1 if differing else 0


def main() -> int:
    """Parse the arguments, start one target and one Spark session, run; 1 when a capture differs or cannot be read."""
    parser = argparse.ArgumentParser(prog="make captures", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT, help="folder of captures, or one capture")
    folder = parser.parse_args().folder
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    # An end by SIGTERM takes the same way out as any other: servers stopped, folders removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        captures = captures_in(folder)
        with MariaDb() as server:
            spark = classic_session("captures", "local[2]")
            try:
                return run_all(captures, server, lambda: spark)
            finally:
                spark.stop()
    except (BinlakeError, ProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
