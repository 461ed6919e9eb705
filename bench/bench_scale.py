"""`make bench-scale`: how the cost of a window grows with rows, tables, DDL, pumps, history, replications, executors.

Each is measured at 1x, 4x and 16x, in CPU seconds of the windows' process (wall time would show what else runs here)
and its peak memory, with a real lake and MariaDB; the source is in this process (scale_world.py). The slope is the
exponent of the part of the cost that grows: 1 = linear, 0 = flat; the aim is 1.1 at most. Executors are the threads of
a Connect server: what is compared is the CPU of a row, which must stay flat, and the share of the driver.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import structlog
from bench_control import STAGES
from bench_end_to_end import measure
from scale_fit import STEP, Growth
from scale_world import COLUMNS, DB, KEY, World, open_world
from support.replication_files import write_replication
from sysbench_rows import LOADS
from window_process import JVM, OWN, WindowRun

from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowLog
from deploy.local.mariadb import MariaDb

ROOT = Path(__file__).resolve().parents[1]
WINDOW_MS = 10_000 << 18


@dataclass(frozen=True)
class Found:
    """CPU seconds of the windows' process, and its peak MiB."""

    cpu: float
    peak: float

    @classmethod
    def of(cls, runs: Sequence[WindowRun]) -> Found:
        """The median of several runs."""
        return cls(statistics.median(run.whole.cpu[OWN] for run in runs), max(run.peak.get(OWN, 0.0) for run in runs))


@contextlib.contextmanager
def open_bench(pumps: int = 2, tables: int = 10) -> Iterator[World]:
    """A source and a target of one measurement."""
    with (
        tempfile.TemporaryDirectory(prefix="binlake-scale-", dir=os.environ.get("BINLAKE_BENCH_DIR")) as name,
        MariaDb(Path(name) / "mariadb") as target,
        open_world(Path(name) / "world", target, pumps) as world,
    ):
        world.create_tables(tables)
        world.create_at_target("t0")
        yield world


def measure_insert(world: World, prepare: Callable[[], None] | None = None) -> Found:
    """Windows of one row in a process that has run windows before."""
    with world.run_process() as wire:
        for _ in range(2):
            world.insert("t0")
            world.run_windows(wire)
        if prepare is not None:
            prepare()
        runs = []
        for _ in range(3):
            world.insert("t0")
            runs.append(world.run_windows(wire))
    return Found.of(runs)


def measure_rows(size: int) -> Found:
    """One window of `size` rows in transactions of 1,000."""
    with open_bench() as world, world.run_process() as wire:
        world.insert("t0")
        world.run_windows(wire)
        for _ in range(size // 1000):
            world.insert("t0", 1000)
        return Found.of([world.run_windows(wire)])


def measure_tables(size: int) -> Found:
    """Windows of one row with `size` live tables, in a new process: the first windows of a lake import its history."""
    with open_bench(tables=size) as world:
        with world.run_process() as wire:
            world.insert("t0")
            world.run_windows(wire)
        return measure_insert(world)


def measure_ddl(size: int) -> Found:
    """One window of `size` CREATE TABLE."""
    with open_bench() as world, world.run_process() as wire:
        world.insert("t0")
        world.run_windows(wire)
        for number in range(size):
            world.live.workload.create_table(DB, f"new{number}", COLUMNS, KEY)
        return Found.of([world.run_windows(wire)])


def measure_pumps(size: int) -> Found:
    """Windows of one row from `size` pumps."""
    with open_bench(pumps=size) as world:
        return measure_insert(world)


def measure_history(size: int) -> Found:
    """Windows of one row after `size` windows."""
    with open_bench() as world:

        def add_past() -> None:
            log = WindowLog(LakePaths.of(world.live.replication()))
            for first in range(0, size, 100):
                events = [
                    {"lo": lo, "hi": lo + WINDOW_MS, "stage": stage, "sink": "" if stage in STAGES[:2] else "sql",
                     "state": "done", "rows": 2000, "seconds": 0.5, "run_id": "past", "at_ms": 1, "blocked_by": "",
                     "detail": "{}", "manifest": ""}
                    for number in range(first, min(first + 100, size))
                    for lo in [world.started - (number + 1) * WINDOW_MS]
                    for stage in STAGES
                ]  # fmt: skip
                log._table.append(events)

        return measure_insert(world, add_past)


_PARSE = """
import sys, time, resource, airflow.sdk
from pathlib import Path
from binlake_airflow.dags.factory import build_all
began = time.process_time()
built = build_all(Path(sys.argv[1]))
assert not built.broken
print(time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def measure_replications(size: int) -> Found:
    """Airflow's parse of the DAG file with `size` replications."""
    with tempfile.TemporaryDirectory(prefix="binlake-scale-") as name:
        for number in range(size):
            write_replication(Path(name), f"r{number}")
        env = {**os.environ, "AIRFLOW_HOME": f"{name}/airflow"}
        done = subprocess.run([sys.executable, "-c", _PARSE, name], env=env, capture_output=True, text=True, check=True)
        cpu, peak = map(float, done.stdout.split()[-2:])
        return Found(cpu, peak)


@dataclass(frozen=True)
class Dimension:
    """What grows: from `least`, measured by `measure`; `unit`: what one more is."""

    least: int
    measure: Callable[[int], Found]
    unit: str

    @property
    def sizes(self) -> tuple[int, int, int]:
        """1x, 4x and 16x."""
        return self.least, self.least * STEP, self.least * STEP**2


DIMENSIONS = {
    "rows": Dimension(10_000, measure_rows, "row of a window"),
    "tables": Dimension(1_250, measure_tables, "live table"),
    "ddl": Dimension(10, measure_ddl, "DDL of a window"),
    "pumps": Dimension(1, measure_pumps, "pump"),
    "history": Dimension(500, measure_history, "window of history"),
    "replications": Dimension(10, measure_replications, "replication"),
}
EXECUTORS = "executors"


def main() -> int:
    """Measure and print; returns 1 if a slope is above the aim or a target differs."""
    parser = argparse.ArgumentParser(prog="make bench-scale", description=__doc__)
    known = [*DIMENSIONS, EXECUTORS]
    parser.add_argument("--only", type=lambda text: text.split(","), default=known, help=f"of {','.join(known)}")
    parser.add_argument("--load", type=float, default=2.0, help="rows for executors, in multiples of 200,000 (2)")
    args = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    os.environ["PYTHONPATH"] = str(ROOT)
    met = [print_growth(name, one) for name, one in DIMENSIONS.items() if name in args.only]
    if EXECUTORS in args.only:
        met.append(print_executors(args.load))
    return int(not all(met))


def print_growth(name: str, dimension: Dimension) -> bool:
    """Measure one dimension, and print a line; False if the aim is not met."""
    found = [dimension.measure(size) for size in dimension.sizes]
    growth = Growth(dimension.sizes, [one.cpu for one in found])
    costs = "  ".join(
        f"{size:>7,}: {one.cpu:7.2f} s {one.peak:5.0f} MiB" for size, one in zip(dimension.sizes, found, strict=True)
    )
    print(
        f"{name:13s} {costs}  slope {growth.slope:.2f} (whole {growth.whole_slope:.2f}),"
        f" {1e6 * growth.per_unit:,.0f} us a {dimension.unit}{'' if growth.is_met else '  ABOVE THE AIM'}",
        flush=True,
    )
    return growth.is_met


def print_executors(scale: float) -> bool:
    """Print the CPU of a row with 1, 2 and 4 executors, and the driver's share; False if a target differs."""
    right = True
    for cores in (1, 2, 4):
        options = argparse.Namespace(set=["mirror.enabled=false"], floors=1, flame=None, cores=cores)
        with tempfile.TemporaryDirectory(prefix="binlake-scale-") as folder:
            one = measure(LOADS["a"].with_scale(scale), "connect", Path(folder), options)
        cpu, rows = one.warm.whole.cpu, one.rows
        work = cpu[OWN] + cpu[JVM]
        print(
            f"{EXECUTORS} {cores}: {1e6 * work / rows:.1f} us a row, driver {100 * cpu[OWN] / work:.0f} %,"
            f" {rows:,} rows in {one.warm.whole.seconds:.1f} s, {one.warm.jobs} jobs"
            f"{' WRONG TARGET' if one.wrong else ''}",
            flush=True,
        )
        right = right and not one.wrong
    return right


if __name__ == "__main__":
    sys.exit(main())
