"""The process that bench_end_to_end.py measures: windows, through `binlake.spark_jobs.job.runner`, stage by stage.

It connects to the address in its arguments, reads a Job, and answers each request with the cost of its windows.
Binlake's code is not changed for this: `run_stage` is wrapped to time the stages. CPU is counted per process, so stages
that run in parallel include each other's CPU; `overlap` tells that they did.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil
from flame import SAMPLER, sample_stacks

from binlake.common.process import share_arenas, use_system_memory
from binlake.common.startup import import_lightly

# As each of Binlake's programs does first.
import_lightly()
use_system_memory()
share_arenas()

OWN, JVM = "windows", "jvm"
_PAGES_S = 120.0  # the first request compiles the server's pages


@dataclass(frozen=True)
class WindowJob:
    """What to run: the replication's settings, the way (see WAYS), and the other processes by name.

    `remote`: address of a Spark Connect server; `jobs`: URL of its REST interface; `flame`: a folder for the stacks of
    warm stages.
    """

    replication: dict[str, Any]
    way: str
    remote: str
    jobs: str
    others: dict[str, int]
    flame: str = ""


@dataclass
class StageCost:
    """Cost of a stage or of a whole run. `cpu`: seconds by process."""

    seconds: float = 0.0
    cpu: dict[str, float] = field(default_factory=dict)
    rows: int = 0
    calls: int = 0

    def add(self, seconds: float, before: dict[str, float], after: dict[str, float], rows: int) -> None:
        """Add one call."""
        self.seconds += seconds
        self.rows += rows
        self.calls += 1
        for name, used in after.items():
            self.cpu[name] = self.cpu.get(name, 0.0) + used - before.get(name, 0.0)


@dataclass
class WindowRun:
    """The windows of one request. `peak`: peak MiB of each process; `written`: MiB that it wrote to disk."""

    whole: StageCost
    stages: dict[str, StageCost]
    windows: int
    jobs: int
    peak: dict[str, float]
    written: dict[str, float]
    overlap: bool


class Meter:
    """CPU seconds of this process, of its children (a JVM and its workers), and of `others`."""

    def __init__(self, others: dict[str, int]) -> None:
        self._others = {name: psutil.Process(pid) for name, pid in others.items()}
        self._self = psutil.Process()
        self.stages: dict[str, StageCost] = {}
        self.overlap = False
        self._running = 0

    def read_cpu(self) -> dict[str, float]:
        """CPU seconds so far, by name."""
        used = {name: sum_cpu_seconds(processes) for name, processes in self._list_processes().items()}
        return used | {OWN: time.process_time(), JVM: used.get(JVM, 0.0)}

    def forget_peak(self) -> None:
        """Reset the memory peak of each process to what it uses now."""
        for processes in self._list_processes().values():
            for process in processes:
                with suppress(FileNotFoundError):  # it has ended
                    Path(f"/proc/{process.pid}/clear_refs").write_text("5")

    def read_peak(self) -> dict[str, float]:
        """Peak MiB by name since `forget_peak`; for processes started later, since their start."""
        return {name: sum(map(_read_high_water, processes)) for name, processes in self._list_processes().items()}

    def read_written(self) -> dict[str, float]:
        """MiB written to disk so far, by name."""
        return {name: sum(map(_read_written_mib, processes)) for name, processes in self._list_processes().items()}

    @contextmanager
    def measure_stage(self, name: str, result: list[Any]) -> Iterator[None]:
        """Add the cost of the body to the stage `name`; the body fills `result`."""
        self._running += 1
        self.overlap |= self._running > 1
        began, before = time.perf_counter(), self.read_cpu()
        yield
        rows = sum(stage_result.rows for stage_result in result)
        self.stages.setdefault(name, StageCost()).add(time.perf_counter() - began, before, self.read_cpu(), rows)
        self._running -= 1

    def _list_processes(self) -> dict[str, list[psutil.Process]]:
        # Children are listed only where needed: that reads all of /proc and adds to the measured time.
        processes = {name: [process] for name, process in self._others.items()} | {OWN: [self._self]}
        if spark := self._list_spark_processes():
            processes[JVM] = spark
        return processes

    def _list_spark_processes(self) -> list[psutil.Process]:
        if (server := self._others.get(JVM)) is not None:
            return [server, *server.children(recursive=True)]
        parent = self._self.parent()
        if parent is not None and parent.name() == "java":  # spark-submit: the JVM started this process
            return [parent, *(child for child in parent.children(recursive=True) if child.pid != self._self.pid)]
        if _find_context() is None:
            return []
        return [child for child in self._self.children(recursive=True) if child.name() != SAMPLER]


def _find_context() -> Any:
    """Return the SparkContext of this process, or None."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext

    return getattr(SparkContext, "_active_spark_context", None)


def sum_cpu_seconds(processes: list[psutil.Process]) -> float:
    """User and system time so far of those processes that still exist."""
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def _read_high_water(process: psutil.Process) -> float:
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def _read_written_mib(process: psutil.Process) -> float:
    try:
        return float(process.io_counters().write_bytes) / 2**20
    except psutil.NoSuchProcess:
        return 0.0


def serve(wire: Connection) -> None:
    """Run windows up to each commit_ts that `wire` delivers; end at None."""
    job: WindowJob = wire.recv()
    meter = Meter(job.others)
    if job.jobs:
        _count_remote_jobs(job.jobs)  # the server's slow first page must not count as cost of a window
    begun = dict.fromkeys(meter.read_cpu(), 0.0) | {name: meter.read_cpu()[name] for name in job.others}
    start = psutil.Process().create_time()
    run_window, build_context, reached = _prepare(job, meter)
    first = True
    while (until := wire.recv()) is not None:
        meter.stages, meter.overlap = {}, False
        meter.forget_peak()
        jobs, written = _count_jobs(job), meter.read_written()
        # The first run of a process also includes its start and its imports.
        before, began = (begun, time.time() - start) if first else (meter.read_cpu(), 0.0)
        clock, windows = time.perf_counter(), 0
        with sample_stacks(job.flame and not first and job.flame):
            while reached() < until:
                windows += bool(run_window(build_context()))
        whole = StageCost()
        whole.add(time.perf_counter() - clock + began, before, meter.read_cpu(), 0)
        after = {name: size - written.get(name, 0.0) for name, size in meter.read_written().items()}
        wire.send(
            WindowRun(whole, meter.stages, windows, _count_jobs(job) - jobs, meter.read_peak(), after, meter.overlap)
        )
        first = False


def _prepare(job: WindowJob, meter: Meter) -> tuple[Callable[..., Any], Callable[[], Any], Callable[[], int]]:
    """Return functions that run a window, make its context, and return the commit_ts that the target has reached."""
    import logging

    import structlog

    from binlake.config import Replication
    from binlake.spark_jobs.job import runner
    from binlake.spark_jobs.job.context import StageContext
    from binlake.spark_jobs.job.stagerun import run_stage

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    replication = Replication.model_validate(job.replication)

    def measure(name: str, *arguments: Any, **named: Any) -> Any:
        result: list[Any] = []
        with meter.measure_stage(name, result):
            result.append(run_stage(name, *arguments, **named))
        return result[0]

    # The runner calls it by this name.
    vars(runner)["run_stage"] = measure
    sessions: list[Any] = []

    def open_session() -> Any:
        if not sessions:
            sessions.append(_open_session(job))
        return sessions[0]

    def build_context() -> StageContext:
        return StageContext(replication, "bench", open_session, in_pieces=True)

    return runner.run_window, build_context, lambda: build_context().windows.find_greatest_hi("finalize") or 0


def _open_session(job: WindowJob) -> Any:
    if job.remote:
        from binlake.spark_jobs.engine.connect import connect_session

        return connect_session(job.remote)
    from binlake.spark_jobs.engine.spark import start_classic_session

    return start_classic_session("bench", None if job.way == "submit" else "local[2]")


def _count_jobs(job: WindowJob) -> int:
    """Number of Spark jobs so far; 0 without a session."""
    if job.jobs:
        return _count_remote_jobs(job.jobs)
    context = _find_context()
    return 0 if context is None else int(context._jsc.sc().dagScheduler().numTotalJobs())


def _count_remote_jobs(url: str) -> int:
    """Number of jobs of a Connect server, from its REST interface: the highest job id + 1, because it forgets jobs."""
    import httpx

    [application] = httpx.get(f"{url}/api/v1/applications", timeout=_PAGES_S).json()
    jobs = httpx.get(f"{url}/api/v1/applications/{application['id']}/jobs", timeout=_PAGES_S).json()
    return max((entry["jobId"] + 1 for entry in jobs), default=0)


def main() -> None:
    """Serve the process at HOST PORT (the arguments)."""
    key = bytes.fromhex(os.environ["BINLAKE_BENCH_KEY"])
    with Client((sys.argv[1], int(sys.argv[2])), authkey=key) as wire:
        serve(wire)


if __name__ == "__main__":
    # Import under the module's own name: the other side unpickles the classes by it.
    from window_process import main as as_module

    as_module()
