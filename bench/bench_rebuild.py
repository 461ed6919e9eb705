"""Long life of a pump: `python bench/bench_rebuild.py [BINLOGS]`, default 2 million; 50 million need 12 GB.

The index is lost: records/s until it is built again, beside the floor, plain LevelDB puts of the same keys in the same
run. Then a clean start of the same directory. BINLAKE_BENCH_DIR: where (a disk with room).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import structlog

from binlake.wire import build
from pump_service.pump.command import tune
from pump_service.pump.index import Index
from pump_service.pump.record import Pointer
from pump_service.pump.storage import Storage
from pump_service.pump.vlog import LogOptions, ValueLog

START = 470614287839920132
_BATCH = 4096
_FLOOR = 1_000_000


def main(binlogs: int) -> None:
    tune()
    structlog.configure(processors=[lambda *_: (_ for _ in ()).throw(structlog.DropEvent)])
    with tempfile.TemporaryDirectory(dir=os.environ.get("BINLAKE_BENCH_DIR")) as name:
        folder = Path(name) / "pump"
        begun = time.perf_counter()
        _fill(folder / "value", binlogs)
        size = sum(path.stat().st_size for path in (folder / "value").iterdir())
        print(f"{binlogs:,} binlogs, {size / 1e9:.1f} GB, written in {time.perf_counter() - begun:.0f} s", flush=True)
        floor = _floor(Path(name) / "floor", min(binlogs, _FLOOR))
        begun, cpu = time.perf_counter(), time.process_time()
        storage = Storage(folder)
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
        begun = time.perf_counter()
        storage = Storage(folder)
        print(
            f"clean start              {time.perf_counter() - begun:>12.2f} s, {storage.recovered} records read again"
        )
        storage.close()


def _fill(directory: Path, binlogs: int) -> None:
    log = ValueLog(directory, LogOptions(sync=False))
    prewrite = build.prewrite(START, b"t\x80\0\0\0\0\0\0\x2d_r\x80\0\0\0\0\0\0\1", os.urandom(150))
    payloads = list[bytes]()
    for number in range(binlogs // 2):
        start = START + 4 * number
        prewrite.start_ts = start
        payloads += (prewrite.SerializeToString(), build.commit(prewrite, start + 1).SerializeToString())
        if len(payloads) >= _BATCH:
            log.append(payloads, start + 1)
            payloads = []
    if payloads:
        log.append(payloads, START + 4 * (binlogs // 2) - 3)
    log.close()


def _floor(directory: Path, count: int) -> float:
    index = Index(directory)
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
