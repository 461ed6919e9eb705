"""kill -9 at any point: afterwards every acked binlog is stored, and no other (MISSION S0-48, invariant 1)."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import plyvel
import pytest
from pump_cluster import CLUSTER_ID
from pump_helpers import prewrite, settled, until

from binlake import tso
from binlake.pump_service.pump.index import encode_ts_key
from binlake.pump_service.pump.storage import PumpStorage
from binlake.wire import build
from binlake.wire.binlog_pb2 import Binlog
from binlake.wire.pump_pb2 import WriteBinlogReq, WriteBinlogResp

pytestmark = pytest.mark.process

CHILD = Path(__file__).with_name("pump_child.py")
KILLS = int(os.environ.get("BINLAKE_CRASH_KILLS", "6"))
SEED = int(os.environ.get("BINLAKE_CRASH_SEED", "20261121"))


@contextlib.contextmanager
def child(data_dir: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A pump in a separate process; killed with SIGKILL at the end."""
    command = [sys.executable, str(CHILD), str(data_dir), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = (line.strip() for line in process.stdout)
        yield process, next(line for line in lines if line.startswith("127.0.0.1:"))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def kill_at_start(data_dir: Path, after_s: float) -> None:
    """A pump that is killed `after_s` seconds after its process began."""
    with subprocess.Popen([sys.executable, str(CHILD), str(data_dir)], stdout=subprocess.DEVNULL) as process:
        time.sleep(after_s)
        process.kill()


@dataclass
class Clock:
    """Timestamps of the writers; their logical part distinguishes them from the pump's fakes."""

    logical: Iterator[int] = field(default_factory=lambda: itertools.count(100_000))

    def now(self) -> int:
        return tso.compose(int(time.time() * 1000), next(self.logical))


@dataclass
class Ledger:
    """What the writers sent and what was acked, over all runs of the pump."""

    sent: dict[int, bytes] = field(default_factory=dict)
    acked_prewrites: set[int] = field(default_factory=set)
    acked_commits: dict[int, int] = field(default_factory=dict)


def run_writer(address: str, clock: Clock, ledger: Ledger) -> None:
    """Write transactions until the pump is killed; a commit_ts is fetched after the ack of its P."""
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            "/binlog.Pump/WriteBinlog", WriteBinlogReq.SerializeToString, WriteBinlogResp.FromString
        )

        def write(binlog: Binlog) -> None:
            call(WriteBinlogReq(clusterID=CLUSTER_ID, payload=binlog.SerializeToString()), timeout=60)

        with contextlib.suppress(grpc.RpcError):
            while True:
                start_ts = clock.now()
                binlog = prewrite(start_ts, os.urandom(30))
                ledger.sent[start_ts] = binlog.prewrite_value
                write(binlog)
                ledger.acked_prewrites.add(start_ts)
                commit_ts = clock.now()
                write(build.build_commit(binlog, commit_ts))
                ledger.acked_commits[start_ts] = commit_ts


def load(address: str, clock: Clock, ledger: Ledger) -> list[threading.Thread]:
    writers = [threading.Thread(target=run_writer, args=(address, clock, ledger)) for _ in range(4)]
    for writer in writers:
        writer.start()
    return writers


def verify(data_dir: Path, ledger: Ledger) -> int:
    """Check that every acked binlog is stored and no other; return the pulled transactions."""
    storage = PumpStorage(data_dir)
    open_prewrites = {entry.start_ts for entry in storage.list_waiting_prewrites()}
    for start_ts in ledger.acked_prewrites:
        pointer = storage.index.find_pointer(start_ts)
        assert pointer is not None, f"acked P {start_ts} is lost"
        assert Binlog.FromString(storage.read(pointer)).prewrite_value == ledger.sent[start_ts]
    for start_ts in open_prewrites:  # so that the watermark passes all acked binlogs
        storage.append(build.build_rollback(prewrite(start_ts)).SerializeToString()).result()
    storage.append(build.build_fake(tso.compose(int(time.time() * 1000) + 1000)).SerializeToString()).result()
    until(lambda: storage.count_unmatched()[0] == 0, "nothing waits")
    until(lambda: storage.watermark >= max(ledger.acked_commits.values()), "watermark")
    committed = {}
    for start_ts, commit_ts, payload in settled(storage):
        if start_ts != commit_ts:
            committed[start_ts] = commit_ts
            # no binlog is invented or mixed up
            assert Binlog.FromString(payload).prewrite_value == ledger.sent[start_ts]
    assert ledger.acked_commits.items() <= committed.items()
    assert (storage.counters.late_commits, storage.counters.early_commits) == (0, 0)
    storage.close()
    return len(committed)


def test_no_acked_binlog_is_lost_over_many_kills(tmp_path: Path) -> None:
    # U-32, S0-48; repeat a run with BINLAKE_CRASH_SEED
    print(f"BINLAKE_CRASH_SEED={SEED}")
    chance, clock, ledger = random.Random(SEED), Clock(), Ledger()
    for life in range(KILLS):
        if life % 5 == 4:  # killed during recovery
            kill_at_start(tmp_path, chance.uniform(0.2, 0.7))
        with child(tmp_path) as (process, address):
            writers, wanted = load(address, clock, ledger), len(ledger.acked_commits) + 3
            if life % 3:  # otherwise at the earliest possible time: on a slow disk before the first ack
                until(lambda wanted=wanted: len(ledger.acked_commits) >= wanted, "acks")
            time.sleep(chance.uniform(0.0, 0.3))
            process.kill()
            for writer in writers:
                writer.join()
    assert len(ledger.acked_commits) > KILLS
    assert verify(tmp_path, ledger) >= len(ledger.acked_commits)


def test_start_repairs_a_crash_between_fsync_and_index(tmp_path: Path) -> None:
    # S0-48: a crash point injected between fsync and index.
    clock, ledger = Clock(), Ledger()
    with child(tmp_path) as (process, address):
        writers = load(address, clock, ledger)
        until(lambda: len(ledger.acked_commits) > 5, "a first load is indexed")
        process.kill()
        for writer in writers:
            writer.join()
    first = len(ledger.acked_commits)
    with child(tmp_path, "--index-never-written") as (process, address):
        writers = load(address, clock, ledger)
        until(lambda: len(ledger.acked_commits) > first + 20, "binlogs are acked without an index")
        process.kill()
        for writer in writers:
            writer.join()
    with plyvel.DB(str(tmp_path / "kv")) as index:
        assert index.get(encode_ts_key(max(ledger.acked_commits.values()))) is None, (
            "the crash came too late to prove anything"
        )
    assert verify(tmp_path, ledger) >= first + 20
