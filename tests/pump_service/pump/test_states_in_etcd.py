"""The same guards with the embedded registry and with a real etcd."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pump_cluster import MemoryCluster
from pump_helpers import until

from binlake.cluster.placement import EtcdClient, NodeRegistry, NodeStatus
from binlake.errors import Fenced, Permanent, WireError
from binlake.pump_service.pump.config import PumpConfig
from binlake.pump_service.pump.server import PumpServer


@pytest.fixture
def registry(etcd: EtcdClient) -> NodeRegistry:
    return NodeRegistry(etcd)


Start = Callable[[str], PumpServer]


@pytest.fixture
def start(tmp_path: Path, registry: NodeRegistry) -> Iterator[Start]:
    running: list[PumpServer] = []
    cluster = MemoryCluster()

    def started(folder: str) -> PumpServer:
        config = PumpConfig(
            data_dir=tmp_path / folder, addr="127.0.0.1:0", node_id="pump1", heartbeat_interval_s=0.05,
            stop_write_at_available_space=0,
        )  # fmt: skip
        pump = PumpServer(config, oracle=cluster, members=registry)
        pump.start()
        running.append(pump)
        return pump

    yield started
    for pump in running:
        pump.stop()


def test_the_entry_follows_the_pump_and_a_rival_is_refused(start: Start, registry: NodeRegistry) -> None:
    # S0-35, S0-37
    pump = start("one")
    first = registry.find_pump("pump1")
    assert first is not None
    assert (first.status.state, first.status.host) == ("online", pump.addr)
    until(lambda: (registry.find_pump("pump1") or first).revision > first.revision + 2, "heartbeats")
    with pytest.raises(Permanent, match="another pump serves under this node id"):
        start("two")
    registry.set_pump_state("pump1", "offline")
    until(lambda: registry.list_pumps()[0].state == "online", "a live pump's own state counts")
    pump.stop()
    assert registry.list_pumps()[0].state == "paused"


def test_a_closing_pump_leaves_after_its_consumer(start: Start, registry: NodeRegistry) -> None:
    # S0-33, R-05
    pump = start("one")
    registry.publish_drainer("binlake-x", 5)
    ended: list[str] = []
    thread = threading.Thread(target=lambda: ended.append(pump.serve()))
    thread.start()
    pump.request_leave("close")
    until(lambda: "binlake-x at 5" in str(pump.service.problems), "it waits")
    held: list[int] = []

    def follows() -> bool:
        # A late heartbeat shows less than the pump holds, so a consumer continues until there is no more.
        held.append(registry.list_pumps()[0].max_commit_ts)
        registry.publish_drainer("binlake-x", held[-1])
        return not thread.is_alive()

    until(follows, "it leaves", 120)
    assert ended == ["offline"]
    status = registry.list_pumps()[0]
    assert (status.state, status.max_commit_ts) == ("offline", held[-1])


def test_a_pump_that_lost_its_node_id_ends(start: Start, registry: NodeRegistry) -> None:
    pump = start("one")
    taken = NodeStatus("pump1", "10.9.9.9:1", "online")
    registry.put_pump(taken)
    with pytest.raises(Fenced):
        pump.serve()
    assert registry.list_pumps() == [taken]


def test_a_guarded_write_fails_after_any_other_write(registry: NodeRegistry) -> None:
    mine = NodeStatus("pump1", "h:1", "online")
    revision = registry.write_pump(mine, 0)
    assert revision
    assert registry.write_pump(mine, 0) == 0
    assert registry.write_pump(replace(mine, state="pausing"), revision) == revision + 1
    assert registry.write_pump(mine, revision) == 0
    assert registry.set_pump_state("pump1", "paused").state == "pausing"
    assert registry.write_pump(mine, revision + 1) == 0
    entry = registry.find_pump("pump1")
    assert entry is not None
    assert (entry.status.state, entry.revision) == ("paused", revision + 2)
    assert registry.find_pump("nobody") is None
    assert registry.find_drainer("nobody") is None


@pytest.mark.parametrize(
    "value", [NodeStatus("odd", "10.9.9.9:1", "paused").to_json(), b"\xff{"], ids=["entry", "dirt"]
)
def test_an_unreadable_key_under_pumps_does_not_stop_a_pump(start: Start, registry: NodeRegistry, value: bytes) -> None:
    registry._etcd.put(b"/tidb-binlog/v1/pumps/\xff\xfe", value)
    pump = start("one")
    assert pump.service.state == "online"
    until(lambda: "registry" not in str(pump.service.problems), "the pump writes its entry")
    if value.startswith(b"{"):
        assert {one.node_id for one in registry.list_pumps()} == {"odd", "pump1"}
    else:
        with pytest.raises(WireError, match=r"key=/tidb-binlog/v1/pumps/\\xff\\xfe"):
            registry.list_pumps()
