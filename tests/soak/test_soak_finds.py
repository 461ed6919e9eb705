"""The soak can fail: it detects the errors that it is meant to detect."""

from __future__ import annotations

import signal
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from soak_checker import Checker, Ledger, until, verify
from soak_cluster import Cluster

from binlake import tso
from binlake.cluster.placement import EtcdClient, NodeRegistry, PdClient
from binlake.cluster.pumpclient import PumpClient
from binlake.errors import WireError
from binlake.pump_service.statusport import StatusJobs, StatusServer
from binlake.testkit.workload.runner import Runner
from binlake.testkit.workload.source import LiveTransactions, SharedClock
from binlake.testkit.workload.spec import Spec

LEDGER = Ledger(acked={1: 11, 2: 22, 3: 33}, committed={1: 10, 2: 20})
RIGHT = {1: (10, 11), 2: (20, 22)}


def test_a_correct_run_passes() -> None:
    verify(LEDGER, RIGHT)


@pytest.mark.parametrize(
    ("taken", "says"),
    [
        ({1: (10, 11)}, "1 lost"),
        ({**RIGHT, 3: (30, 33)}, "1 were not committed"),
        ({**RIGHT, 2: (21, 22)}, "1 lost"),
        ({**RIGHT, 2: (20, 99)}, "1 changed"),
    ],
)
def test_a_lost_an_invented_and_a_changed_binlog_are_detected(taken: dict[int, tuple[int, int]], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        verify(LEDGER, taken)


def finish(checker: Checker, ledger: Ledger) -> None:
    checker.finish(5)
    verify(ledger, checker.taken)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_acked_binlogs_cut_from_the_log_are_reported_as_lost(tmp_path: Path) -> None:
    # The converse of DESIGN 3.1: a pump that lost acked binlogs must not appear complete.
    transactions, history, ledger = LiveTransactions(), StatusJobs(), Ledger()
    with ExitStack() as stack:
        status = stack.enter_context(StatusServer({}, history, transactions, lambda: tso.MAX_TS))
        cluster = stack.enter_context(Cluster(tmp_path, status.url))
        pump = cluster.add_pump()
        assert pump.serves.wait(180)
        pd = stack.enter_context(closing(PdClient([cluster.url])))
        registry = NodeRegistry(stack.enter_context(closing(EtcdClient([cluster.url]))))
        clock = stack.enter_context(closing(SharedClock(pd)))
        client = stack.enter_context(PumpClient(registry, cluster.driver.cluster_id))
        Runner(Spec(transactions=100), client, clock.fetch_ts, transactions, history, ledger).run()
        assert client.drain(120) == 0
        pump.end(signal.SIGKILL)
        segment = pump.last_segment()
        assert segment is not None
        with segment.open("r+b") as file:
            file.truncate(segment.stat().st_size // 2)
        pump.start()
        assert pump.serves.wait(180)
        checker = Checker(pd, registry)
        checker.start()
        with pytest.raises((AssertionError, WireError)):
            finish(checker, ledger)
        checker.stop()
    until(lambda: not pump.runs, "the pump is gone")
