"""The pump's speed against this disk's own limit: `python bench/bench_pump.py [SECONDS]`, one process, loopback.

Prints fdatasync/s of the same directory's disk, WriteBinlog calls/s by 1, 8 and 64 writers (each waits for its fsync),
and pulled messages/s. The original's bar: 2.6k / 8.7k / 22.3k writes/s, pull 74k to 103k (DESIGN 7).
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import grpc
import structlog

from binlake.pumpclient import PumpReader
from binlake.wire import build
from binlake.wire.pump_pb2 import WriteBinlogReq, WriteBinlogResp
from pump_service.pump.grpc_server import GrpcServer
from pump_service.pump.service import PumpService, State
from pump_service.pump.storage import Storage

CLUSTER_ID = 1
VALUE = os.urandom(120)  # about a row


def main(seconds: float) -> None:
    structlog.configure(processors=[lambda *_: (_ for _ in ()).throw(structlog.DropEvent)])
    with tempfile.TemporaryDirectory(dir=os.environ.get("BINLAKE_BENCH_DIR")) as name:
        print(f"fdatasync floor        {_fdatasyncs(Path(name), seconds):>9,.0f} /s")
        storage = Storage(Path(name) / "pump")
        service = PumpService(storage, CLUSTER_ID, free_bytes_needed=0)
        service.state = State.ONLINE
        server = GrpcServer(service, "127.0.0.1:0")
        server.start()
        start = 1
        for writers in (1, 8, 64):
            calls, took = _write(server.address, start, writers, seconds)
            print(f"WriteBinlog {writers:>3} writers {calls / took:>9,.0f} calls/s")
            start += calls
        print(f"pull                   {_pull(server.address, storage.watermark):>9,.0f} messages/s")
        service.end_pulls()
        server.stop(1)
        storage.close()


def _fdatasyncs(directory: Path, seconds: float) -> float:
    count, begun = 0, time.perf_counter()
    with (directory / "floor").open("ab") as file:
        while time.perf_counter() - begun < seconds:
            file.write(VALUE)
            file.flush()
            os.fdatasync(file.fileno())
            count += 1
    return count / (time.perf_counter() - begun)


def _write(address: str, start: int, writers: int, seconds: float) -> tuple[int, float]:
    """P and C in turn by each writer, in a process of their own; calls and seconds."""
    context = multiprocessing.get_context("spawn")
    answer, sender = context.Pipe(duplex=False)
    process = context.Process(target=_writers, args=(address, start, writers, seconds, sender))
    process.start()
    found: tuple[int, float] = answer.recv()
    process.join()
    return found


def _writers(address: str, start: int, writers: int, seconds: float, sender: object) -> None:
    clock, counts = itertools.count(start), [0] * writers
    begun = time.perf_counter()
    threads = [
        threading.Thread(target=_one_writer, args=(address, clock, counts, number, begun + seconds))
        for number in range(writers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sender.send((sum(counts), time.perf_counter() - begun))  # type: ignore[attr-defined]


def _one_writer(address: str, clock: itertools.count[int], counts: list[int], number: int, until: float) -> None:
    with grpc.insecure_channel(address) as channel:
        write = channel.unary_unary(
            "/binlog.Pump/WriteBinlog", WriteBinlogReq.SerializeToString, WriteBinlogResp.FromString
        )
        while time.perf_counter() < until:
            prewrite = build.prewrite(next(clock), b"k", VALUE)
            write(WriteBinlogReq(clusterID=CLUSTER_ID, payload=prewrite.SerializeToString()))
            commit = build.commit(prewrite, next(clock))
            write(WriteBinlogReq(clusterID=CLUSTER_ID, payload=commit.SerializeToString()))
            counts[number] += 2


def _pull(address: str, watermark: int) -> float:
    context = multiprocessing.get_context("spawn")
    answer, sender = context.Pipe(duplex=False)
    process = context.Process(target=_puller, args=(address, watermark, sender))
    process.start()
    rate: float = answer.recv()
    process.join()
    return rate


def _puller(address: str, watermark: int, sender: object) -> None:
    begun = time.perf_counter()
    count = sum(1 for _ in PumpReader(address, CLUSTER_ID).pull(0, watermark))
    sender.send(count / (time.perf_counter() - begun))  # type: ignore[attr-defined]


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 3.0)
