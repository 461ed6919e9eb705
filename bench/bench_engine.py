"""`make bench-engine`: the size of a window from which Spark is faster than one process: the default of
`window.driver-bytes`.

Runs load (a) of `make bench` in two sizes, in a process and on a warm Connect server with two cores, and draws a line
through the CPU seconds of each. CPU is used, not wall time, so that other work on the machine does not count: the
stages of a window follow each other, so a process's CPU time is about its time on an idle machine, and work of Spark's
workers is divided by the number of cores.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import structlog
from bench_end_to_end import ROOT, measure
from end_to_end_report import Measured
from sysbench_rows import LOADS
from window_process import JVM, OWN

CORES = (2, 4, 8, 32)


@dataclass(frozen=True)
class CostLine:
    """CPU seconds of a window: `fixed`, and for each byte of its binlogs."""

    fixed: float
    per_byte: float

    @classmethod
    def through(cls, points: Sequence[tuple[int, float]]) -> CostLine:
        """The line through two (bytes, seconds); costs that fall with size are noise, and count as none."""
        (few, less), (many, more) = points
        per_byte = max(0.0, (more - less) / (many - few))
        return cls(max(0.0, less - few * per_byte), per_byte)


def find_threshold(process: CostLine, driver: CostLine, workers: CostLine, cores: int) -> float | None:
    """Bytes from which Spark with `cores` is faster; None if it never is. The fixed cost of jobs is not divided."""
    saved = process.per_byte - driver.per_byte - workers.per_byte / cores
    dearer = driver.fixed + workers.fixed - process.fixed
    return max(0.0, dearer / saved) if saved > 0 else None


def main() -> int:
    """Measure and print; returns 1 if a target differs."""
    args = _parse_arguments()
    # SIGTERM must also stop the servers.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ["PYTHONPATH"] = str(ROOT)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    local, spark = (_measure_sizes(way, args.scale) for way in ("plain", "connect"))
    lines = _draw(local, OWN), _draw(spark, OWN), _draw(spark, JVM)
    for name, line in zip(("in a process", "Spark: driver", "Spark: JVM and workers"), lines, strict=True):
        print(f"{name}: {line.fixed:.2f} CPU s a window, {line.per_byte * 2**20 * 1e3:.1f} CPU ms a MiB")
    for cores in CORES:
        found = find_threshold(*lines, cores)
        text = "never" if found is None else f"from {found / 2**20:.0f} MiB of binlogs"
        print(f"Spark with {cores} cores is faster: {text}", flush=True)
    return int(any(one.wrong for one in (*local, *spark)))


def _measure_sizes(way: str, scales: Sequence[float]) -> list[Measured]:
    found = []
    for scale in scales:
        options = argparse.Namespace(set=["window.max-bytes=0"] * (way == "plain"), floors=1, flame=None, cores=2)
        with tempfile.TemporaryDirectory(prefix="binlake-engine-") as folder, contextlib.chdir(folder):
            one = measure(LOADS["a"].with_scale(scale), way, Path(folder), options)
        found.append(one)
        cpu = one.warm.whole.cpu
        print(
            f"{way}, {one.payload_bytes / 2**20:.0f} MiB, {one.rows:,} rows: {one.warm.whole.seconds:.1f} s of wall,"
            f" CPU s: process {cpu[OWN]:.2f}, JVM and workers {cpu[JVM]:.2f}; {one.warm.jobs} jobs",
            flush=True,
        )
    return found


def _draw(measured: Sequence[Measured], process: str) -> CostLine:
    return CostLine.through([(one.payload_bytes, one.warm.whole.cpu[process]) for one in measured])


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-engine", description=__doc__)
    parser.add_argument(
        "--scale",
        type=lambda text: [float(one) for one in text.split(",")],
        default=[0.1, 1.0],
        help="two sizes, in multiples of 200,000 rows (0.1,1)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
