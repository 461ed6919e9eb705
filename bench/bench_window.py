"""`make bench-window`: one window of `sysbench_like` through every stage, and the target's floor in the same run.

The floor is the time that the target needs for the same final rows as prepared multi-row REPLACE statements over one
connection of this process. Compare ratios: absolute figures depend on the machine.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from binlake.config import Replication
from binlake.spark_jobs.engine.spark import start_classic_session
from binlake.spark_jobs.job.context import StageContext, StageResult
from binlake.spark_jobs.job.runner import run_window
from binlake.testkit.captures.capture import Capture
from binlake.window.manifest import format_window_name
from deploy.local.cluster import CaptureCluster, run_capture_cluster
from deploy.local.mariadb import MariaDb

CAPTURE = Path(__file__).resolve().parents[1] / "tests" / "captures" / "sysbench_like"
WARM_UP = CAPTURE.parent / "keys"


def main() -> int:
    """Print seconds and rows/s of each stage, the total, and the ratio to the floor."""
    spark = start_classic_session("bench-window", "local[2]", {"spark.driver.memory": "2g"})
    with MariaDb() as target:
        measure(Capture(WARM_UP), target, spark)
        target.wipe()
        results, statements, seconds_replayed = measure(Capture(CAPTURE), target, spark)
        rows, floor = replace_floor(target, statements)
    print(f"replay through two pumps: {seconds_replayed:.1f} s (not part of the window)")
    report(results, rows, floor)
    return 0


def measure(capture: Capture, target: MariaDb, spark: SparkSession) -> tuple[list[StageResult], list[str], float]:
    """Run the whole capture as one window; return its stage results, REPLACE statements and the replay's seconds."""
    temporary = tempfile.TemporaryDirectory(prefix="binlake-bench-")
    with temporary as folder, run_capture_cluster(capture, Path(folder)) as cluster:
        last = max(state.commit_ts for state in capture.read_states())
        # With a stop position, plan waits for the watermarks to reach it: the whole capture becomes one window.
        ctx = StageContext(build_replication(cluster, target, folder), "bench", lambda: spark, last)
        results: list[StageResult] = []
        while not [result for result in results if result.stage == "finalize"]:
            results = run_window(ctx)
        bounds = next(result for result in results if result.stage == "finalize")
        texts = list(read_replaces(ctx, format_window_name(bounds.lo, bounds.hi)))
        return results, texts, float(cluster.replay["seconds"])


def build_replication(cluster: CaptureCluster, target: MariaDb, folder: str) -> Replication:
    """Return a replication into `target` and into mirrors."""
    return Replication.model_validate({
        "name": "bench",
        "initial-commit-ts": "0",
        "source": {"pd-urls": [cluster.pd_url], "status-url": cluster.status_url},
        "lake": {"path": f"{folder}/lake"},
        "target": {"db-type": "mariadb", "host": target.host, "port": target.port, "user": target.user,
                   "txn-batch": 1000},
    })  # fmt: skip


def read_replaces(ctx: StageContext, window: str) -> Iterator[str]:
    """Yield the REPLACE statements of a window, as convert wrote them."""
    where = (ds.field("window") == window) & (ds.field("phase") == 2)
    dataset = DeltaTable(ctx.paths.locate_table("statement")).to_pyarrow_dataset()
    for batch in dataset.to_batches(columns=["sql"], filter=where):
        for texts in batch.column("sql").to_pylist():
            yield from texts


def replace_floor(target: MariaDb, statements: list[str]) -> tuple[int, float]:
    """Empty the tables and run the same statements in one transaction; return (rows, seconds)."""
    with target.connect(autocommit=False) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'sbtest'")
        for (name,) in cursor.fetchall():
            cursor.execute(f"TRUNCATE `sbtest`.`{name}`")
        connection.commit()
        began = time.perf_counter()
        rows = sum(cursor.execute(statement) for statement in statements)
        connection.commit()
        return rows, time.perf_counter() - began


def report(results: list[StageResult], rows: int, floor: float) -> None:
    """Print a line per stage, then the whole window, the floor and the ratios."""
    mutations = next(result.rows for result in results if result.stage == "merge")
    for result in results:
        rate = f"{mutations / result.seconds:>10,.0f} mutations/s" if result.seconds else ""
        print(f"{result.stage:<10} {result.rows:>8,} rows {result.seconds:7.2f} s {rate}")
    path = sum(result.seconds for result in results if result.stage != "mirror")
    finalize = next(result.seconds for result in results if result.stage == "finalize")
    print(
        f"window     {mutations:>8,} mutations {path:7.2f} s {mutations / path:>10,.0f} mutations/s, plan to finalize"
    )
    print(
        f"floor      {rows:>8,} rows {floor:7.2f} s {rows / floor:>10,.0f} rows/s by multi-row REPLACE, one connection"
    )
    print(f"finalize / floor {finalize / floor:.2f}   window / floor {path / floor:.2f}")


if __name__ == "__main__":
    sys.exit(main())
