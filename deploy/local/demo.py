"""`make demo`: replicates a recorded TiDB through pumps, an Airflow DAG and Delta tables into MariaDB, and compares it.

All files are below `.local/demo`, all servers on loopback. Exit status 0 only if every table was equal at every state.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from binlake.config import Replication, load_replication
from binlake.testkit.captures import read_expected_states
from binlake.testkit.captures.capture import Capture
from deploy.local.airflow import Airflow
from deploy.local.airflow_client import AirflowClient
from deploy.local.demo_audit import show_audit
from deploy.local.demo_feed import DemoFeed
from deploy.local.demo_live import LiveLoad
from deploy.local.demo_place import OneMachine, Place, StoreAndCluster
from deploy.local.demo_report import Report
from deploy.local.demo_run import ROOT, SPARK_CONNECTION, exit_status, run_servers
from deploy.local.demo_watch import DemoWatch
from deploy.local.mariadb import MariaDb
from deploy.local.process import stop_recorded
from deploy.local.source import CaptureSource

FOLDER = ROOT / ".local" / "demo"
NAME = "demo"
# At this rate, the 6,000 transactions take about as long as the windows of their first half.
RATE = 300.0
# What comes in eight seconds at that rate.
BACKLOG_BYTES = 300 << 10
PLACES: dict[str, Callable[[Path], Place]] = {
    "local": OneMachine,
    "s3": lambda folder: StoreAndCluster(folder, hidden=ROOT),
}


class Demo:
    """All servers of the demo below `folder`, and the replication file that connects them."""

    def __init__(
        self, capture: Capture, folder: Path, report: Report, place: Place, *, with_feed: bool = False
    ) -> None:
        self.report = report
        self.folder = folder.resolve()
        self.source = CaptureSource(capture, folder / "source")
        self.target = MariaDb(folder / "mariadb")
        self.place = place
        self.states = list(read_expected_states(capture))
        # Every second state lies inside a window, not at its end, so time travel has to reconstruct it.
        self.inside = self.states[2:-1:2]
        self.stops = [state for state in self.states if state not in self.inside]
        self.feed = DemoFeed(self.folder) if with_feed else None
        self.file = folder / "replications" / f"{NAME}.toml"
        self.live = LiveLoad(self.folder / "live", self.target, self.file.parent, place.render_lake("live"))
        self.airflow = Airflow(folder / "airflow", self._build_environment())

    @property
    def starts(self) -> dict[str, Callable[[], object]]:
        """The servers to start besides Airflow, by name."""
        return {
            "pd and two pumps": self.source.start,
            "MariaDB": self.target.start,
            **self.place.starts,
            **(self.feed.starts if self.feed is not None else {}),
        }

    @property
    def ends(self) -> list[Callable[[], object]]:
        """The functions that stop these servers."""
        own: list[Callable[[], object]] = [*self.place.ends, self.source.stop, self.live.stop, self.target.stop]
        return [*own, self.feed.stop] if self.feed is not None else own

    def read_replication(self) -> Replication:
        """The replication that the DAG runs."""
        return load_replication(self.file)

    def _build_environment(self) -> dict[str, str]:
        spark = self.place.spark.as_airflow_connection(SPARK_CONNECTION)
        return {"BINLAKE_REPLICATIONS": str(self.file.parent), **spark, **self.place.env}

    def write_replication(self) -> None:
        """Write the file from which the DAG is made."""
        self.file.parent.mkdir(parents=True)
        stops = ", ".join(f'"{state.commit_ts}"' for state in self.stops)
        self.file.write_text(
            f"""# Written by `make demo`.
name = "{NAME}"
initial-commit-ts = "0"

[source]
pd-urls = "{self.source.pd_url}"
status-url = "{self.source.status_url}"
cluster-id = "{self.source.cluster_id}"

{self.place.render_lake("lake")}
[window]
# Commit_ts at which the capture recorded TiDB's tables; some recorded states lie inside a window on purpose.
stop-at = [{stops}]
# As small as this capture: its first 20,000 rows, and what waits until they are applied, run on Spark.
driver-bytes = {BACKLOG_BYTES}

[target]
db-type = "mariadb"
host = "{self.target.host}"
port = {self.target.port}
user = "{self.target.user}"

[mirror]
enabled = true

[airflow]
schedule = "every 5s"
layout = "stages"
# One process for all stages and windows of a run: with one for each stage, seven Python processes would start for each
# window. The stages are tasks all the same; they follow that process.
one-process = true
engine = "connect"
spark-conn-id = "{SPARK_CONNECTION}"
retry-delay-s = 2

[airflow.maintain]
# Otherwise Airflow makes up for last midnight's run while the windows begin.
schedule = ""
{self.feed.render_section() if self.feed is not None else ""}""",
            encoding="utf-8",
        )


def run(
    capture: Capture,
    folder: Path,
    keep: bool,
    *,
    rate: float = RATE,
    with_feed: bool = False,
    build_place: Callable[[Path], Place] = OneMachine,
) -> int:
    """Run the demo at `rate` binlogs a second. Returns the exit status.

    Raises BinlakeError, ProcessError, KeyboardInterrupt.
    """
    report = Report()
    for name in stop_recorded(folder):
        report.say(f"stopped {name}, which an earlier demo left running")
    shutil.rmtree(folder, ignore_errors=True)
    demo = Demo(capture, folder, report, build_place(folder), with_feed=with_feed)
    demo.place.describe(report)
    demo.write_replication()
    with run_servers(report, demo.starts, demo.airflow, demo.ends, keep):
        report.print_page(demo.airflow.url, demo.airflow.user, demo.airflow.password, NAME)
        equal = _run_windows(demo, rate)
        equal = show_audit(demo.read_replication(), demo.file, demo.inside, report) and equal
        if demo.feed is not None:
            equal = demo.feed.show(demo.read_replication(), report) and equal
        equal = demo.place.show_executors(report) and equal
        if keep:
            _go_on(demo)
        report.print_summary(equal, demo.airflow.url, demo.airflow.user, demo.airflow.password, keep)
    return 0 if equal else 1


def _run_windows(demo: Demo, rate: float) -> bool:
    client = AirflowClient(demo.airflow.url, demo.airflow.user, demo.airflow.password)
    try:
        client.wait_for_dag(NAME, 60)
        demo.source.feed(rate)
        demo.report.say(f"replaying the capture, {rate:g} binlogs a second; the DAG `{NAME}` runs every 5 s")
        client.set_paused(NAME, False)
        demo.report.say(
            "waiting for Airflow to start the first run; one process runs its windows, and the stages' tasks follow it"
        )
        with DemoWatch(demo.read_replication(), demo.source, demo.stops, client, demo.report) as watch:
            with demo.report.wait_for("the next window at the target"):
                equal = watch.compare_all_states()
            client.set_paused(NAME, True)
            # The mirrors are a separate sink and may still be working on the last window.
            with demo.report.wait_for("the mirrors"):
                watch.wait_until_mirrored()
        return equal
    finally:
        client.close()


def _go_on(demo: Demo) -> None:
    """Let the DAG continue by its schedule, and start a small load beside it."""
    client = AirflowClient(demo.airflow.url, demo.airflow.user, demo.airflow.password)
    try:
        client.set_paused(NAME, False)
        demo.live.start(client, demo.report)
    finally:
        client.close()


def main(arguments: list[str]) -> int:
    """Parse the arguments and run; an error is printed in one line."""
    parser = argparse.ArgumentParser(prog="make demo")
    parser.add_argument("--keep", action="store_true", help="leave all servers running; `make stop` stops them")
    parser.add_argument("--capture", type=Path, default=ROOT / "tests" / "captures" / "bank")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of all files (emptied first)")
    parser.add_argument("--rate", type=float, default=RATE, help="binlogs of the capture to replay per second")
    parser.add_argument("--feed", action="store_true", help="also send the windows to Kafka, and read them there")
    parser.add_argument(
        "--lake", choices=PLACES, default="local", help="s3: lake in an object store, tasks on a Spark cluster"
    )
    args = parser.parse_args(arguments)
    return exit_status(
        lambda: run(
            Capture(args.capture),
            args.folder.resolve(),
            args.keep,
            rate=args.rate,
            with_feed=args.feed,
            build_place=PLACES[args.lake],
        )
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
