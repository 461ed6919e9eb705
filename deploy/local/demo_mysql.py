"""`make demo-mysql`: replicates two sharded MariaDB servers under writes into one table of a third, through the lake.

A base of 200,000 rows is loaded, and the logs are read on from the position of the load; meanwhile both shards get a
new column. All files are below `.local/demo-mysql`, all servers on loopback. Exit status 0 only if the target has
exactly the shards' rows.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import closing
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from binlake.config import load_replication
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowLog
from deploy.local.airflow import Airflow
from deploy.local.airflow_client import AirflowClient
from deploy.local.demo_report import Report, WindowLine, measure_lag_s
from deploy.local.demo_run import ROOT, SPARK_CONNECTION, exit_status, run_servers
from deploy.local.demo_shards import DB, ShardServer, read_orders
from deploy.local.mariadb import MariaDb
from deploy.local.process import ProcessError, stop_recorded
from deploy.local.source import FeederSource
from deploy.local.spark_connect import SparkConnect

FOLDER = ROOT / ".local" / "demo-mysql"
NAME = "shards"
ROWS = 200_000
_SHARDS = 2
_WRITES = 400
_POLL_S = 0.25
_PATIENCE_S = 300.0


class MysqlDemo:
    """All servers of the demo below `folder`, and the files that connect them."""

    def __init__(self, folder: Path, report: Report) -> None:
        self.report = report
        self.folder = folder
        self.shards = [ShardServer(folder, number, _SHARDS) for number in range(1, _SHARDS + 1)]
        self.source = FeederSource(folder / "source")
        self.target = MariaDb(folder / "target")
        self.spark = SparkConnect(folder / "spark")
        self.file = folder / "replications" / f"{NAME}.toml"
        environment = {"BINLAKE_REPLICATIONS": str(self.file.parent)}
        self.airflow = Airflow(folder / "airflow", environment | self.spark.as_airflow_connection(SPARK_CONNECTION))
        self._windows: set[tuple[int, int]] = set()

    @property
    def starts(self) -> dict[str, Callable[[], object]]:
        """The servers to start besides Airflow, by name."""
        return {
            "pd and two pumps": self.source.start,
            "the target, MariaDB": self.target.start,
            **{f"{shard.name}, MariaDB with its base": partial(self._fill, shard) for shard in self.shards},
            "Spark Connect, warm": self.spark.start,
        }

    @property
    def ends(self) -> list[Callable[[], object]]:
        """The functions that stop these servers."""
        return [self.spark.stop, self.source.stop, self.target.stop, *(shard.stop for shard in self.shards)]

    def write_replication(self) -> None:
        """Write the file from which the DAG is made."""
        self.file.parent.mkdir(parents=True)
        self.file.write_text(
            f"""# Written by `make demo-mysql`.
name = "{NAME}"
initial-commit-ts = "0"

[source]
pd-urls = "{self.source.pd_url}"
status-url = "{self.source.status_url}"

[lake]
path = "{self.folder / "lake"}"

[[routes]]
schema-pattern = "shard-?_{DB}"
target-schema = "{DB}"

[target]
db-type = "mariadb"
host = "{self.target.host}"
port = {self.target.port}
user = "{self.target.user}"
mode = "auto"

[airflow]
schedule = "every 5s"
layout = "fused"
engine = "connect"
spark-conn-id = "{SPARK_CONNECTION}"
retry-delay-s = 2

[airflow.maintain]
# Otherwise Airflow makes up for last midnight's run while the windows begin.
schedule = ""
""",
            encoding="utf-8",
        )

    def start_feeder(self) -> None:
        """Start the feeder: it first takes a snapshot of each shard, then reads its log."""
        tracker = f'[tracker]\nhost = "{self.target.host}"\nport = {self.target.port}\nuser = "{self.target.user}"\n'
        sources = [
            f'[[source]]\nname = "{shard.name}"\nhost = "{shard.server.host}"\nport = {shard.server.port}\n'
            f'user = "{shard.server.user}"\nrename-schema = "{{source}}_{{schema}}"\n'
            f'start.mode = "snapshot"\n'
            for shard in self.shards
        ]
        self.source.feed("\n".join([tracker, *sources]))

    def wait_until_fed(self, reached: Callable[[dict[str, Any]], bool], what: str) -> None:
        """Return when `reached` is true for every source of the feeder. Raises ProcessError."""
        with self.report.wait_for(what):
            self._poll_until_fed(reached, what)

    def _poll_until_fed(self, reached: Callable[[dict[str, Any]], bool], what: str) -> None:
        end = time.monotonic() + _PATIENCE_S
        while True:
            sources = self.source.fetch_feeder_status()["sources"]
            failed = [one for one in sources if one["state"] == "failed"]
            if failed:
                raise ProcessError(f"the feeder stopped reading {failed[0]['source']}: {failed[0]['trouble']}")
            if len(sources) == _SHARDS and all(map(reached, sources)):
                return
            if time.monotonic() > end:
                raise ProcessError(f"the feeder did not reach {what} in time: {sources}")
            self.report_windows()
            time.sleep(_POLL_S)

    def wait_until_applied(self) -> None:
        """Return when the target has everything that the feeder has published so far. Raises ProcessError."""
        last = max(int(source["last_commit_ts"]) for source in self.source.fetch_feeder_status()["sources"])
        with self.report.wait_for("the target to have all that the feeder has published"):
            self._poll_until_applied(last)
        self.report_windows()

    def _poll_until_applied(self, last: int) -> None:
        end = time.monotonic() + _PATIENCE_S
        while (self._log.find_greatest_hi("finalize") or 0) < last:
            if time.monotonic() > end:
                raise ProcessError(f"the target did not reach {last} in time")
            self.report_windows()
            time.sleep(_POLL_S)

    def report_windows(self) -> None:
        """Print a line for each window that was applied since the last call."""
        events = self._log.read_events()
        for event in events:
            bounds = (event["lo"], event["hi"])
            if event["stage"] == "finalize" and event["state"] == "done" and bounds not in self._windows:
                self._windows.add(bounds)
                same_run = [one for one in events if (one["run_id"], one["hi"]) == (event["run_id"], event["hi"])]
                self.report.add_window(WindowLine.of(event, same_run, measure_lag_s(event)))

    def compare(self) -> bool:
        """Whether the target has exactly the rows of all shards."""
        rows = {shard: shard.read_rows() for shard in self.shards}
        wanted = sorted(row for own in rows.values() for row in own)
        with closing(self.target.connect()) as connection, connection.cursor() as cursor:
            actual = read_orders(cursor)
        for shard, own in rows.items():
            self.report.say(f"{shard.name}: {len(own):,} rows, {shard.transactions:,} transactions written")
        verdict = "equal" if actual == wanted else "NOT EQUAL"
        self.report.say(f"target {DB}.orders: {len(actual):,} rows: {verdict} to the shards' {len(wanted):,}")
        return actual == wanted

    @cached_property
    def _log(self) -> WindowLog:
        return WindowLog(LakePaths.of(load_replication(self.file)))

    def _fill(self, shard: ShardServer) -> None:
        shard.start()
        shard.fill(ROWS // _SHARDS)


def run(folder: Path, keep: bool) -> int:
    """Run the demo. Returns the exit status. Raises BinlakeError, ProcessError, KeyboardInterrupt."""
    report = Report()
    for name in stop_recorded(folder):
        report.say(f"stopped {name}, which an earlier demo left running")
    shutil.rmtree(folder, ignore_errors=True)
    demo = MysqlDemo(folder, report)
    demo.write_replication()
    with run_servers(report, demo.starts, demo.airflow, demo.ends, keep):
        report.print_page(demo.airflow.url, demo.airflow.user, demo.airflow.password, NAME)
        equal = _replicate(demo)
        if keep:
            report.say(f"left running: {demo.airflow.url}   `make stop` stops it")
    return 0 if equal else 1


def _replicate(demo: MysqlDemo) -> bool:
    client = AirflowClient(demo.airflow.url, demo.airflow.user, demo.airflow.password)
    with closing(client):
        client.wait_for_dag(NAME, 60)
        for shard in demo.shards:
            shard.begin_writes()
        demo.start_feeder()
        demo.report.say(f"the feeder takes a snapshot of each shard, {ROWS:,} rows in all, while writers change both")
        demo.report.say(f"feeder: {demo.source.status_url}/feeder")
        client.set_paused(NAME, False)
        demo.wait_until_fed(lambda source: source["state"] == "reading", "the end of the snapshots")
        demo.report.say("the pumps have the snapshots; the feeder now reads each log from the position of its snapshot")
        demo.wait_until_applied()
        for shard in demo.shards:
            before = shard.transactions
            shard.add_column()
            demo.report.say(f"{shard.name}: ALTER TABLE orders ADD COLUMN channel")
            _wait_until_written(shard, before + _WRITES)
        for shard in demo.shards:
            shard.end_writes()
        ends = {shard.name: shard.read_gtids() for shard in demo.shards}
        demo.wait_until_fed(lambda source: source["gtids"] == ends[source["source"]], "the end of the logs")
        demo.report.say("the feeder has read both logs to their ends")
        demo.wait_until_applied()
        client.set_paused(NAME, True)
        return demo.compare()


def _wait_until_written(shard: ShardServer, transactions: int) -> None:
    end = time.monotonic() + _PATIENCE_S
    while shard.transactions < transactions:
        shard.check()
        if time.monotonic() > end:
            raise ProcessError(f"the writer of {shard.name} wrote too few transactions in time")
        time.sleep(_POLL_S)


def main(arguments: list[str]) -> int:
    """Parse the arguments and run; an error is printed in one line."""
    parser = argparse.ArgumentParser(prog="make demo-mysql")
    parser.add_argument("--keep", action="store_true", help="leave all servers running; `make stop` stops them")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of all files (emptied first)")
    args = parser.parse_args(arguments)
    return exit_status(lambda: run(args.folder.resolve(), args.keep))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
