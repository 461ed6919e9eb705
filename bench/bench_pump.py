"""The pump compared with its floors: `python bench/bench_pump.py [SECONDS]`; server and load are separate processes.

First the floor of the disk: append and fdatasync. Then writes (P and C in turn, each answered after its fsync) by 1, 8,
64 and 256 writers over one connection, with payloads of 200 B and 2 KiB, next to the cost of an empty call over the
same RPC layer. Then pulls of everything written, by PumpReader and by the bare stream, and writes to 1, 2 and 4
processes. CPU is that of the pump's process; RSS is read at the end of the run.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pump_load
import structlog

from binlake.cluster.pumpclient import PumpReader
from binlake.pump_service.pump.command import tune
from binlake.pump_service.pump.lean_server import LeanServer
from binlake.pump_service.pump.service import PumpService, State
from binlake.pump_service.pump.storage import PumpStorage
from binlake.rpc import Channel
from binlake.wire import build
from binlake.wire.pump_pb2 import Pos, PullBinlogReq

CLUSTER_ID = 1
WRITERS = (1, 8, 64, 256)
SIZES = (200, 2048)
PROCESSES = (1, 2, 4)
FIRST_TS = 470_000_000_000_000_000  # in 2026: a varint of nine bytes, as real timestamps are
SPAWN = multiprocessing.get_context("spawn")
Pull = Callable[[str, bytes, int], tuple[int, int, float]]
WRITE, EMPTY, PULL = "/binlog.Pump/WriteBinlog", "/bench.Bench/Empty", "/binlog.Pump/PullBinlogs"


def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory(dir=os.environ.get("BINLAKE_BENCH_DIR")) as name:
        folder = Path(name)
        print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, {seconds:g} s a figure")
        for size in SIZES:
            floor = pump_load.run_apart(pump_load.measure_appends, folder / "floor", size, seconds / 2)
            print(f"append + fdatasync of {size:>4} B {floor.rate:>34,.0f} /s")
        print(f"{'payload':>8} {'writers':>8} {'writes/s':>10} {'p50 ms':>8} {'p99 ms':>8} {'CPU us':>8}", end="")
        print(f" {'empty/s':>10} {'p50 ms':>8} {'CPU us':>8}")
        for size in SIZES:
            _measure_size(folder / str(size), size, seconds)
        _check_latency(folder, seconds)
        for count in PROCESSES:
            _measure_pump_processes(folder / f"of-{count}", count, seconds)


def _measure_size(folder: Path, size: int, seconds: float) -> None:
    with _Pump(folder) as pump:
        start = FIRST_TS
        for writers in WRITERS:
            before = pump.read_cpu()
            load = _run_load(pump.address, WRITE, writers, size, start, seconds)
            after = pump.read_cpu()
            start += 2 * load.calls + 2 * writers
            cost = (after - before) / load.calls * 1e6
            line = f"{size:>6} B {writers:>8} {load.rate:>10,.0f} {load.compute_percentile(0.5):>8.2f}"
            line += f" {load.compute_percentile(0.99):>8.2f} {cost:>8.1f}"
            before = pump.read_cpu()
            floor = _run_load(pump.address, EMPTY, writers, size, start, seconds / 2)
            cost = (pump.read_cpu() - before) / floor.calls * 1e6
            line += f" {floor.rate:>10,.0f} {floor.compute_percentile(0.5):>8.2f} {cost:>8.1f}"
            print(line, flush=True)
        print(f"RSS {pump.read_rss() / 2**20:.0f} MiB")
        _measure_pulls(pump, start)
        _measure_writes_during_pull(pump, size, start, seconds)


def _check_latency(folder: Path, seconds: float) -> None:
    """S0-25: p99 of a 1 KiB P or C with 8 writers must be at most 3 times that of a bare 4 KiB write + fdatasync."""
    bare = pump_load.run_apart(pump_load.measure_appends, folder / "floor", 4096, seconds / 2)
    with _Pump(folder / "guard") as pump:
        start = FIRST_TS
        for writers in (1, 8, 64):
            load = _run_load(pump.address, WRITE, writers, 1024, start, seconds)
            start += 2 * load.calls + 2 * writers
            p99 = load.compute_percentile(0.99)
            print(
                f"  1 KiB {writers:>8} {load.rate:>10,.0f} {load.compute_percentile(0.5):>8.2f} {p99:>8.2f}"
                f" = {p99 / bare.compute_percentile(0.99):.2f} x p99 of a 4 KiB append + fdatasync"
                f" ({bare.compute_percentile(0.5):.2f} / {bare.compute_percentile(0.99):.2f} ms)"
            )


def _measure_pump_processes(folder: Path, count: int, seconds: float) -> None:
    """Measure writes of 200 B by 64 writers, divided among `count` pump processes as `--processes` starts them."""
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(count) as pool:
        pumps = [stack.enter_context(_Pump(folder / str(number))) for number in range(count)]
        loads = pool.map(lambda pump: _run_load(pump.address, WRITE, 64 // count, SIZES[0], FIRST_TS, seconds), pumps)
        rate = sum(load.rate for load in loads)
    print(f"{count} pump processes, 64 writers {rate:>10,.0f} writes/s")


def _measure_pulls(pump: _Pump, end: int) -> None:
    request = PullBinlogReq(clusterID=CLUSTER_ID, startFrom=Pos(offset=0)).SerializeToString()
    reader = PumpReader(pump.address, CLUSTER_ID)
    until = reader.read_info().max_commit_ts
    assert until < end
    for name, pull in (("PumpReader", _pull_by_reader), ("stream", _pull_by_stream), ("blocks", _pull_by_blocks)):
        before = pump.read_cpu()
        count, size, took, own = pump_load.run_apart(_with_cpu, pull, pump.address, request, until)
        cost = (pump.read_cpu() - before) / count * 1e6
        print(
            f"pull by {name:<10} {count / took:>10,.0f} binlogs/s {size / took / 1e6:>8,.0f} MB/s,"
            f" us CPU each: pump {cost:.1f}, reader {own / count * 1e6:.1f} ({count} binlogs)",
            flush=True,
        )


def _measure_writes_during_pull(pump: _Pump, size: int, start: int, seconds: float) -> None:
    """Measure 64 writers during a pull at full speed: S0-52 requires 70 % of their rate without a pull."""
    until = PumpReader(pump.address, CLUSTER_ID).read_info().max_commit_ts
    alone = _run_load(pump.address, WRITE, 64, size, start, seconds)
    with ThreadPoolExecutor(1) as pool:
        puller = pool.submit(pump_load.run_apart, _pull_again, pump.address, until, seconds + 1)
        time.sleep(1)
        shared = _run_load(pump.address, WRITE, 64, size, start + 2 * alone.calls, seconds)
        pulled = puller.result()
    print(f"64 writers alone {alone.rate:,.0f} writes/s, during a pull of {pulled:,.0f} binlogs/s {shared.rate:,.0f}")


def _pull_again(address: str, until: int, seconds: float) -> float:
    began, count = time.perf_counter(), 0
    while (took := time.perf_counter() - began) < seconds:
        count += sum(1 for _ in PumpReader(address, CLUSTER_ID).pull(0, until))
    return count / took


def _run_load(address: str, path: str, writers: int, size: int, start: int, seconds: float) -> pump_load.PumpLoad:
    return pump_load.run_apart(pump_load.write, address, path, CLUSTER_ID, writers, size, start, seconds)


def _with_cpu(pull: Pull, address: str, request: bytes, until: int) -> tuple[int, int, float, float]:
    before = time.process_time()
    return *pull(address, request, until), time.process_time() - before


def _pull_by_blocks(address: str, request: bytes, until: int) -> tuple[int, int, float]:
    del request
    began, count, size = time.perf_counter(), 0, 0
    for block in PumpReader(address, CLUSTER_ID).pull_blocks(0, until):
        count += len(block.commit_ts)
        size += len(block.data)
    return count, size, time.perf_counter() - began


def _pull_by_reader(address: str, request: bytes, until: int) -> tuple[int, int, float]:
    del request
    began, count, size = time.perf_counter(), 0, 0
    for _, _, payload in PumpReader(address, CLUSTER_ID).pull(0, until):
        count += 1
        size += len(payload)
    return count, size, time.perf_counter() - began


def _pull_by_stream(address: str, request: bytes, until: int) -> tuple[int, int, float]:
    end = build.build_fake(until).SerializeToString()[3:12]  # the varint of the last ts
    began, count, size = time.perf_counter(), 0, 0
    with Channel(address) as channel, channel.open_stream(PULL, request, idle_timeout_s=30) as stream:
        for messages in stream.receive_batches():
            count += len(messages)
            size += sum(map(len, messages))
            if end in messages[-1]:
                break
    return count, size, time.perf_counter() - began


class _Pump:
    """A pump in a separate process, without PD and registry: storage, service and transport only."""

    def __init__(self, folder: Path) -> None:
        parent, child = SPAWN.Pipe()
        self._pipe = parent
        self._process = SPAWN.Process(target=_serve, args=(folder, child))
        self._process.start()
        self.address: str = parent.recv()
        self._seen = psutil.Process(self._process.pid)

    def read_cpu(self) -> float:
        times = self._seen.cpu_times()
        return times.user + times.system

    def read_rss(self) -> int:
        return int(self._seen.memory_info().rss)

    def __enter__(self) -> _Pump:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.send(None)
        self._process.join()


def _serve(folder: Path, pipe: multiprocessing.connection.Connection) -> None:
    structlog.configure(processors=[lambda *_: (_ for _ in ()).throw(structlog.DropEvent)])
    tune()
    storage = PumpStorage(folder)
    service = PumpService(storage, CLUSTER_ID, free_bytes_needed=0)
    service.state = State.ONLINE
    server = LeanServer(service, "127.0.0.1:0")
    server.rpc.add(EMPTY, lambda call, message: call.reply(b"") if message else None)
    server.start()
    pipe.send(server.address)
    pipe.recv()
    service.end_pulls()
    server.stop(1)
    storage.close()


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 3.0)
