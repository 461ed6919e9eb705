"""`make bench-lag`: seconds from a commit at the source until its row is at the target, under a steady load.

All parts of the demo (pd, two pumps, Spark Connect, Airflow, MariaDB) run on this machine, with a run every 5 s. The
lag of a row is the time at which finalize ended its window minus the physical part of its commit_ts. Both are read from
the lake; nothing is sampled. Windows of the warm-up are not counted. Before the load, the benchmark measures the CPU of
Airflow's processes while idle: without any DAG, and with this replication's DAG.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path

from binlake.window.events import EventRow

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from deltalake import DeltaTable
from window_process import sum_cpu_seconds

from binlake import tso
from binlake.config import load_replication
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowLog
from binlake.pipeline import list_required_stages
from deploy.local.airflow import Airflow
from deploy.local.airflow_client import AirflowClient
from deploy.local.mariadb import MariaDb
from deploy.local.process import Child, list_members
from deploy.local.source import WorkloadSource
from deploy.local.spark_connect import SparkConnect

ROOT = Path(__file__).resolve().parents[1]
NAME = "lag"
ROWS_PER_TRANSACTION = 3.0
STAGES = ("land", "merge", *list_required_stages("sql"))
IDLE_S = 30.0
SETTLE_S = 20.0
"""Seconds after a start of Airflow during which its processes still load modules."""


def main() -> int:
    """Start all servers, run the load, print the results. Return 1 if rows did not arrive."""
    parser = argparse.ArgumentParser(prog="make bench-lag", description=__doc__)
    parser.add_argument("--rows", type=float, default=500, help="rows per second (500)")
    parser.add_argument("--seconds", type=float, default=240, help="seconds of load (240)")
    parser.add_argument("--warm-up", type=float, default=90, help="seconds of warm-up, which do not count (90)")
    parser.add_argument("--schedule", default="every 5s")
    args = parser.parse_args()
    # The jobs are child processes of Airflow and must import Binlake from this checkout too.
    os.environ["PYTHONPATH"] = str(ROOT)
    folder = Path(tempfile.mkdtemp(prefix="binlake-lag-"))
    try:
        return measure(folder, args)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(folder: Path, args: argparse.Namespace) -> int:
    """Measure with all data below `folder`; return the exit code."""
    with ExitStack() as stack:
        source = WorkloadSource(folder / "source")
        stack.callback(source.stop)
        source.start()
        target = stack.enter_context(MariaDb(folder / "mariadb"))
        spark = stack.enter_context(SparkConnect(folder / "spark"))
        file = write_replication_file(folder, source, target, args.schedule)
        env = {"BINLAKE_REPLICATIONS": str(file.parent), **spark.as_airflow_connection("spark_connect_lag")}
        measure_idle_without_dags(folder / "bare")
        airflow = stack.enter_context(Airflow(folder / "airflow", env))
        client = stack.enter_context(closing(AirflowClient(airflow.url, airflow.user, airflow.password)))
        client.wait_for_dag(NAME, 90)
        time.sleep(SETTLE_S)
        print(f"idle, nothing scheduled, over {IDLE_S:.0f} s: {measure_cpu(airflow.parts, IDLE_S)}", flush=True)
        source.feed(args.rows / ROWS_PER_TRANSACTION, args.seconds)
        began = time.time()
        client.set_paused(NAME, False)
        windows = WindowLog(LakePaths.of(load_replication(file)))
        arrived = wait_for_all(source, windows, args.seconds + 120)
        client.set_paused(NAME, True)
        report(windows, DeltaTable(LakePaths.of(load_replication(file)).locate_table("mutation")), began + args.warm_up)
        print(f"load: {source.read_result()}")
        return 0 if arrived else 1


def measure_idle_without_dags(home: Path) -> None:
    """Print the CPU that the same Airflow processes with the same settings take without any DAG."""
    (home / "dags").mkdir(parents=True)
    nothing = {"AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"), "BINLAKE_REPLICATIONS": str(home / "dags")}
    with Airflow(home / "airflow", nothing) as bare:
        time.sleep(SETTLE_S)
        print(f"idle, no DAG, over {IDLE_S:.0f} s: {measure_cpu(bare.parts, IDLE_S)}", flush=True)


def write_replication_file(folder: Path, source: WorkloadSource, target: MariaDb, schedule: str) -> Path:
    """Write the configuration of a replication from the source to the target, with one task per window."""
    file = folder / "replications" / f"{NAME}.toml"
    file.parent.mkdir(parents=True)
    file.write_text(
        f"""name = "{NAME}"
initial-commit-ts = "0"
[source]
pd-urls = "{source.pd_url}"
status-url = "{source.status_url}"
cluster-id = "{source.cluster_id}"
[lake]
path = "{folder / "lake"}"
[target]
db-type = "mariadb"
host = "{target.host}"
port = {target.port}
user = "{target.user}"
[mirror]
enabled = false
[airflow]
schedule = "{schedule}"
layout = "fused"
engine = "connect"
spark-conn-id = "spark_connect_lag"
""",
        encoding="utf-8",
    )
    return file


def wait_for_all(source: WorkloadSource, windows: WindowLog, seconds: float) -> bool:
    """Wait until the load has ended and its last commit is applied to the target. False after `seconds`."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        load = source.read_result()
        if load is not None and (windows.find_greatest_hi("finalize") or 0) >= int(load["last_commit_ts"]):
            return True
        time.sleep(1)
    return False


def measure_cpu(parts: list[Child], seconds: float) -> str:
    """Percentage of a core that each part takes, including its child processes."""

    def read_cpu(part: Child) -> float:
        return sum_cpu_seconds(list_members(part.pid)) if part.pid else 0.0

    before = {part.name: read_cpu(part) for part in parts}
    time.sleep(seconds)
    used = {part.name: (read_cpu(part) - before[part.name]) / seconds * 100 for part in parts}
    by_part = ", ".join(f"{name} {percent:.1f} %" for name, percent in used.items())
    return f"{by_part} of a core, together {sum(used.values()):.1f} %"


def report(windows: WindowLog, mutations: DeltaTable, counted_from: float) -> None:
    """Print percentiles of the rows' lag, then of its components by stage."""
    events = windows.read_events()
    ends = sorted((event for event in events if event["stage"] == "finalize" and event["state"] == "done"),
                  key=lambda event: event["hi"])  # fmt: skip
    commits = np.sort(mutations.to_pyarrow_table(columns=["commit_ts"]).column("commit_ts").to_numpy())
    commits = commits[commits >= tso.compose(int(counted_from * 1000))]
    window_of = np.searchsorted([event["hi"] for event in ends], commits)
    commits = commits[window_of < len(ends)]
    window_of = window_of[window_of < len(ends)]
    at = np.array([event["at_ms"] for event in ends])
    lag = at[window_of] / 1000 - (commits >> 18) / 1000
    print(f"rows {len(lag)} in {len(np.unique(window_of))} windows")
    print(
        f"lag of a row: p50 {np.percentile(lag, 50):.1f} s, p95 {np.percentile(lag, 95):.1f} s, max {lag.max():.1f} s"
    )
    seconds = {stage: group_by_window(events, stage) for stage in STAGES}
    lands = {(event["lo"], event["hi"]): event for event in events if event["stage"] == "land"}
    started = np.array([begin_of(lands.get((end["lo"], end["hi"]))) for end in ends])[window_of]
    waits = started - (commits >> 18) / 1000
    known = ~np.isnan(waits)
    parts = [("until land begins", waits[known])]
    parts += [(stage, np.array([seconds[stage].get((end["lo"], end["hi"]), np.nan) for end in ends])[window_of])
              for stage in STAGES]  # fmt: skip
    for name, values in parts:
        print(f"  {name:18s} p50 {np.nanpercentile(values, 50):5.1f} s  p95 {np.nanpercentile(values, 95):5.1f} s")


def group_by_window(events: list[EventRow], stage: str) -> dict[tuple[int, int], float]:
    """Return the seconds of `stage` by window (lo, hi)."""
    return {(event["lo"], event["hi"]): float(event["seconds"]) for event in events if event["stage"] == stage}


def begin_of(event: EventRow | None) -> float:
    """Return the Unix seconds at which an event's work began; NaN without one (a window that joins landed ones)."""
    return float("nan") if event is None else event["at_ms"] / 1000 - event["seconds"]


if __name__ == "__main__":
    sys.exit(main())
