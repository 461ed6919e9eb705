"""PumpClient: round robin for P, the same pump for its C and R, clear errors (tidb-binlog 4)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc
import pytest

from binlake.errors import ConfigError, Permanent, SourceUnavailable
from binlake.pumpclient import PumpClient
from binlake.pumpclient.writer import WriteTimes
from binlake.wire import build, pump_pb2, pump_pb2_grpc
from binlake.wire.binlog_pb2 import Binlog, Commit, Prewrite, Rollback

QUICK = WriteTimes(write_timeout=0.5, commit_timeout=0.5, retry_prewrite=0.01, retry_commit=0.05)


class StubPump(pump_pb2_grpc.PumpServicer):
    """Takes everything, or fails as told."""

    def __init__(self) -> None:
        self.got: list[Binlog] = []
        self.fails = 0
        self.code = grpc.StatusCode.UNKNOWN
        self.text = "pump is paused"
        self.errmsg = ""
        server = grpc.server(ThreadPoolExecutor(4))
        pump_pb2_grpc.add_PumpServicer_to_server(self, server)
        self.host = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        self.server = server
        server.start()

    def WriteBinlog(self, request: pump_pb2.WriteBinlogReq, context: grpc.ServicerContext) -> pump_pb2.WriteBinlogResp:
        if self.fails:
            self.fails -= 1
            context.abort(self.code, self.text)
        if not self.errmsg:
            self.got.append(Binlog.FromString(request.payload))
        return pump_pb2.WriteBinlogResp(errmsg=self.errmsg)

    def types(self) -> list[int]:
        return [binlog.tp for binlog in self.got]


@dataclass
class Node:
    node_id: str
    host: str
    state: str = "online"


@dataclass
class Listing:
    """A registry with a fixed list."""

    nodes: list[Node] = field(default_factory=list)
    down: bool = False

    def pumps(self) -> list[Node]:
        if self.down:
            raise SourceUnavailable("no registry")
        return self.nodes


@dataclass
class Pumps:
    """Three stub pumps and a client of them."""

    stubs: list[StubPump]
    listing: Listing
    client: PumpClient

    def counts(self) -> list[int]:
        return [len(stub.got) for stub in self.stubs]


@pytest.fixture
def pumps() -> Iterator[Pumps]:
    stubs = [StubPump() for _ in range(3)]
    listing = Listing([Node(f"pump{n}", stub.host) for n, stub in enumerate(stubs)])
    with PumpClient(listing, 7, times=QUICK) as client:
        yield Pumps(stubs, listing, client)
    for stub in stubs:
        stub.server.stop(0).wait()


def p(start_ts: int) -> Binlog:
    return build.prewrite(start_ts, b"k", b"\x08\x17")


def test_prewrites_go_round_and_the_end_goes_where_the_prewrite_went(pumps: Pumps) -> None:
    placed = {ts: pumps.client.write_prewrite(p(ts)) for ts in range(1, 7)}
    assert list(placed.values()) == ["pump0", "pump1", "pump2"] * 2
    for ts in (6, 5, 4, 3):
        assert pumps.client.write_commit(build.commit(p(ts), ts + 100)) == placed[ts]
    for ts in (2, 1):
        assert pumps.client.write_rollback(build.rollback(p(ts))) == placed[ts]
    assert [stub.types() for stub in pumps.stubs] == [
        [Prewrite, Prewrite, Commit, Rollback],
        [Prewrite, Prewrite, Commit, Rollback],
        [Prewrite, Prewrite, Commit, Commit],
    ]


def test_a_prewrite_tries_the_next_pump_and_its_end_follows(pumps: Pumps) -> None:
    pumps.stubs[0].fails = 1
    assert pumps.client.write_prewrite(p(1)) == "pump1"
    assert pumps.client.write_commit(build.commit(p(1), 2)) == "pump1"
    assert pumps.counts() == [0, 2, 0]


def test_a_commit_is_tried_again_on_its_pump_and_nowhere_else(pumps: Pumps) -> None:
    pumps.client.write_prewrite(p(1))
    pumps.stubs[0].fails = 2
    assert pumps.client.write_commit(build.commit(p(1), 2)) == "pump0"
    assert pumps.counts() == [2, 0, 0]


def test_a_pump_that_moved_to_another_port_is_found(pumps: Pumps) -> None:
    pumps.client.write_prewrite(p(1))
    pumps.stubs[0].server.stop(0).wait()
    moved = StubPump()
    pumps.listing.nodes[0].host = moved.host
    assert pumps.client.write_commit(build.commit(p(1), 2)) == "pump0"
    assert moved.types() == [Commit]
    moved.server.stop(0).wait()


def test_an_end_that_its_pump_never_takes_is_an_error(pumps: Pumps) -> None:
    pumps.client.write_prewrite(p(1))
    pumps.stubs[0].fails = 1000
    with pytest.raises(SourceUnavailable, match="pump=pump0 start_ts=1"):
        pumps.client.write_commit(build.commit(p(1), 2))


def test_an_end_without_its_prewrite_is_an_error(pumps: Pumps) -> None:
    with pytest.raises(Permanent, match="wrote no prewrite"):
        pumps.client.write_rollback(build.rollback(p(1)))


def test_an_end_goes_to_the_named_pump_when_another_client_wrote_the_prewrite(pumps: Pumps) -> None:
    assert pumps.client.write_rollback(build.rollback(p(1)), "pump2") == "pump2"
    assert pumps.counts() == [0, 0, 1]


def test_only_online_pumps_get_prewrites(pumps: Pumps) -> None:
    pumps.listing.nodes[0].state = pumps.listing.nodes[2].state = "paused"
    assert {pumps.client.write_prewrite(p(ts)) for ts in range(1, 4)} == {"pump1"}
    pumps.listing.nodes.clear()
    with PumpClient(pumps.listing, 7, times=QUICK) as client, pytest.raises(SourceUnavailable, match="no pump took"):
        client.write_prewrite(p(9))


def test_after_ten_errors_in_a_row_a_pump_is_left_alone(pumps: Pumps) -> None:
    pumps.stubs[0].fails = 11
    for ts in range(1, 40):
        pumps.client.write_prewrite(p(ts))
    assert pumps.stubs[0].fails == 0
    assert pumps.counts()[0] == 0


def test_an_error_message_in_the_answer_counts_as_an_error(pumps: Pumps) -> None:
    pumps.stubs[0].errmsg = "no space"
    assert pumps.client.write_prewrite(p(1)) == "pump1"


def test_another_cluster_is_refused_at_once(pumps: Pumps) -> None:
    pumps.stubs[0].fails, pumps.stubs[0].text = 1, "mismatched cluster id"
    with pytest.raises(ConfigError, match="cluster id"):
        pumps.client.write_prewrite(p(1))


def test_a_binlog_too_large_is_not_sent_again(pumps: Pumps) -> None:
    pumps.stubs[0].fails, pumps.stubs[0].code = 1, grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(Permanent, match="too large"):
        pumps.client.write_prewrite(p(1))


def test_known_pumps_are_used_while_the_registry_is_away(pumps: Pumps) -> None:
    pumps.client.write_prewrite(p(1))
    pumps.listing.down = True
    pumps.stubs[1].fails = 1  # an error makes the client list again
    assert pumps.client.write_prewrite(p(2)) == "pump2"
    with PumpClient(pumps.listing, 7, times=QUICK) as fresh, pytest.raises(SourceUnavailable, match="no registry"):
        fresh.write_prewrite(p(3))


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(ConfigError, match="strategy"):
        PumpClient(Listing(), 7, strategy="hash")


def test_concurrent_writers_lose_and_double_nothing(pumps: Pumps) -> None:
    def run(start: int) -> None:
        for ts in range(start, start + 50):
            pumps.client.write_prewrite(p(ts))
            pumps.client.write_commit(build.commit(p(ts), ts + 10_000))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(1000, 1200, 50)))
    for stub in pumps.stubs:
        prewritten = [binlog.start_ts for binlog in stub.got if binlog.tp == Prewrite]
        assert sorted(prewritten) == sorted(binlog.start_ts for binlog in stub.got if binlog.tp == Commit)
    assert sum(pumps.counts()) == 400
