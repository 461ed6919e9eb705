"""No binlog is lost, doubled or invented, whatever fails: pumps, disks, the placement driver, clocks, writers.

Each committed transaction is pulled once, in commit_ts order, with the bytes of its P; no uncommitted one is (DESIGN
3.1 to DESIGN 3.4, MISSION S0-10, S0-11, S0-48). The faults follow from a seed; each run prints the line that replays
it.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from simulator.faults.kinds import Kind
from soak_chaos import Chaos
from soak_checker import Checker, Ledger, until, verify
from soak_cluster import Cluster

from binlake import tso
from binlake.cluster.placement import EtcdClient, NodeRegistry, PdClient
from binlake.cluster.pumpclient import ClientOptions, PumpClient, WriteTimes
from binlake.pump_service.statusport import StatusJobs, StatusServer
from binlake.testkit.workload.runner import Runner
from binlake.testkit.workload.source import LiveTransactions, SharedClock
from binlake.testkit.workload.spec import Faults, Spec

pytestmark = [pytest.mark.process, pytest.mark.e2e]

FAULTS = {
    Kind.KILL_TAIL, Kind.PAUSE, Kind.FREEZE, Kind.FULL_DISK, Kind.CLOCK, Kind.PD_DOWN, Kind.JOIN, Kind.LEAVE,
}  # fmt: skip
ODD = Faults(rollback=0.05, lose_commit=0.02, lose_rollback=0.02, hold=0.05, double=0.03)


def run(folder: Path, seed: int, seconds: float, strategy: str, rate: float = 300) -> None:
    print(f"replay: BINLAKE_SOAK_SEED={seed} BINLAKE_SOAK_SECONDS={seconds:g} .venv/bin/python -m pytest {__file__} "
          f"-m 'soak or not soak' -k {strategy}")  # fmt: skip
    began = time.monotonic()
    spec = Spec(seed=seed, seconds=1e9, tables=3, writers=6, rate=rate, ddl_every=300, row_bytes=200, faults=ODD)
    transactions, history, ledger = LiveTransactions(), StatusJobs(), Ledger()
    with ExitStack() as stack:
        status = stack.enter_context(StatusServer({"case": "soak"}, history, transactions, lambda: tso.MAX_TS))
        cluster = stack.enter_context(Cluster(folder, status.url))
        pd = stack.enter_context(closing(PdClient([cluster.url], timeout_s=3)))
        etcd = stack.enter_context(closing(EtcdClient([cluster.url], timeout_s=3)))
        registry = NodeRegistry(etcd)
        for _ in range(3):
            cluster.add_pump()
        until(lambda: len(registry.list_pumps()) == 3, "three pumps online")
        options = ClientOptions(strategy, times=WriteTimes(write_timeout=3, probe_interval=2))
        client = stack.enter_context(PumpClient(registry, cluster.driver.cluster_id, options))
        writer_pd = stack.enter_context(closing(PdClient([cluster.url], timeout_s=3)))
        clock = stack.enter_context(closing(SharedClock(writer_pd)))
        runner = Runner(spec, client, clock.fetch_ts, transactions, history, ledger)
        checker = Checker(stack.enter_context(closing(PdClient([cluster.url], timeout_s=3))), registry)

        def say(text: str) -> None:
            print(f"{time.monotonic() - began:7.1f} s  {text}; {len(ledger.committed)} committed, "
                  f"{len(checker.taken)} taken in {checker.windows} windows", flush=True)  # fmt: skip

        failures: list[BaseException] = []
        load = threading.Thread(target=_guarded, args=(runner, failures), daemon=True)
        load.start()
        checker.start()
        chaos = Chaos(cluster, transactions, pd, registry, seed, say)
        try:
            chaos.run(seconds)
        except BaseException as error:
            # now, not only after the last strategy
            say(f"FAILED: {error!r}")
            raise
        runner.stop()
        load.join(60)
        say("the load ended")
        assert not failures, failures
        assert client.drain(60) == 0
        checker.finish(90)
        say("all is taken")
        verify(ledger, checker.taken)
        for info in checker.infos():
            # A pump that was suspended may store a P whose writer has switched to another pump. Its commit_ts, fetched
            # after that pump's ack, is early here and complete there, as has just been verified.
            assert info.late_commits == 0, info
            assert info.early_commits == 0 or chaos.happened[Kind.FREEZE], info
        tally = runner.tally.counts
        print(f"faults {dict(chaos.happened)}\ntransactions {dict(tally)}\nclient {client.stats}")
        if seconds >= 30:
            # In a minute or less, a slow machine may skip a kind because too few pumps are healthy at its turn.
            assert len(FAULTS - set(chaos.happened)) <= (2 if seconds < 120 else 0)
            assert tally["commit"] > 10 * seconds
            assert min(tally[fate] for fate in ("rollback", "lose_commit", "lose_rollback", "hold", "double")) > 0


def _guarded(runner: Runner, failures: list[BaseException]) -> None:
    try:
        runner.run()
    except BaseException as error:  # noqa: BLE001 - the test raises it
        failures.append(error)


def setting(name: str, default: float) -> float:
    return float(os.environ.get(f"BINLAKE_SOAK_{name}", default))


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("strategy", ["range", "hash", "score"])
def test_no_binlog_is_lost_in_half_an_hour_of_faults(tmp_path: Path, strategy: str) -> None:
    seed = int(setting("SEED", time.time_ns() % 1_000_000))
    run(tmp_path, seed, setting("SECONDS", 600), strategy)
