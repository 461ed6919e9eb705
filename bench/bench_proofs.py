"""`make bench-proofs`: R proved each second by TiKV, beside the floor: the same R stored where they are trusted.

`python bench/bench_proofs.py ROLLBACKS` (20,000). TiKV is the tests' fake in a process of its own, on loopback; the
figures are CPU of the pump's process, which is what a busy machine does not hide. That all are proved by one question
each and one write together is asserted in tests/pump_service/pump/test_resolver_tikv.py.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.fake_tikv import FakeTikv

from binlake import tso
from binlake.cluster.source.regions import RegionClient
from binlake.cluster.source.tikv import TikvStatus
from binlake.wire import build
from pump_service.pump.resolver import NoStatusSource, Resolver
from pump_service.pump.storage import Storage, StorageOptions

BEGIN = tso.compose(1_000_000_000)


@dataclass(frozen=True)
class Rate:
    """Seconds of CPU, and of the clock, that `count` R took."""

    count: int
    cpu_s: float
    wall_s: float

    def __str__(self) -> str:
        cpu = 1e6 * self.cpu_s / self.count
        return f"{cpu:8.1f} us of CPU each, {self.count / self.cpu_s:9.0f}/s a core, {self.count / self.wall_s:9.0f}/s"


def serve(pipe: Connection) -> None:
    """A TiKV until the pipe is closed."""
    tikv = FakeTikv(safe_point=BEGIN - 1)
    pipe.send(tikv.start_quickly())
    pipe.recv()


def prove(folder: Path, count: int) -> Rate:
    """Store `count` P with their R, then prove all."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    regions = RegionClient([f"http://{ours.recv()}"])
    storage = Storage(folder, StorageOptions(trust_rollbacks=False))
    fill(storage, count)
    resolver = Resolver(storage, NoStatusSource(), clock=lambda: BEGIN + (count << 20), tikv=TikvStatus(regions, "p"))
    cpu, wall = time.process_time(), time.perf_counter()
    while storage.count_unmatched()[0]:
        resolver.verify_rollbacks()
        time.sleep(0.001)  # the disk, not another round, ends those that are proved
    rate = Rate(count, time.process_time() - cpu, time.perf_counter() - wall)
    resolver.close()
    storage.close()
    ours.send(None)
    process.join(20)
    return rate


def trust(folder: Path, count: int) -> Rate:
    """The floor: as many R stored by `end_all` alone, nobody asked."""
    storage = Storage(folder, StorageOptions(trust_rollbacks=False))
    fill(storage, count)
    starts = [entry.start_ts for entry in storage.doubted_prewrites()]
    cpu, wall = time.process_time(), time.perf_counter()
    storage.end_all([(start, None, b"") for start in starts])
    while storage.count_unmatched()[0]:
        time.sleep(0.001)
    rate = Rate(count, time.process_time() - cpu, time.perf_counter() - wall)
    storage.close()
    return rate


def fill(storage: Storage, count: int) -> None:
    """`count` P and their R, all waiting for a proof."""
    stored = []
    for number in range(count):
        prewrite = build.prewrite(BEGIN + number, b"t" + number.to_bytes(8, "big") + b"_r" + bytes(8), bytes(100))
        stored += [storage.append(prewrite.SerializeToString())]
        stored += [storage.append(build.rollback(prewrite).SerializeToString())]
    for one in stored:
        one.result()
    while len(storage.doubted_prewrites()) < count:
        time.sleep(0.001)


def main(count: int) -> int:
    """Print both."""
    with tempfile.TemporaryDirectory() as folder:
        floor, proved = trust(Path(folder) / "floor", count), prove(Path(folder) / "proved", count)
    print(f"floor, stored alone  {floor}\nproved by TiKV       {proved}")
    print(f"ratio of CPU         {proved.cpu_s / floor.cpu_s:8.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000))
