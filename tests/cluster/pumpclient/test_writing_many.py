"""Many parallel prewrites, commits by another process, and the callback for a stored commit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from stub_pumps import Listing, Node, StubPump, until

from binlake.cluster.pumpclient import ClientOptions, PumpClient, WriteTimes
from binlake.errors import ConfigError, SourceUnavailable
from binlake.wire import build
from binlake.wire.binlog_pb2 import Binlog, Commit, Prewrite

OPTIONS = ClientOptions(times=WriteTimes(60, 60, 0.01, 0.05, probe_interval=0.05))


@pytest.fixture
def stubs() -> Iterator[list[StubPump]]:
    made = [StubPump() for _ in range(2)]
    yield made
    for stub in made:
        stub.server.stop(0).wait()


def listing(stubs: list[StubPump]) -> Listing:
    return Listing({f"pump{n}": Node(f"pump{n}", stub.host) for n, stub in enumerate(stubs)})


def prewrites(count: int) -> list[Binlog]:
    return [build.build_prewrite(start_ts, b"k", b"\x08\x17") for start_ts in range(1, count + 1)]


def test_each_prewrite_is_stored_once_and_its_commit_follows(stubs: list[StubPump]) -> None:
    stored: list[int] = []
    with PumpClient(listing(stubs), 7, OPTIONS, stored=stored.append) as client:
        names = client.write_prewrites(prewrites(300))
        assert [names.count(name) for name in ("pump0", "pump1")] == [150, 150]
        got = {binlog.start_ts: f"pump{n}" for n, stub in enumerate(stubs) for binlog in stub.got}
        assert [got[start_ts] for start_ts in range(1, 301)] == names
        for one in prewrites(300):
            client.send_commit(build.build_commit(one, one.start_ts + 1000))
        assert client.drain(60) == 0
        until(lambda: len(stored) == 300, "every commit is stored")
    assert sorted(stored) == list(range(1, 301))
    for n, stub in enumerate(stubs):
        ends = {binlog.start_ts for binlog in stub.got if binlog.tp == Commit}
        assert ends == {start_ts for start_ts, name in enumerate(names, 1) if name == f"pump{n}"}


def test_prewrites_refused_by_one_pump_go_to_another(stubs: list[StubPump]) -> None:
    # S0-39
    stubs[0].fails = 5
    with PumpClient(listing(stubs), 7, OPTIONS) as client:
        names = client.write_prewrites(prewrites(40))
        assert client.stats.prewrite_retries == 5
    got = sorted(binlog.start_ts for stub in stubs for binlog in stub.got if binlog.tp == Prewrite)
    assert got == list(range(1, 41))
    assert [sum(name == f"pump{n}" for name in names) for n in (0, 1)] == [len(stub.got) for stub in stubs]


def test_no_pump_and_another_cluster_are_errors(stubs: list[StubPump]) -> None:
    hasty = replace(OPTIONS, times=replace(OPTIONS.times, write_timeout=0.2))
    with PumpClient(Listing({}), 7, hasty) as client, pytest.raises(SourceUnavailable, match="no available pump"):
        client.write_prewrites(prewrites(2))
    stubs[0].errmsg = stubs[1].errmsg = "mismatched cluster id"
    with PumpClient(listing(stubs), 7, OPTIONS) as client, pytest.raises(ConfigError, match="different PDs"):
        client.write_prewrites(prewrites(2))


def test_new_process_sends_a_commit_to_the_named_pump(stubs: list[StubPump]) -> None:
    with PumpClient(listing(stubs), 7, OPTIONS) as client:
        (one,) = prewrites(1)
        client.send_commit(build.build_commit(one, 99), "pump1")
        assert client.drain(60) == 0
    assert [len(stub.got) for stub in stubs] == [0, 1]
