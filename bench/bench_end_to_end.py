"""`make bench`: rows through two pumps into MariaDB, from plan to checkpoint: rows/s, CPU per row by process and stage.

Loads of sysbench's shape (`--workload`): (a) 200k single-row inserts, (b) 200k single-row updates of 10k hot rows, (c)
100k transactions of 5 rows over 4 tables; `--scale 10` takes ten times as many. They are written before the measurement
begins. `binlake.spark_jobs.job.runner.run_window` is measured in a separate process (window_process.py): first a window
of 4,000 transactions, the process's first one ("cold": its start and imports count), then the load ("warm"). The floor
follows in the same run: the same final rows as prepared multi-row REPLACE statements over 4 connections into the
emptied tables. The run fails if the target does not have exactly the written rows. See bench/README.md.

Ways (`--way`): `plain`, a process with default settings; `connect` and `submit`, a large window with Spark for every
stage that can use its workers: on a warm Connect server, or in a process started by spark-submit.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import logging
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil
import pump_load
import structlog
from bulk_load import WRITE, BulkLoad, BulkResult
from end_to_end_report import Measured, format_summary, print_run
from sysbench_rows import LOADS, SysbenchLoad
from target_floor import check_rows, measure_floor
from window_process import WindowJob, WindowRun

from binlake import tso
from binlake.cluster.placement import PdClient
from binlake.cluster.pumpclient import PumpReader
from binlake.common.installation import list_delta_jars
from binlake.pump_service.statusport import StatusServer
from binlake.spark_jobs.engine.spark import CONF
from binlake.testkit.workload.command import VERSION
from deploy.local.mariadb import MariaDb
from deploy.local.ports import HOST, free_port
from deploy.local.source import LocalSource
from deploy.local.spark_connect import SparkConnect

ROOT = Path(__file__).resolve().parents[1]
WAYS = ("plain", "connect", "submit")
# Spark processes the whole load as one window, as on a cluster; local[2] stands in for the cluster.
BY_SPARK = {"driver-bytes": 0, "max-bytes": 0}
SPARK_MEMORY = "6g"
COLD_TRANSACTIONS = 4_000
SERVER = ("--innodb-buffer-pool-size=512M", "--innodb-log-file-size=256M")
_SETTLE_S = 600.0


class BulkSource(LocalSource):
    """pd and two pumps; this process serves the status port."""

    @property
    def pumps(self) -> list[str]:
        """HOST:PORT of each pump."""
        return [f"{HOST}:{port}" for port in self._pump_ports]

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name."""
        return {part.name: part.pid for part in self.parts if part.pid}

    def wait_for(self, ts: int) -> None:
        """Wait until the watermark of each pump has reached `ts`. Raises SystemExit."""
        until = time.monotonic() + _SETTLE_S
        while any(PumpReader(pump, self.cluster_id).read_info().max_commit_ts < ts for pump in self.pumps):
            if time.monotonic() > until:
                raise SystemExit("the watermarks of the pumps do not advance")
            time.sleep(0.1)


def main() -> int:
    """Run the requested measurements; returns 1 if a target differs."""
    args = _parse_arguments()
    # SIGTERM must also stop the servers.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ["PYTHONPATH"] = str(ROOT)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    measured = []
    for way, scale, name in itertools.product(args.way, args.scale, args.workload):
        with tempfile.TemporaryDirectory(prefix="binlake-e2e-", dir=os.environ.get("BINLAKE_BENCH_DIR")) as folder:
            measured.append(measure(LOADS[name].with_scale(scale), way, Path(folder), args))
        print_run(measured[-1])
    print(format_summary(measured))
    if args.json:
        args.json.write_text(json.dumps([dataclasses.asdict(one) for one in measured], indent=1), encoding="utf-8")
    return int(any(one.wrong for one in measured))


def measure(load: SysbenchLoad, way: str, folder: Path, args: argparse.Namespace) -> Measured:
    """Measure one load in one way, with its own servers below `folder`."""
    with contextlib.ExitStack() as stack:
        source = BulkSource(folder / "source", 1)
        stack.callback(source.stop)
        source.start()
        target = stack.enter_context(MariaDb(folder / "mariadb", options=SERVER))
        spark, jobs = stack.enter_context(_connect(folder / "spark", args.cores)) if way == "connect" else (None, "")
        pd = PdClient([source.pd_url])
        stack.callback(pd.close)
        wires = [stack.enter_context(contextlib.closing(pump_load.Bulk(pump, WRITE))) for pump in source.pumps]
        bulk = BulkLoad(load, pd, source.cluster_id, wires)
        address = source.status_url.removeprefix("http://")
        meta = {"version": VERSION, "case": "bench"}
        stack.enter_context(StatusServer(meta, bulk.history, bulk.known, lambda: tso.MAX_TS, address))
        others = source.pids | {"mariadb": target.pid or 0} | ({"jvm": spark.server.pid or 0} if spark else {})
        settings = _build_settings(source, target, folder, way, args.set)
        flame = str(args.flame.absolute() / f"{load.name}-{way}") if args.flame else ""
        job = WindowJob(settings, way, spark.url if spark else "", jobs, others, flame)
        bulk.create()
        if load.rows:
            bulk.write(load.list_setup_roles(), load.rows)
        cold_written = bulk.write(load.roles, COLD_TRANSACTIONS)
        source.wait_for(cold_written.last_ts)
        wire = stack.enter_context(run_process(job, folder))
        cold = _run(wire, cold_written)
        written, cost = _write_load(bulk, load, source)
        before = _measure_sizes(folder / "lake" / "bench")
        warm = _run(wire, written)
        lake = {name: size - before.get(name, 0) for name, size in _measure_sizes(folder / "lake" / "bench").items()}
        wire.send(None)
        wrong = check_rows(target, bulk.writer)
        floors = [measure_floor(target, bulk.writer) for _ in range(args.floors)]
        return Measured(load.name, load.description, way, load.transactions, load.transactions * load.changes,
                        cold, COLD_TRANSACTIONS * load.changes, warm, written.bytes, lake, cost,
                        min(floors, key=lambda one: one.seconds), wrong)  # fmt: skip


@contextlib.contextmanager
def _connect(folder: Path, cores: int) -> Iterator[tuple[SparkConnect, str]]:
    """A warm server, and the address of its web pages, which count its jobs."""
    pages = free_port()
    conf = {"spark.ui.enabled": "true", "spark.ui.port": str(pages)}
    with SparkConnect(folder, master=f"local[{cores}]", memory=SPARK_MEMORY, conf=conf) as spark:
        yield spark, f"http://{HOST}:{pages}"


def _build_settings(
    source: BulkSource, target: MariaDb, folder: Path, way: str, given: Sequence[str]
) -> dict[str, Any]:
    wanted: dict[str, Any] = {
        "name": "bench",
        "initial-commit-ts": "0",
        "source": {"pd-urls": [source.pd_url], "status-url": source.status_url, "cluster-id": str(source.cluster_id)},
        "lake": {"path": str(folder / "lake")},
        "target": {"db-type": "mariadb", "host": target.host, "port": target.port, "user": target.user},
        "window": {} if way == "plain" else dict(BY_SPARK),
    }
    for one in given:
        name, _, value = one.partition("=")
        section, _, key = name.partition(".")
        is_text = re.fullmatch(r"\d+|true|false|\[.*\]", value) is None
        wanted.setdefault(section, {})[key] = value if is_text else json.loads(value)
    return wanted


def _write_load(bulk: BulkLoad, load: SysbenchLoad, source: BulkSource) -> tuple[BulkResult, float]:
    """Write the load; (what was written, CPU us of a transaction in this process and the pumps)."""
    parts = [psutil.Process(), *(psutil.Process(pid) for pid in source.pids.values())]
    before = sum(sum(part.cpu_times()[:2]) for part in parts)
    written = bulk.write(load.roles, load.transactions)
    used = sum(sum(part.cpu_times()[:2]) for part in parts) - before
    source.wait_for(written.last_ts)
    return written, used / load.transactions * 1e6


def _run(wire: Connection, written: BulkResult) -> WindowRun:
    wire.send(written.last_ts)
    run = wire.recv()
    assert isinstance(run, WindowRun)
    return run


@contextlib.contextmanager
def run_process(job: WindowJob, folder: Path) -> Iterator[Connection]:
    """The measured process, connected; its log is printed if the body fails."""
    key, log = secrets.token_bytes(16), folder / "windows.log"
    with Listener((HOST, 0), authkey=key) as listener, log.open("wb") as out:
        program = Path(__file__).with_name("window_process.py")
        command = [*_build_launch_command(job.way), str(program), *map(str, listener.address)]
        # A Connect session in this process, which warmed up a server of an earlier load, leaves SPARK_ variables.
        env = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
        env |= {"BINLAKE_BENCH_KEY": key.hex(), "PYSPARK_PYTHON": sys.executable}
        env |= {"PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": HOST}
        process = subprocess.Popen(command, env=env, cwd=folder, stdout=out, stderr=out)
        try:
            with listener.accept() as wire:
                wire.send(job)
                yield wire
            process.wait(60)
        except (EOFError, OSError):
            process.wait(60)  # let it write the reason to its log
            print(log.read_text(encoding="utf-8", errors="replace")[-4000:], file=sys.stderr)
            raise
        finally:
            process.kill()
            process.wait()


def _build_launch_command(way: str) -> list[str]:
    if way != "submit":
        return [sys.executable]
    submit = shutil.which("spark-submit", path=str(Path(sys.executable).parent))
    assert submit is not None, "spark-submit is not in the virtual environment"
    settings = CONF | {"spark.driver.memory": SPARK_MEMORY}
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    return [submit, "--master", "local[2]", "--jars", ",".join(list_delta_jars()), *conf]


def _measure_sizes(folder: Path) -> dict[str, int]:
    """The bytes of each table of a lake."""
    return {
        table.name: sum(file.stat().st_size for file in table.rglob("*") if file.is_file())
        for table in folder.iterdir()
        if table.is_dir()
    }


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--workload", type=_build_word_parser(LOADS), default=list(LOADS), help="a,b,c (all)")
    parser.add_argument("--scale", type=lambda text: [float(one) for one in text.split(",")], default=[1.0, 10.0],
                        help="multiples of the size (1,10)")  # fmt: skip
    parser.add_argument("--way", type=_build_word_parser(WAYS), default=["plain"], help=f"{','.join(WAYS)} (plain)")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="replication setting")
    parser.add_argument("--cores", type=int, default=2, help="threads of the Connect server (2)")
    parser.add_argument("--floors", type=int, default=3, help="measurements of the floor; the best counts (3)")
    parser.add_argument("--flame", type=Path, metavar="FOLDER", help="write flame graphs of each warm stage there")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args()


def _build_word_parser(known: Collection[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        words = text.split(",")
        if unknown := set(words) - set(known):
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}")
        return words

    return parse


if __name__ == "__main__":
    sys.exit(main())
