"""The pump's storage at scale: `python bench/soak_storage.py [BINLOGS]` (default 5,000,000; some minutes and GB).

A first process stores that many P and C after one P that never commits (the worst case for a start), then one
transaction of 200 MiB, and exits without closing the storage. A second process starts from these files. Printed: the
seconds of that start, whether the watermark is right, how many transactions a pull returns, and resident memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import structlog

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.pump_calls import pull_batches

from binlake.pump_service.pump.storage import PumpStorage
from binlake.wire import build

VALUE = os.urandom(150)
START = 470614287839920132
HUGE = 200 << 20
_IN_FLIGHT = 512


def main(binlogs: int) -> None:
    with tempfile.TemporaryDirectory(dir=os.environ.get("BINLAKE_BENCH_DIR")) as name:
        for role in ("write", "start"):
            begun = time.perf_counter()
            subprocess.run([sys.executable, __file__, role, name, str(binlogs)], check=True)
            print(f"process '{role}' took {time.perf_counter() - begun:,.0f} s", flush=True)


def write(directory: Path, binlogs: int) -> None:
    """The first process; it exits without closing the storage."""
    storage = PumpStorage(directory)
    print_memory("empty")
    free = threading.Semaphore(_IN_FLIGHT)

    def on_done(error: Exception | None) -> None:
        assert error is None
        free.release()

    def submit(payload: bytes) -> None:
        free.acquire()
        storage.submit(payload, on_done)

    submit(build.build_prewrite(START, b"never ended", VALUE).SerializeToString())
    for number in range(1, binlogs // 2 + 1):
        prewrite = build.build_prewrite(START + 4 * number, b"t\x80\0\0\0\0\0\0\x2d_r\x80\0\0\0\0\0\0\1", VALUE)
        submit(prewrite.SerializeToString())
        submit(build.build_commit(prewrite, START + 4 * number + 1).SerializeToString())
        if number % (binlogs // 10) == 0:
            print_memory(f"{2 * number:,} binlogs")
    while storage.index_lag or storage.count_unmatched()[0] > 1:
        time.sleep(0.05)
    time.sleep(1.5)  # a binlog more than a second later moves the head, as any fake binlog does
    submit(build.build_fake(START + 2 * binlogs + 8).SerializeToString())
    time.sleep(1.5)
    submit(build.build_fake(START + 2 * binlogs + 9).SerializeToString())
    storage.append(_build_huge_payload(START + 2 * binlogs + 10)).result()
    print_memory(f"with a transaction of {HUGE >> 20} MiB")
    commit = build.build_commit(build.build_prewrite(START + 2 * binlogs + 10, b"huge"), START + 2 * binlogs + 11)
    storage.append(commit.SerializeToString()).result()
    os._exit(0)


def _build_huge_payload(start_ts: int) -> bytes:
    """Return a P of 200 MiB, and reset the memory peak, which is measured from here on."""
    small = build.build_prewrite(start_ts, b"huge", b"h").SerializeToString()
    at = small.index(b"\x2a\x01h")
    length = b"\x2a\x80\x80\x80\x64"  # 200 << 20 as a varint
    payload = b"".join((small[:at], length, bytes(HUGE), small[at + 3 :]))
    Path("/proc/self/clear_refs").write_text("5")
    return payload


def start(directory: Path, binlogs: int) -> None:
    """The second process: measure the start and check that no transaction is missing."""
    begun = time.perf_counter()
    storage = PumpStorage(directory)
    took = time.perf_counter() - begun
    waits = storage.count_unmatched()
    right = waits == (1, START) and storage.watermark == 0
    print(f"start-up {took:.2f} s; one prewrite waits and the watermark is before it: {right}", flush=True)
    print_memory("started")
    storage.end(START, None)
    last = START + 2 * binlogs + 11
    while storage.watermark < last:
        time.sleep(0.01)
    begun, count, ts = time.perf_counter(), 0, 0
    for batch in pull_batches(storage, 0, lambda: False):
        assert ts < batch[0][1]
        count, ts = count + len(batch), batch[-1][1]
        if ts == last:
            break
    seconds = time.perf_counter() - begun
    complete = count == binlogs // 2 + 3
    print(f"pulled {count:,} transactions in {seconds:.1f} s, {count / seconds:,.0f} /s; complete: {complete}")
    print_memory("pulled")
    storage.close()


def print_memory(what: str) -> None:
    """Print the current and the peak resident memory."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    now, peak = (int(status[key].split()[0]) // 1024 for key in ("VmRSS", "VmHWM"))
    print(f"  {what:<40} RSS {now:>5} MiB, peak {peak:>5} MiB", flush=True)


if __name__ == "__main__":
    structlog.configure(processors=[lambda *_: (_ for _ in ()).throw(structlog.DropEvent)])
    words = sys.argv[1:]
    if words and words[0] in ("write", "start"):
        {"write": write, "start": start}[words[0]](Path(words[1]), int(words[2]))
    else:
        main(int(words[0]) if words else 5_000_000)
