"""Rebuild of a pump's lost index: `python bench/bench_rebuild.py [BINLOGS]`, default 2 million; 50 million need 12 GB.

Prints the records/s of the rebuild and of its floor in the same run: plain LevelDB puts of the same keys. Every ten
seconds it prints the progress that the pump reports meanwhile, CPU and memory. Then it starts the pump's storage once
more from the intact directory. BINLAKE_BENCH_DIR: the folder to use (on a disk with enough space).
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import psutil
import structlog

from binlake.common.varint import write_uvarint
from binlake.pump_service.pump.command import tune
from binlake.pump_service.pump.index import PumpIndex
from binlake.pump_service.pump.record import Pointer
from binlake.pump_service.pump.storage import PumpStorage
from binlake.pump_service.pump.vlog import LogOptions, ValueLog
from binlake.wire import build

START = 470614287839920132
_BATCH = 4096
_FLOOR = 1_000_000
_SHOW_S = 10.0


def main(binlogs: int) -> None:
    tune()
    structlog.configure(processors=[lambda *_: (_ for _ in ()).throw(structlog.DropEvent)])
    with tempfile.TemporaryDirectory(dir=os.environ.get("BINLAKE_BENCH_DIR")) as name:
        folder = Path(name) / "pump"
        begun = time.perf_counter()
        _fill(folder / "value", binlogs)
        size = sum(path.stat().st_size for path in (folder / "value").iterdir())
        print(f"{binlogs:,} binlogs, {size / 1e9:.1f} GB, written in {time.perf_counter() - begun:.0f} s", flush=True)
        floor = _measure_floor(Path(name) / "floor", min(binlogs, _FLOOR))
        begun, cpu = time.perf_counter(), time.process_time()
        storage = PumpStorage(folder, recover=False)
        _recover(storage)
        took, cpu = time.perf_counter() - begun, time.process_time() - cpu
        assert storage.watermark == START + 4 * (binlogs // 2 - 1) + 1, storage.watermark
        rate = binlogs / took
        print(f"floor: LevelDB puts      {floor:>12,.0f} records/s")
        print(
            f"rebuild                  {rate:>12,.0f} records/s, {cpu / binlogs * 1e6:.1f} us CPU each,"
            f" {rate / floor:.0%} of the floor; {took:.1f} s",
            flush=True,
        )
        storage.close()
        begun, cpu = time.perf_counter(), time.process_time()
        storage = PumpStorage(folder)
        took, cpu = time.perf_counter() - begun, time.process_time() - cpu
        print(f"clean start              {took:>12.2f} s, {cpu:.2f} s CPU, {storage.recovered} records read again")
        storage.close()


def _recover(storage: PumpStorage) -> None:
    """Rebuild the index and print the progress meanwhile."""
    ended = threading.Event()

    def show() -> None:
        process, begun, cpu = psutil.Process(), time.perf_counter(), time.process_time()
        while not ended.wait(_SHOW_S):
            took, used = time.perf_counter() - begun, time.process_time() - cpu
            rss = process.memory_info().rss >> 20
            print(f"  {took:>5.0f} s, CPU {used:>5.0f} s, RSS {rss:>5} MiB: {storage.error}", flush=True)

    shower = threading.Thread(target=show)
    shower.start()
    try:
        storage.recover()
    finally:
        ended.set()
        shower.join()
    print(f"  RSS {psutil.Process().memory_info().rss >> 20} MiB after the rebuild", flush=True)


def _fill(directory: Path, binlogs: int) -> None:
    log = ValueLog(directory, LogOptions(sync=False))
    payloads = _build_payloads(binlogs)
    for number in range(0, binlogs, _BATCH):
        last = min(number + _BATCH, binlogs) // 2 - 1
        log.append([next(payloads) for _ in range(min(_BATCH, binlogs - number))], START + 4 * last + 1)
    log.close()


def _build_payloads(binlogs: int) -> Iterator[bytes]:
    """Yield P and C in turn. Protobuf would take most of the time, so it runs once: only the timestamps differ."""
    prewrite = build.build_prewrite(START, b"t\x80\0\0\0\0\0\0\x2d_r\x80\0\0\0\0\0\0\1", os.urandom(150))
    commit = build.build_commit(prewrite, START + 1)
    before, after = prewrite.SerializeToString().split(write_uvarint(START))
    opening, between, end = re.split(
        re.escape(write_uvarint(START)) + b"|" + re.escape(write_uvarint(START + 1)), commit.SerializeToString()
    )
    for start_ts in range(START, START + 2 * binlogs, 4):
        yield before + _encode_varint(start_ts) + after
        yield opening + _encode_varint(start_ts) + between + _encode_varint(start_ts + 1) + end


def _encode_varint(ts: int) -> bytes:
    return bytes((ts & 127 | 128, ts >> 7 & 127 | 128)) + _encode_upper(ts >> 14)


@lru_cache(8)
def _encode_upper(bits: int) -> bytes:
    return write_uvarint(bits)


def _measure_floor(directory: Path, count: int) -> float:
    index = PumpIndex(directory)
    begun = time.perf_counter()
    for first in range(0, count, 1024):
        puts = [(START + 2 * n, Pointer(0, n)) for n in range(first, min(count, first + 1024))]
        index.write(puts, head=Pointer(0, 0), max_ts=0, handle=Pointer(0, 0))
    took = time.perf_counter() - begun
    index.close()
    shutil.rmtree(directory)
    return count / took


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000)
