"""`make bench-transaction`: the memory that one large transaction costs a pump and the windows' process.

A transaction of MIB MiB inserts rows of sysbench's shape into one table. It goes through a real pump process, a lake
with mirrors and MariaDB; each process's peak is its VmHWM since before the transaction. The run fails if the target
does not have exactly the written rows.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil
import pump_load
import structlog
from bench_end_to_end import ROOT, SERVER, BulkSource, _build_settings, run_process
from bulk_load import WRITE, BulkLoad, build_large_prewrite
from server_tools import read_peak
from sysbench_rows import DB, LOADS
from window_process import OWN, StageCost, WindowJob

from binlake import tso
from binlake.cluster.placement import PdClient
from binlake.pump_service.statusport import StatusServer
from binlake.rpc import Channel
from binlake.testkit.workload.command import VERSION
from binlake.wire import build
from binlake.wire.pump_pb2 import WriteBinlogReq
from deploy.local.mariadb import MariaDb

_TIMEOUT_S = 300.0


def main() -> int:
    """Measure each size that is asked for; returns 1 if a target differs."""
    parser = argparse.ArgumentParser(prog="make bench-transaction", description=__doc__)
    parser.add_argument("--mib", type=lambda text: [int(one) for one in text.split(",")], default=[200])
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="replication setting")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ["PYTHONPATH"] = str(ROOT)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    wrong = False
    for size in args.mib:
        with tempfile.TemporaryDirectory(prefix="binlake-tx-", dir=os.environ.get("BINLAKE_BENCH_DIR")) as folder:
            cost = measure(size << 20, args.set, Path(folder))
        cost.print()
        wrong |= cost.wrong
    return int(wrong)


@contextlib.contextmanager
def open_source(folder: Path) -> Iterator[tuple[BulkSource, BulkLoad]]:
    """A source with the table of load (a), and pumps as processes."""
    with contextlib.ExitStack() as stack:
        source = BulkSource(folder, 1)
        stack.callback(source.stop)
        source.start()
        pd = PdClient([source.pd_url])
        stack.callback(pd.close)
        wires = [stack.enter_context(contextlib.closing(pump_load.Bulk(pump, WRITE))) for pump in source.pumps]
        bulk = BulkLoad(LOADS["a"], pd, source.cluster_id, wires)
        address = source.status_url.removeprefix("http://")
        meta = {"version": VERSION, "case": "bench"}
        stack.enter_context(StatusServer(meta, bulk.history, bulk.known, lambda: tso.MAX_TS, address))
        bulk.create()
        yield source, bulk


@dataclass(frozen=True)
class TransactionCost:
    """One transaction of `mib` MiB and `rows` rows. Memory in MiB: of the windows' process, idle and at its peak; of
    the pump when idle, while the transaction is written, and while it is pulled. `wrong`: the target has other rows."""

    mib: float
    rows: int
    idle: float
    peak: float
    pump_idle: float
    pump_written: float
    pump_pulled: float
    cpu_us: float
    stages: dict[str, StageCost]
    wrong: bool

    def print(self) -> None:
        """Print all figures."""
        print(f"one transaction of {self.mib:,.0f} MiB, {self.rows:,} rows:{' THE TARGET IS WRONG' * self.wrong}")
        print(
            f"  windows' process: idle {self.idle:,.0f} MiB, peak {self.peak:,.0f}; {self.cpu_us:.1f} us of CPU a row"
        )
        peaks = f"peak {self.pump_written:,.0f} while it is written, {self.pump_pulled:,.0f} while it is pulled"
        print(f"  pump: idle {self.pump_idle:.0f} MiB, {peaks}")
        for name, cost in self.stages.items():
            print(f"  {name}: {cost.cpu[OWN]:.2f} s CPU, {cost.seconds:.2f} s")


def measure(size: int, settings: Sequence[str], folder: Path) -> TransactionCost:
    """Measure one transaction of about `size` bytes, with its own servers below `folder`."""
    with contextlib.ExitStack() as stack:
        target = stack.enter_context(MariaDb(folder / "mariadb", options=SERVER))
        source, bulk = stack.enter_context(open_source(folder / "source"))
        job = WindowJob(_build_settings(source, target, folder, "plain", settings), "plain", "", "", {})
        small = bulk.write(bulk.writer.load.roles, 1000)
        source.wait_for(small.last_ts)
        wire = stack.enter_context(run_process(job, folder))
        wire.send(small.last_ts)
        idle = wire.recv().peak[OWN]
        # The transaction is written to the first one.
        pump = min(pid for name, pid in source.pids.items() if name.startswith("pump"))
        before = psutil.Process(pump).memory_info().rss
        _forget_peak(pump)
        rows, sent, commit_ts = write_large(source, bulk, size)
        written = read_peak(pump)
        source.wait_for(commit_ts)
        _forget_peak(pump)
        wire.send(commit_ts)
        run = wire.recv()
        wire.send(None)
        pump_idle, pump_written, pump_pulled = (one / 2**20 for one in (before, written, read_peak(pump)))
        cpu_us = run.whole.cpu[OWN] / rows * 1e6
        wrong = _count_rows(target) != 1000 + rows
        return TransactionCost(
            sent / 2**20, rows, idle, run.peak[OWN], pump_idle, pump_written, pump_pulled, cpu_us, run.stages, wrong
        )


def write_large(source: BulkSource, bulk: BulkLoad, size: int) -> tuple[int, int, int]:
    """Write one transaction of about `size` bytes to the first pump; (rows, bytes of its prewrite, commit_ts)."""
    start_ts = bulk.pd.fetch_ts()
    bulk.known.begin(start_ts, 1)
    head, rows, payload = build_large_prewrite(bulk, start_ts, size)
    with Channel(source.pumps[0]) as channel:
        # The message is made here once; protobuf would hold it three times.
        message = bytes(bulk.build_request_head(len(payload))) + payload
        channel.call(WRITE, message, _TIMEOUT_S)
        del message
        commit_ts = bulk.pd.fetch_ts()
        bulk.known.end(start_ts, commit_ts)
        commit = build.build_commit(head, commit_ts).SerializeToString()
        channel.call(WRITE, WriteBinlogReq(clusterID=source.cluster_id, payload=commit).SerializeToString(), _TIMEOUT_S)
    return rows, len(payload), commit_ts


def _forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")


def _count_rows(target: MariaDb) -> int:
    with target.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT COUNT(*) FROM `{DB}`.sbtest1")
        return int(cursor.fetchone()[0])


if __name__ == "__main__":
    sys.exit(main())
