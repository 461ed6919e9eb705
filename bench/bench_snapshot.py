"""`make bench-snapshot`: a full load of a MariaDB source into a MariaDB target, beside ways that join no log.

In one run, each way with the same rows into the same, emptied target, which must then have all of them:

- the floor: the rows read once by the server's own client, and written as multi-row REPLACE statements that were
  rendered before, over CONNECTIONS connections;
- `mariadb-dump | mariadb`; mydumper, then myloader;
- Binlake: a feeder, a placement driver and a pump as processes, and windows in this process, which begin when the
  feeder does and end when the target has the load.

A line tells rows/s, CPU by process and the peak memory of each since the step began. The last lines compare with the
floor. Compare ratios and CPU: absolute figures depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import httpx
import psutil
import pyarrow as pa
import structlog
from server_tools import Taken, find_client_program, read_peak, run_client, run_piped
from snapshot_tables import DB, SHAPES, Tables, read_statements

from binlake.config import Replication
from binlake.config.servers import TargetSection
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.job.runner import run_window
from deploy.local.mariadb import MariaDb
from deploy.local.source import FeederSource

CONNECTIONS = 4
SERVER = ("--innodb-buffer-pool-size=512M", "--innodb-log-file-size=256M", "--innodb-flush-log-at-trx-commit=2")
_POLL_S, _WAIT_S = 0.1, 3600.0


@dataclass
class LoadCost:
    """Wall-clock seconds; by process the CPU seconds and the peak of resident memory in bytes."""

    seconds: float = 0.0
    cpu: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)

    def add(self, taken: Taken) -> None:
        """Count client programs too."""
        self.cpu["clients"] = self.cpu.get("clients", 0.0) + taken.cpu_s
        self.peaks |= taken.peaks

    def __add__(self, other: LoadCost) -> LoadCost:
        names = self.cpu | other.cpu
        cpu = {name: self.cpu.get(name, 0.0) + other.cpu.get(name, 0.0) for name in names}
        return LoadCost(self.seconds + other.seconds, cpu, self.peaks | other.peaks)


@dataclass(frozen=True)
class Bench:
    """One run: its tables, both servers, a folder, and the number of connections that read."""

    tables: Tables
    source: MariaDb
    target: MariaDb
    folder: Path
    readers: int

    @property
    def servers(self) -> dict[str, MariaDb]:
        """By the names that the lines have."""
        return {"source": self.source, "target": self.target}

    def check(self, name: str) -> list[str]:
        """What differs at the target after `name`; then nothing is left there."""
        lines = [f"{name}: {line}" for line in self.tables.find_differences(self.source, self.target)]
        with self.target.connect() as connection, connection.cursor() as cursor:
            for database in (DB, TargetSection.model_fields["checkpoint_schema"].default):
                cursor.execute(f"DROP DATABASE IF EXISTS {database}")
        return lines


def main() -> int:
    """Print a line for each way. Return 1 if the target differs after one of them."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    args = _parse_arguments()
    # As in `binlake window run` (binlake/common/process.py): Arrow's own allocator would take a quarter more CPU.
    pa.set_memory_pool(pa.system_memory_pool())
    wrong: list[str] = []
    for shape in args.shape:
        for count in args.tables:
            tables = Tables(shape, args.rows, count)
            print(f"{shape} rows, {args.rows:,} in {count} tables, {args.readers} readers", flush=True)
            with ExitStack() as stack:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="binlake-bench-snapshot-")))
                options = {"source": MariaDb.list_source_options(), "target": ()}
                source, target = (
                    stack.enter_context(MariaDb(folder / name, options=(*SERVER, *more)))
                    for name, more in options.items()
                )
                tables.create(source)
                tables.fill(source)
                wrong += _compare(Bench(tables, source, target, folder, args.readers), args.form, args.mirrors)
    print(*wrong, sep="\n")
    return int(bool(wrong))


def _compare(bench: Bench, forms: Sequence[str], mirrors: bool) -> list[str]:
    floor = _measure_floor(bench)
    wrong = bench.check("the floor")
    peers = {"mariadb-dump | mariadb": _measure_dump(bench)}
    wrong += bench.check("mariadb-dump")
    peers["mydumper, myloader"] = _measure_mydumper(bench)
    wrong += bench.check("mydumper")
    for form in forms:
        name = f"binlake, {form}"
        peers[name] = _measure_load(bench, form, mirrors)
        wrong += bench.check(name)
    for name, cost in peers.items():
        cpu = sum(floor.cpu.values()) / sum(cost.cpu.values())
        print(f"{name:<26} {floor.seconds / cost.seconds:.2f} of the floor in time, {cpu:.2f} in CPU", flush=True)
    return wrong


def _measure_floor(bench: Bench) -> LoadCost:
    tables, folder = bench.tables, bench.folder
    find_client_program("mariadb")
    with _measure_cost({"source": bench.source}) as reading:
        for name in tables.names:
            query = ["--quick", "--batch", "--execute", f"SELECT * FROM {DB}.{name}"]
            reading.add(run_client(["mariadb", *_login(bench.source), *query], folder))
    _print("SELECT to /dev/null", tables.rows, reading)
    statements = folder / "statements"
    tables.write_statements(bench.source, statements)
    tables.create(bench.target)
    with _measure_cost({"target": bench.target, "client": None}) as writing:
        _execute_all(bench.target, statements)
    statements.unlink()
    _print("multi-row REPLACE", tables.rows, writing)
    _print("the floor: both", tables.rows, reading + writing)
    return reading + writing


def _execute_all(target: MariaDb, statements: Path) -> None:
    """Execute the statements of a file, over CONNECTIONS connections. Raises what the first one that fails raises."""
    lock, failures = threading.Lock(), list[BaseException]()

    def execute() -> None:
        try:
            with target.connect() as connection, connection.cursor() as cursor:
                while True:
                    with lock:
                        statement = next(waiting, None)
                    if statement is None or failures:
                        return
                    cursor.execute(statement)
        except BaseException as error:  # noqa: BLE001 - carried to the caller, which raises it
            failures.append(error)

    with statements.open("rb") as file:
        waiting = read_statements(file)
        threads = [threading.Thread(target=execute) for _ in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]


def _measure_dump(bench: Bench) -> LoadCost:
    for program in ("mariadb-dump", "mariadb"):
        find_client_program(program)
    dump = ["mariadb-dump", *_login(bench.source), "--single-transaction", "--databases", DB]
    with _measure_cost(bench.servers) as cost:
        cost.add(run_piped([dump, ["mariadb", *_login(bench.target)]], bench.folder))
    _print("mariadb-dump | mariadb", bench.tables.rows, cost)
    return cost


def _measure_mydumper(bench: Bench) -> LoadCost:
    find_client_program("mydumper")
    threads, place = f"--threads={bench.readers}", bench.folder / "dump"
    # One table is one file unless its rows are divided: then each thread reads ranges of it.
    chunk = f"--rows={max(bench.tables.rows // bench.tables.count // (2 * bench.readers), 1000)}"
    dump = ["mydumper", *_address(bench.source), threads, chunk, "--database", DB, "--outputdir", str(place)]
    load = ["myloader", *_address(bench.target), threads, "--directory", str(place)]
    with _measure_cost(bench.servers) as cost:
        cost.add(run_client(dump, bench.folder))
        cost.add(run_client(load, bench.folder))
    _print("mydumper, myloader", bench.tables.rows, cost)
    return cost


def _address(server: MariaDb) -> list[str]:
    return [f"--host={server.host}", f"--port={server.port}", f"--user={server.user}"]


def _login(server: MariaDb) -> list[str]:
    return ["--no-defaults", *_address(server), "--skip-ssl"]


def _measure_load(bench: Bench, form: str, mirrors: bool) -> LoadCost:
    """Measure a load and its windows, from the start of the feeder until the target has the last row."""
    rows, source, tracker = bench.tables.rows, bench.source, bench.target
    with _run_cluster(bench.folder / f"load-{form}") as cluster:
        watched = {**bench.servers, "pump": cluster.parts[1], "windows": None}
        with _measure_cost(watched) as cost:
            cluster.feed(
                f'[tracker]\nhost = "{tracker.host}"\nport = {tracker.port}\n'
                f'[[source]]\nname = "s1"\nhost = "{source.host}"\nport = {source.port}\nignore-tables = ["mysql.*"]\n'
                f'snapshot = {{ threads = {bench.readers}, form = "{form}" }}\n'
            )
            # It serves long before and after a load, like pump and windows: only its start is not counted.
            feeder = psutil.Process(cluster.parts[-1].pid)
            started, began = sum(feeder.cpu_times()[:2]), time.perf_counter()
            loaded_s = _run_windows(cluster, _build_context(cluster, bench.target, mirrors), began)
        cost.seconds = time.perf_counter() - began
        cost.cpu["feeder"], cost.peaks["feeder"] = sum(feeder.cpu_times()[:2]) - started, read_peak(feeder.pid)
    print(f"{'':<26} the pump has the load after {loaded_s:.1f} s of {cost.seconds:.1f} s", flush=True)
    _print(f"binlake, {form}", rows, cost)
    return cost


def _build_context(cluster: FeederSource, target: MariaDb, mirrors: bool) -> StageContext:
    replication = Replication.model_validate(
        {
            "name": "bench",
            "initial-commit-ts": "0",
            "source": {"pd-urls": [cluster.pd_url], "status-url": cluster.status_url},
            "lake": {"path": str(cluster.folder / "lake")},
            "target": {"db-type": "mariadb", "host": target.host, "port": target.port, "user": target.user},
            "mirror": {"enabled": mirrors},
        }
    )
    return StageContext(replication, "bench", _refuse_spark, in_pieces=True)


def _run_windows(cluster: FeederSource, context: StageContext, began: float) -> float:
    """Run windows until the load is done and applied; returns the seconds since `began` when it was done."""
    # A run of windows goes on as long as the load does, so another thread looks when that is done.
    loaded: queue.SimpleQueue[float] = queue.SimpleQueue()
    threading.Thread(target=_wait_for_load, args=(cluster, began, loaded), daemon=True).start()
    while time.perf_counter() - began < _WAIT_S:
        load = _read_load(cluster)
        if load.get("state") == "done" and (context.windows.find_landed_ts() or 0) >= int(load["commit_ts"]):
            return loaded.get()
        if load:
            before = context.windows.find_landed_ts()
            run_window(context)
            if context.windows.find_landed_ts() != before:
                continue
        time.sleep(_POLL_S)
    raise SystemExit(f"the load did not end within {_WAIT_S:.0f} s")


def _wait_for_load(cluster: FeederSource, began: float, loaded: queue.SimpleQueue[float]) -> None:
    while _read_load(cluster).get("state") != "done":
        time.sleep(_POLL_S)
    loaded.put(time.perf_counter() - began)


def _refuse_spark() -> NoReturn:
    raise AssertionError("a window in pieces must not use Spark")


@contextmanager
def _run_cluster(folder: Path) -> Iterator[FeederSource]:
    cluster = FeederSource(folder, pumps=1)
    try:
        yield cluster.start()
    finally:
        cluster.stop()


def _read_load(cluster: FeederSource) -> dict[str, Any]:
    try:
        sources = cluster.fetch_feeder_status()["sources"]
    except (httpx.HTTPError, json.JSONDecodeError):
        return {}
    return dict(sources[0].get("load", {})) if sources else {}


@contextmanager
def _measure_cost(processes: Mapping[str, Any]) -> Iterator[LoadCost]:
    """Measure the body of the `with`; `processes`: by name, each with a `pid`, or None for this process."""
    watched = {name: psutil.Process(process.pid if process else os.getpid()) for name, process in processes.items()}
    before = {name: sum(process.cpu_times()[:2]) for name, process in watched.items()}
    for process in watched.values():
        Path(f"/proc/{process.pid}/clear_refs").write_text("5", encoding="ascii")  # the peak begins again
    cost, began = LoadCost(), time.perf_counter()
    yield cost
    cost.seconds = time.perf_counter() - began
    cost.cpu |= {name: sum(process.cpu_times()[:2]) - before[name] for name, process in watched.items()}
    cost.peaks |= {name: read_peak(process.pid) for name, process in watched.items()}


def _print(name: str, rows: int, cost: LoadCost) -> None:
    by_process = ", ".join(f"{process} {seconds / rows * 1e6:.2f}" for process, seconds in sorted(cost.cpu.items()))
    peaks = ", ".join(f"{process} {peak >> 20}" for process, peak in sorted(cost.peaks.items()))
    total = sum(cost.cpu.values()) / rows * 1e6
    print(
        f"{name:<26} {rows / cost.seconds:>9,.0f} rows/s   CPU us per row {total:.2f}: {by_process}   MiB: {peaks}",
        flush=True,
    )


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-snapshot", description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000, help="rows of all tables together (500000)")
    parser.add_argument("--tables", type=int, nargs="+", default=[1], help="numbers of tables, such as 1 50 (1)")
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=["usual"], help="shapes of a row (usual)")
    parser.add_argument("--form", nargs="+", choices=["rows", "columns"], default=["rows", "columns"],
                        help="snapshot.form of the loads (both)")  # fmt: skip
    parser.add_argument("--readers", type=int, default=4, help="connections that read, also of mydumper (4)")
    parser.add_argument("--mirrors", action="store_true", help="with mirrors")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
