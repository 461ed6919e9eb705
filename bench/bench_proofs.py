"""`make bench-proofs`: rollback binlogs (R) verified per second by TiKV, compared with storing the same R unverified.

`python bench/bench_proofs.py ROLLBACKS` (20,000). TiKV is the tests' fake in a separate process, on loopback. The
figures are CPU of the pump's process, because other load on the machine distorts them least. That each R takes one
request, and all together one write, is asserted in tests/pump_service/pump/test_resolver_tikv.py.
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
from binlake.pump_service.pump.clients import NoStatusSource
from binlake.pump_service.pump.outcomes import Resolver
from binlake.pump_service.pump.storage import PumpStorage, StorageOptions
from binlake.wire import build

BEGIN = tso.compose(1_000_000_000)


@dataclass(frozen=True)
class Rate:
    """CPU seconds and wall-clock seconds that `count` R took."""

    count: int
    cpu_s: float
    wall_s: float

    def __str__(self) -> str:
        cpu = 1e6 * self.cpu_s / self.count
        return f"{cpu:8.1f} us of CPU each, {self.count / self.cpu_s:9.0f}/s a core, {self.count / self.wall_s:9.0f}/s"


def serve(pipe: Connection) -> None:
    """Run a fake TiKV until a message arrives on the pipe."""
    tikv = FakeTikv(safe_point=BEGIN - 1)
    pipe.send(tikv.start_quickly())
    pipe.recv()


def prove(folder: Path, count: int) -> Rate:
    """Store `count` P with their R, then verify all R."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    regions = RegionClient([f"http://{ours.recv()}"])
    storage = PumpStorage(folder, StorageOptions(trust_rollbacks=False))
    fill(storage, count)
    resolver = Resolver(storage, NoStatusSource(), clock=lambda: BEGIN + (count << 20), tikv=TikvStatus(regions, "p"))
    cpu, wall = time.process_time(), time.perf_counter()
    while storage.count_unmatched()[0]:
        resolver.verify_rollbacks()
        time.sleep(0.001)  # verified R end when their write is durable; another round would not speed that up
    rate = Rate(count, time.process_time() - cpu, time.perf_counter() - wall)
    resolver.close()
    storage.close()
    ours.send(None)
    process.join(20)
    return rate


def trust(folder: Path, count: int) -> Rate:
    """The floor: store as many R with `end_all` alone, without asking TiKV."""
    storage = PumpStorage(folder, StorageOptions(trust_rollbacks=False))
    fill(storage, count)
    starts = [entry.start_ts for entry in storage.list_doubted_prewrites()]
    cpu, wall = time.process_time(), time.perf_counter()
    storage.end_all([(start, None, b"") for start in starts])
    while storage.count_unmatched()[0]:
        time.sleep(0.001)
    rate = Rate(count, time.process_time() - cpu, time.perf_counter() - wall)
    storage.close()
    return rate


def fill(storage: PumpStorage, count: int) -> None:
    """Store `count` P and their R, all waiting to be verified."""
    stored = []
    for number in range(count):
        prewrite = build.build_prewrite(BEGIN + number, b"t" + number.to_bytes(8, "big") + b"_r" + bytes(8), bytes(100))
        stored += [storage.append(prewrite.SerializeToString())]
        stored += [storage.append(build.build_rollback(prewrite).SerializeToString())]
    for future in stored:
        future.result()
    while len(storage.list_doubted_prewrites()) < count:
        time.sleep(0.001)


def main(count: int) -> int:
    """Print the cost of both, and their ratio."""
    with tempfile.TemporaryDirectory() as folder:
        floor, proved = trust(Path(folder) / "floor", count), prove(Path(folder) / "proved", count)
    print(f"floor, only stored   {floor}\nverified by TiKV     {proved}")
    print(f"ratio of CPU         {proved.cpu_s / floor.cpu_s:8.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000))
