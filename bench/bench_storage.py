"""The pump's storage compared with the floors of this machine: `python bench/bench_storage.py [WRITES]`, no network.

Writes/s and CPU per write (all threads: group commit, index, sorter) of 200-byte P and C with fsync; the floor is raw
append and fdatasync of the same bytes in the same batches. Transactions pulled per second; the floor is raw reading of
the same files.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import structlog

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.pump_calls import pull_batches

from binlake.pump_service.pump.command import tune
from binlake.pump_service.pump.storage import PumpStorage
from binlake.wire import build

VALUE = os.urandom(150)
_WINDOW = 256  # calls in flight, as 256 writers would have


def main(writes: int) -> None:
    tune()
    structlog.configure(processors=[lambda *_: (_ for _ in ()).throw(structlog.DropEvent)])
    with tempfile.TemporaryDirectory(dir=os.environ.get("BINLAKE_BENCH_DIR")) as name:
        payloads = _build_payloads(writes)
        size = sum(map(len, payloads)) + 16 * writes
        floor = _append_raw(Path(name) / "floor", payloads)
        storage = PumpStorage(Path(name) / "pump")
        seconds, cpu, indexed = _write(storage, payloads)
        print(f"raw append + fdatasync   {writes / floor:>10,.0f} records/s (batches of {_WINDOW})")
        print(
            f"write                    {writes / seconds:>10,.0f} writes/s, {cpu / writes * 1e6:.1f} us CPU per write,"
            f" {floor / seconds:.0%} of the floor; indexed {indexed - seconds:.2f} s later"
        )
        raw = min(_read_raw(Path(name) / "pump" / "value") for _ in range(3))
        took = min(_pull(storage, writes // 2) for _ in range(3))
        print(f"raw read                 {size / raw / 1e6:>10,.0f} MB/s")
        print(
            f"pull                     {writes / 2 / took:>10,.0f} transactions/s = {writes / took:,.0f} binlogs/s,"
            f" {size / took / 1e6:,.0f} MB/s, {raw / took:.0%} of the floor"
        )
        more = _build_payloads(writes, writes // 2)
        shared = _write_during_pull(storage, more)
        print(f"write during a pull      {writes / shared:>10,.0f} writes/s, {seconds / shared:.0%} of alone")
        storage.close()


def _build_payloads(writes: int, first: int = 0) -> list[bytes]:
    start, payloads = 470614287839920132, list[bytes]()
    for number in range(first, first + writes // 2):
        prewrite = build.build_prewrite(start + 4 * number, b"t\x80\0\0\0\0\0\0\x2d_r\x80\0\0\0\0\0\0\1", VALUE)
        payloads += (
            prewrite.SerializeToString(),
            build.build_commit(prewrite, start + 4 * number + 1).SerializeToString(),
        )
    return payloads


def _append_raw(path: Path, payloads: list[bytes]) -> float:
    begun = time.perf_counter()
    with path.open("ab", buffering=0) as file:
        for at in range(0, len(payloads), _WINDOW):
            file.write(b"".join(payloads[at : at + _WINDOW]))
            os.fdatasync(file.fileno())
    return time.perf_counter() - begun


def _write(storage: PumpStorage, payloads: list[bytes]) -> tuple[float, float, float]:
    """Return the seconds until all is durable, the CPU seconds, and the seconds until all is indexed."""
    free = threading.Semaphore(_WINDOW)

    def on_done(error: Exception | None) -> None:
        assert error is None
        free.release()

    begun, cpu = time.perf_counter(), time.process_time()
    for payload in payloads:
        free.acquire()
        storage.submit(payload, on_done)
    for _ in range(_WINDOW):
        free.acquire()
    seconds = time.perf_counter() - begun
    while storage.count_unmatched()[0] or storage.index_lag or storage.watermark < storage.max_ts:
        time.sleep(0.01)
    return seconds, time.process_time() - cpu, time.perf_counter() - begun


def _write_during_pull(storage: PumpStorage, payloads: list[bytes]) -> float:
    """Return the seconds until all is durable while one stream repeatedly pulls everything (MISSION S0-52)."""
    ended = threading.Event()

    def pull_repeatedly() -> None:
        while not ended.is_set():
            last = storage.watermark
            for batch in pull_batches(storage, 0, ended.is_set):
                if batch[-1][1] >= last:
                    break  # from the beginning again

    reader = threading.Thread(target=pull_repeatedly)
    reader.start()
    seconds = _write(storage, payloads)[0]
    ended.set()
    storage.wake()
    reader.join()
    return seconds


def _read_raw(directory: Path) -> float:
    begun = time.perf_counter()
    for path in directory.iterdir():
        with path.open("rb", buffering=0) as file:
            while file.read(4 << 20):
                pass
    return time.perf_counter() - begun


def _pull(storage: PumpStorage, count: int) -> float:
    begun, pulled = time.perf_counter(), 0
    for batch in pull_batches(storage, 0, lambda: False):
        pulled += len(batch)
        if pulled >= count:
            return time.perf_counter() - begun
    raise AssertionError("the pull ended early")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 400_000)
