"""States and transitions of a pump: which pump may register, which may leave, and in which state (tidb-binlog 3.2)."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from pump_cluster import MemoryCluster
from pump_helpers import MakePump, commit, prewrite, until
from support.pump_calls import write_binlog

from binlake.cluster.placement import NodeStatus
from binlake.errors import Fenced, Permanent
from binlake.pump_service.pump.membership import Usage
from binlake.pump_service.pump.server import PumpServer
from binlake.pump_service.pump.service import State
from binlake.wire.binlog_pb2 import Binlog


class Serving:
    """A pump whose `serve` runs in a thread; `end` waits for it."""

    def __init__(self, pump: PumpServer) -> None:
        self.error: Exception | None = None
        self._pump = pump
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        try:
            self._pump.serve()
        except Fenced as error:
            self.error = error

    def end(self) -> None:
        self._thread.join(120)
        assert not self._thread.is_alive(), str(self._pump.service.problems)


def write(pump: PumpServer, cluster: MemoryCluster, *binlogs: Binlog) -> None:
    for binlog in binlogs:
        stored = write_binlog(pump.service, cluster.id, binlog.SerializeToString())
        assert stored is not None
        stored.result(60)


def transaction(pump: PumpServer, cluster: MemoryCluster) -> int:
    start = cluster.fetch_ts()
    write(pump, cluster, prewrite(start))
    commit_ts = cluster.fetch_ts()
    write(pump, cluster, commit(start, commit_ts))
    return commit_ts


def consumer(name: str, max_commit_ts: int, state: str = "paused") -> NodeStatus:
    return NodeStatus(name, "", state, max_commit_ts=max_commit_ts)


def closing(pump: PumpServer) -> str:
    return str(pump.service.problems)


def test_close_waits_until_every_consumer_has_pulled_everything(build_pump: MakePump, cluster: MemoryCluster) -> None:
    # S0-33, R-05, S0-29
    pump = build_pump()
    cluster.consumers = [consumer("a", 1), consumer("b", 1), consumer("gone", 0, "offline")]
    serving = Serving(pump)
    transaction(pump, cluster)
    pump.request_leave("close")
    until(lambda: "a at 1, b at 1" in closing(pump), "the pump names the consumers it waits for")
    until(lambda: cluster.nodes["pump1"].state == "closing", "the registry shows it too")
    assert pump.service.state == State.CLOSING
    mark = pump.service.build_info().max_commit_ts
    cluster.consumers = [consumer("a", mark), consumer("b", mark - 1), consumer("gone", 0, "offline")]
    until(lambda: "b at" in closing(pump) and "a at" not in closing(pump), "only one consumer is behind")
    assert pump.service.build_info().max_commit_ts == mark, "the watermark that consumers must reach does not move"
    cluster.consumers = [consumer("a", mark), consumer("b", mark), consumer("gone", 0, "offline")]
    serving.end()
    entry = cluster.nodes["pump1"]
    assert (entry.state, entry.max_commit_ts) == ("offline", mark)
    assert cluster.history == ["online", "closing", "offline"]


def test_pumps_that_close_together_wait_at_one_watermark(build_pump: MakePump, cluster: MemoryCluster) -> None:
    # S0-33: otherwise each would cost a consumer that works in batches an extra window.
    pumps = [build_pump(name) for name in ("pump1", "pump2", "pump3")]
    cluster.consumers = [consumer("a", 1)]
    serving = [Serving(pump) for pump in pumps]
    for pump in pumps:
        pump.request_leave("close")
        until(lambda pump=pump: "a at 1" in closing(pump), "it waits")
    mark = pumps[-1].service.build_info().max_commit_ts
    until(
        lambda: all(pump.service.build_info().max_commit_ts == mark for pump in pumps),
        "both pumps have the same watermark",
    )
    until(lambda: all(str(mark) in closing(pump) for pump in pumps), "and both show the reason")
    cluster.consumers = [consumer("a", mark)]
    for one in serving:
        one.end()
    assert {entry.state for entry in cluster.nodes.values()} == {"offline"}
    assert {entry.max_commit_ts for entry in cluster.nodes.values()} == {mark}


def test_a_closing_pump_without_any_consumer_stays(build_pump: MakePump, cluster: MemoryCluster) -> None:
    # S0-33: the original leaves at once, together with data that nobody has read.
    pump = build_pump()
    serving = Serving(pump)
    pump.request_leave("close")
    until(lambda: "no consumer is registered" in closing(pump), "the pump shows why it stays")
    pump.request_leave("pause")
    serving.end()
    assert cluster.history == ["online", "closing", "pausing", "paused"]


def test_a_closing_pump_that_is_asked_again_keeps_closing(build_pump: MakePump, cluster: MemoryCluster) -> None:
    # S0-33
    pump = build_pump()
    cluster.consumers = [consumer("a", 1)]
    serving = Serving(pump)
    pump.request_leave("close")
    pump.request_leave("close")
    until(lambda: "a at 1" in closing(pump), "it waits")
    pump.request_leave("close")
    until(lambda: pump._asked.empty(), "the request was received")
    cluster.consumers = [consumer("a", pump.service.build_info().max_commit_ts)]
    serving.end()
    assert cluster.history == ["online", "closing", "offline"]


def test_a_commit_indexed_during_the_last_check_keeps_the_pump_paused(
    build_pump: MakePump, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a commit that is indexed while the registry answers is in no consumer's position.
    pump = build_pump()
    storage = pump._storage

    def drainers() -> list[NodeStatus]:
        position = storage.watermark
        start, commit_ts = cluster.fetch_ts(), cluster.fetch_ts()
        for binlog in (prewrite(start), commit(start, commit_ts)):
            storage.append(binlog.SerializeToString()).result(60)
        until(lambda: storage.watermark >= commit_ts, "indexed")
        return [consumer("a", position)]

    monkeypatch.setattr(cluster, "list_drainers", drainers)
    serving = Serving(pump)
    pump.request_leave("close")
    serving.end()
    assert cluster.nodes["pump1"].state == "paused"


@pytest.mark.parametrize("broken", ["_log", "index", "_follower"])
def test_after_an_error_while_leaving_the_registry_does_not_show_the_pump_as_serving(
    build_pump: MakePump, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    pump = build_pump()
    close = getattr(pump._storage, broken).close

    def fail() -> None:
        close()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(getattr(pump._storage, broken), "close", fail)
    with pytest.raises(OSError, match="No space"):
        pump.stop()
    assert cluster.nodes["pump1"].state == "paused"
    build_pump()  # the directory is unlocked


def test_clients_are_closed_when_the_directory_cannot_be_opened(
    build_pump: MakePump, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_pump()
    closed: list[bool] = []
    monkeypatch.setattr(cluster, "close", lambda: closed.append(True))
    with pytest.raises(Permanent, match="another process holds the data directory"):
        build_pump()
    assert closed == [True]


@pytest.mark.long
def test_close_waits_for_prewrites_and_still_accepts_their_commits(
    build_pump: MakePump, cluster: MemoryCluster
) -> None:
    pump = build_pump()
    start = cluster.fetch_ts()
    write(pump, cluster, prewrite(start))
    cluster.consumers = [consumer("a", 1 << 62)]
    serving = Serving(pump)
    pump.request_leave("close")
    until(lambda: f"the oldest has start_ts {start}" in closing(pump), "the pump names the P")
    commit_ts = cluster.fetch_ts()
    write(pump, cluster, commit(start, commit_ts))
    serving.end()
    entry = cluster.nodes["pump1"]
    assert entry.state == "offline"
    assert entry.max_commit_ts >= commit_ts


def test_a_closing_pump_leaves_when_a_command_sets_it_offline(build_pump: MakePump, cluster: MemoryCluster) -> None:
    pump = build_pump()
    cluster.consumers = [consumer("a", 1)]
    serving = Serving(pump)
    pump.request_leave("close")
    until(lambda: "a at 1" in closing(pump), "it waits")
    cluster.command(replace(cluster.nodes["pump1"], state="offline"))
    serving.end()
    assert cluster.nodes["pump1"].state == "offline"


def test_a_write_stored_while_the_pump_leaves_keeps_it_paused(
    build_pump: MakePump, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # data stored after the last check is still needed.
    pump = build_pump()
    write(pump, cluster, prewrite(cluster.fetch_ts()))
    monkeypatch.setattr("binlake.pump_service.pump.retention.Departure.find_reason_to_wait", lambda _: "")
    serving = Serving(pump)
    pump.request_leave("close")
    serving.end()
    assert cluster.nodes["pump1"].state == "paused"


def test_an_online_pump_keeps_its_state_against_a_command(build_pump: MakePump, cluster: MemoryCluster) -> None:
    build_pump()
    cluster.command(replace(cluster.nodes["pump1"], state="offline"))
    until(lambda: cluster.nodes["pump1"].state == "online", "the next heartbeat")


def test_a_deleted_entry_is_written_again(build_pump: MakePump, cluster: MemoryCluster) -> None:
    build_pump()
    del cluster.nodes["pump1"]
    until(lambda: "pump1" in cluster.nodes, "the next heartbeat")


def test_a_second_pump_under_a_live_node_id_is_refused(build_pump: MakePump, cluster: MemoryCluster) -> None:
    # S0-35
    first = build_pump("pump1")
    with pytest.raises(Permanent, match="another pump serves under this node id"):
        build_pump("other-directory", node_id="pump1")
    assert cluster.nodes["pump1"].host == first.addr
    assert cluster.nodes["pump1"].state == "online"


def test_a_stale_entry_whose_address_another_pump_has_now_is_taken_over(
    build_pump: MakePump, cluster: MemoryCluster
) -> None:
    neighbour = build_pump("pump2")
    cluster.nodes["pump1"] = NodeStatus("pump1", neighbour.addr, "online", max_commit_ts=5)
    pump = build_pump("pump1")
    assert cluster.nodes["pump1"].host == pump.addr


@pytest.mark.parametrize("state", ["online", "pausing", "closing"])
def test_the_address_of_another_node_that_may_serve_is_refused(
    build_pump: MakePump, cluster: MemoryCluster, state: str
) -> None:
    cluster.nodes["old"] = NodeStatus("old", "10.0.0.1:8250", state)
    with pytest.raises(Permanent, match=r"another node is registered at this address.*--node-id old"):
        build_pump("new", advertise_addr="10.0.0.1:8250")
    assert "new" not in cluster.nodes


@pytest.mark.parametrize("state", ["paused", "offline"])
def test_the_address_of_a_node_that_left_is_free(build_pump: MakePump, cluster: MemoryCluster, state: str) -> None:
    cluster.nodes["old"] = NodeStatus("old", "10.0.0.1:8250", state)
    build_pump("new", advertise_addr="10.0.0.1:8250")
    assert cluster.nodes["new"].state == "online"


def test_a_pump_whose_node_id_was_taken_ends_and_stops_writing(build_pump: MakePump, cluster: MemoryCluster) -> None:
    pump = build_pump()
    serving = Serving(pump)
    taken = NodeStatus("pump1", "10.9.9.9:8250", "online", max_commit_ts=7)
    cluster.command(taken)
    serving.end()
    assert isinstance(serving.error, Fenced)
    assert "10.9.9.9:8250" in str(pump.service.problems)
    assert cluster.nodes["pump1"] == taken


@pytest.mark.parametrize("previous", ["paused", "offline", "closing", "pausing"])
def test_a_restart_goes_online_from_any_state(build_pump: MakePump, cluster: MemoryCluster, previous: str) -> None:
    cluster.nodes["pump1"] = NodeStatus("pump1", "127.0.0.1:9", previous, max_commit_ts=5)
    build_pump()
    assert cluster.nodes["pump1"].state == "online"


def test_a_fuller_disk_lowers_the_score_and_equal_pumps_have_equal_scores(
    build_pump: MakePump, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # S0-31
    def usage(data_dir: Path) -> Usage:
        return Usage(load=0.2, disk=0.9 if data_dir.name == "full" else 0.1, stored=0.05)

    monkeypatch.setattr("binlake.pump_service.pump.server.measure_usage", usage)
    for name in ("one", "two", "full"):
        build_pump(name)
    published = {name: cluster.nodes[name].score for name in ("one", "two", "full")}
    assert abs(published["one"] - published["two"]) <= 1
    assert published["full"] / published["one"] < 0.75


def test_label_and_score_are_published(build_pump: MakePump, cluster: MemoryCluster) -> None:
    # S0-31, S0-32, S0-28
    build_pump(label={"zone": "a"})
    entry = cluster.nodes["pump1"]
    assert entry.label == {"zone": "a"}
    assert 1 <= entry.score <= 100
    assert b'"label":{"zone":"a"}' in entry.to_json()
