"""`make bench-snapshot`: a full load of a MariaDB source: from SELECT to commits on a pump, then windows to a target.

Each step is compared with its floor in the same run: the same table read by the server's own client and by its dump
tool to /dev/null, its dump piped into the target by the server's own client, and its rows as prepared multi-row REPLACE
statements over 4 connections. Feeder, placement driver, pump and servers are separate processes; windows run in this
one. The target must hold every row, after each load. SCALE=0.1 takes a tenth of the rows. READERS=1,4 lists the numbers
of reading connections; the load with the last number continues to the target. FORMS=rows,columns lists how the pumps
get the rows, MIRRORS=1 turns mirrors on. Compare ratios and CPU: absolute figures depend on the machine.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import httpx
import psutil
import structlog
from server_tools import find_client_program, run_client, run_piped
from sysbench_rows import DB, LOADS, Writer
from target_floor import Floor, check_rows, measure_floor

from binlake.config import Replication
from binlake.config.model import Target
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.job.runner import run_window
from deploy.local.mariadb import MariaDb
from deploy.local.source import FeederSource

ROWS = 400_000
SERVER = ("--innodb-buffer-pool-size=512M", "--innodb-log-file-size=256M")
TABLE = f"CREATE TABLE {DB}.sbtest1 (id BIGINT PRIMARY KEY, k INT, c VARCHAR(120), pad VARCHAR(60))"
_POLL_S, _WAIT_S = 0.05, 900.0


@dataclass
class Cost:
    """Wall-clock seconds, and CPU seconds by process."""

    seconds: float = 0.0
    cpu: dict[str, float] = field(default_factory=dict)

    def __add__(self, other: Cost) -> Cost:
        names = self.cpu | other.cpu
        return Cost(self.seconds + other.seconds, {n: self.cpu.get(n, 0) + other.cpu.get(n, 0) for n in names})


def main() -> int:
    """Print a line per step. Return 1 if the target differs."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    rows = int(ROWS * float(os.environ.get("SCALE", "1")))
    readers = [int(count) for count in os.environ.get("READERS", "1,4").split(",")]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="binlake-bench-snapshot-")))
        servers = {"source": MariaDb.list_source_options(), "target": ()}
        source, target = (
            stack.enter_context(MariaDb(folder / name, options=(*SERVER, *more))) for name, more in servers.items()
        )
        writer = _fill(source, rows)
        _measure_reading(source, rows, folder)
        wrong = _measure_dump(source, target, writer, rows, folder)
        totals = {}
        for form in os.environ.get("FORMS", "rows,columns").split(","):
            for count in readers:
                with _run_cluster(folder / f"load-{form}-{count}") as cluster:
                    load = _measure_load(cluster, source, target, form, count, rows)
                    if count == readers[-1]:
                        totals[form] = load + _measure_windows(cluster, target, rows)
                        wrong += check_rows(target, writer)
                _empty(target)
        with target.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {DB}")
            cursor.execute(TABLE)
        floor = measure_floor(target, writer)
        _print("multi-row REPLACE", rows, Cost(floor.seconds, {"client": floor.client_cpu, "target": floor.server_cpu}))
        for form, total in totals.items():
            _print_ratio(f"load and windows, {form}", total, floor)
        print(*wrong, sep="\n")
        return int(bool(wrong))


def _empty(target: MariaDb) -> None:
    """Drop what a load has left at the target."""
    with target.connect() as connection, connection.cursor() as cursor:
        for name in (DB, Target.model_fields["checkpoint_schema"].default):
            cursor.execute(f"DROP DATABASE IF EXISTS {name}")


def _fill(source: MariaDb, rows: int) -> Writer:
    """Write the rows of a load to `source`."""
    writer = Writer(LOADS["a"])
    writer.tables[0].insert(rows)
    with source.connect() as connection, connection.cursor() as cursor:
        for statement in ("SET GLOBAL sync_binlog = 0, innodb_flush_log_at_trx_commit = 0", f"CREATE DATABASE {DB}"):
            cursor.execute(statement)
        cursor.execute(TABLE)
    measure_floor(source, writer)
    return writer


def _measure_reading(source: MariaDb, rows: int, folder: Path) -> None:
    """Measure the server's own programs on the same table."""
    login = _login(source)
    commands = {
        "SELECT to /dev/null": ["mariadb", *login, "--quick", "--batch", "-e", f"SELECT * FROM {DB}.sbtest1"],
        "dump to /dev/null": ["mariadb-dump", *login, "--single-transaction", DB],
    }
    for name, words in commands.items():
        find_client_program(words[0])
        with _measure_cost({"source": source}) as cost:
            taken = run_client(words, folder)
        cost.cpu["client"] = taken.cpu_s
        _print(name, rows, cost)


def _measure_dump(source: MariaDb, target: MariaDb, writer: Writer, rows: int, folder: Path) -> list[str]:
    """Measure the source's dump, piped into the target; returns what differs there. The target is empty afterwards."""
    with _measure_cost({"source": source, "target": target}) as cost:
        dump = ["mariadb-dump", *_login(source), "--single-transaction", "--databases", DB]
        taken = run_piped([dump, ["mariadb", *_login(target)]], folder)
    cost.cpu["clients"] = taken.cpu_s
    _print("dump into the target", rows, cost)
    wrong = check_rows(target, writer)
    _empty(target)
    return wrong


def _login(server: MariaDb) -> list[str]:
    return ["--no-defaults", f"--host={server.host}", f"--port={server.port}", f"--user={server.user}", "--skip-ssl"]


def _measure_load(cluster: FeederSource, source: MariaDb, tracker: MariaDb, form: str, readers: int, rows: int) -> Cost:
    """Measure a load, from the snapshot to the commits of all rows on the pump."""
    pump = cluster.parts[1]
    with _measure_cost({"source": source, "pump": pump}) as cost:
        cluster.feed(
            f'[tracker]\nhost = "{tracker.host}"\nport = {tracker.port}\n'
            f'[[source]]\nname = "s1"\nhost = "{source.host}"\nport = {source.port}\n'
            f'ignore-tables = ["mysql.*"]\nsnapshot = {{ threads = {readers}, form = "{form}" }}\n'
        )
        started = sum(psutil.Process(cluster.parts[-1].pid).cpu_times()[:2])
        began = time.perf_counter()
        _wait_until(lambda: _load_of(cluster).get("state") == "done")
    cost.seconds = time.perf_counter() - began
    cost.cpu["feeder"] = sum(psutil.Process(cluster.parts[-1].pid).cpu_times()[:2]) - started
    _print(f"load, {form}, {readers} readers", rows, cost)
    return cost


def _measure_windows(cluster: FeederSource, target: MariaDb, rows: int) -> Cost:
    """Measure the windows from the pump through the lake to the target, in pieces, in this process."""
    until = int(_load_of(cluster)["commit_ts"])
    replication = Replication.model_validate(
        {
            "name": "bench",
            "initial-commit-ts": "0",
            "source": {"pd-urls": [cluster.pd_url], "status-url": cluster.status_url},
            "lake": {"path": str(cluster.folder / "lake")},
            "target": {"db-type": "mariadb", "host": target.host, "port": target.port, "user": target.user},
            "mirror": {"enabled": os.environ.get("MIRRORS") == "1"},
        }
    )
    context = StageContext(replication, "bench", _refuse_spark, in_pieces=True)
    own = time.process_time()
    with _measure_cost({"target": target, "pump": cluster.parts[1]}) as cost:
        while (context.windows.find_landed_ts() or 0) < until:
            run_window(context)
    cost.cpu["windows"] = time.process_time() - own
    _print("windows to the target", rows, cost)
    return cost


def _refuse_spark() -> NoReturn:
    raise AssertionError("a window in pieces must not use Spark")


@contextmanager
def _run_cluster(folder: Path) -> Iterator[FeederSource]:
    cluster = FeederSource(folder, pumps=1)
    try:
        yield cluster.start()
    finally:
        cluster.stop()


@contextmanager
def _measure_cost(processes: Mapping[str, Any]) -> Iterator[Cost]:
    """Measure the body of the `with`; `processes`: by name, each with a `pid`."""
    watched = {name: psutil.Process(process.pid) for name, process in processes.items()}
    before = {name: sum(process.cpu_times()[:2]) for name, process in watched.items()}
    cost, began = Cost(), time.perf_counter()
    yield cost
    cost.seconds = time.perf_counter() - began
    cost.cpu |= {name: sum(process.cpu_times()[:2]) - before[name] for name, process in watched.items()}


def _load_of(cluster: FeederSource) -> dict[str, Any]:
    try:
        sources = cluster.fetch_feeder_status()["sources"]
    except (httpx.HTTPError, json.JSONDecodeError):
        return {}
    return dict(sources[0].get("load", {})) if sources else {}


def _wait_until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not reached():
        if time.monotonic() > deadline:
            raise SystemExit(f"the load did not end within {_WAIT_S:.0f} s")
        time.sleep(_POLL_S)


def _print(name: str, rows: int, cost: Cost) -> None:
    by_process = ", ".join(f"{process} {seconds / rows * 1e6:.2f}" for process, seconds in sorted(cost.cpu.items()))
    print(f"{name:<26} {rows / cost.seconds:>9,.0f} rows/s   CPU us per row: {by_process}", flush=True)


def _print_ratio(name: str, cost: Cost, floor: Floor) -> None:
    cpu = (floor.client_cpu + floor.server_cpu) / sum(cost.cpu.values())
    print(
        f"{name:<26} {floor.seconds / cost.seconds:.2f} of the target's floor in time, {cpu:.2f} in CPU",
        flush=True,
    )


if __name__ == "__main__":
    raise SystemExit(main())
