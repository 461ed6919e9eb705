"""A pump over gRPC: what it accepts in each state, what it reports, how it starts and leaves (MISSION S0.d, S0.e)."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from itertools import islice

import grpc
import pytest
from pump_cluster import CLUSTER_ID, MemoryCluster
from pump_helpers import VALUE, MakePump, commit, prewrite, rollback, until
from support.grpcio_pump import GrpcioPumpServer

from binlake import tso
from binlake.cluster.control.nodes import is_stale
from binlake.cluster.placement import NodeStatus
from binlake.cluster.pumpclient import PumpReader
from binlake.cluster.source import Committed, RolledBack, Status, Unknown
from binlake.errors import BinlakeError, ConfigError, Permanent, SourceUnavailable, Transient
from binlake.pump_service.pump.server import PumpServer
from binlake.pump_service.pump.service import State
from binlake.wire import build, cistern_pb2, cistern_pb2_grpc, pump_pb2, pump_pb2_grpc
from binlake.wire.binlog_pb2 import Binlog, Commit
from deploy.local.ports import free_port


@pytest.fixture(params=[PumpServer, GrpcioPumpServer], ids=["lean", "grpcio"])
def rpc(request: pytest.FixtureRequest) -> type[PumpServer]:
    """Each test runs on both layers, which must behave the same."""
    return request.param


@contextlib.contextmanager
def stub(pump: PumpServer) -> Iterator[pump_pb2_grpc.PumpStub]:
    """A client generated from the original proto."""
    with grpc.insecure_channel(pump.addr) as channel:
        yield pump_pb2_grpc.PumpStub(channel)


def write(pump: PumpServer, *binlogs: Binlog, cluster_id: int = CLUSTER_ID) -> None:
    with stub(pump) as client:
        for binlog in binlogs:
            request = pump_pb2.WriteBinlogReq(clusterID=cluster_id, payload=binlog.SerializeToString())
            assert client.WriteBinlog(request, timeout=60).errmsg == ""


def reader(pump: PumpServer) -> PumpReader:
    return PumpReader(pump.addr, CLUSTER_ID, idle_timeout_s=60)


def data(pump: PumpServer, count: int) -> list[int]:
    """commit_ts of the first `count` entities that are not fakes."""
    return list(islice((commit_ts for commit_ts, start_ts, _ in reader(pump).pull(0) if commit_ts != start_ts), count))


def refused(pump: PumpServer, *binlogs: Binlog, cluster_id: int = CLUSTER_ID) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        write(pump, *binlogs, cluster_id=cluster_id)
    assert caught.value.code() is grpc.StatusCode.UNKNOWN  # tidb-binlog 2.8
    return str(caught.value.details())


def test_a_client_of_the_original_proto_writes_and_another_cluster_is_refused(build_pump: MakePump) -> None:
    # S0-46
    pump = build_pump()
    write(pump, prewrite(10), commit(10, 11))
    assert "cluster id" in refused(pump, prewrite(20), cluster_id=CLUSTER_ID + 1)
    # An acked binlog is sorted a moment later.
    until(
        lambda: pump.service.build_info().unmatched_prewrites == 0, "the P has its C, the refused binlog is not stored"
    )


def test_a_consumer_of_the_original_proto_gets_ordered_complete_transactions(
    build_pump: MakePump, cluster: MemoryCluster
) -> None:
    # S0-53
    pump = build_pump()
    starts = [cluster.fetch_ts() for _ in range(20)]
    write(pump, *map(prewrite, starts))
    write(pump, *[commit(start, cluster.fetch_ts()) for start in reversed(starts)])
    with stub(pump) as client:
        stream = client.PullBinlogs(pump_pb2.PullBinlogReq(clusterID=CLUSTER_ID, startFrom=pump_pb2.Pos(offset=0)))
        entities = list(islice((r.entity for r in stream if r.entity.meta.startTs != r.entity.meta.commitTs), 20))
        stream.cancel()
    order = [entity.meta.commitTs for entity in entities]
    assert order == sorted(set(order))
    binlogs = [Binlog.FromString(entity.payload) for entity in entities]
    assert [binlog.start_ts for binlog in binlogs] == starts[::-1]
    assert all((binlog.tp, binlog.prewrite_value) == (Commit, VALUE) for binlog in binlogs)
    assert all(entity.HasField("pos") and not entity.checksum for entity in entities)


@pytest.mark.long
def test_fakes_move_an_idle_pump_and_with_pd_down_the_reason_is_shown(
    build_pump: MakePump, cluster: MemoryCluster
) -> None:
    # S0-54, S0-59: start_ts == commit_ts, no data, a fresh ts from PD.
    pump = build_pump()
    seen = list(islice(reader(pump).pull(0), 3))
    assert all(commit_ts == start_ts for commit_ts, start_ts, _ in seen)
    assert all(payload == build.build_fake(commit_ts).SerializeToString() for commit_ts, _, payload in seen)
    cluster.down = True
    until(lambda: "PD does not answer" in pump.service.build_info().last_error, "the reason is shown")
    standing = 0

    def is_still() -> bool:
        # A fake that got its timestamp before may still be on its way to the disk.
        nonlocal standing
        standing = pump.service.build_info().max_commit_ts
        time.sleep(0.5)
        return pump.service.build_info().max_commit_ts == standing

    until(is_still, "no more fakes are written")
    cluster.down = False
    until(lambda: pump.service.build_info().max_commit_ts > standing, "the watermark moves again")
    until(lambda: pump.service.build_info().last_error == "", "no problem is shown")


def test_fakes_are_written_despite_rejected_calls_and_probes(build_pump: MakePump) -> None:
    # the original stops writing fakes while it is called.
    pump = build_pump(stop_write_at_available_space=1 << 60)
    seen = {pump.service.build_info().max_commit_ts}

    def moves() -> bool:
        assert "space" in refused(pump, prewrite(10))
        seen.add(pump.service.build_info().max_commit_ts)
        return len(seen) > 3

    until(moves, "fakes are written all the time")
    assert "writes are refused" in pump.service.build_info().last_error


@pytest.mark.long
def test_a_busy_pump_writes_no_fakes(build_pump: MakePump, cluster: MemoryCluster) -> None:
    pump = build_pump(gen_binlog_interval_s=0.4)
    stop, pauses = time.monotonic() + 1.5, 0
    while (began := time.monotonic()) < stop:
        start = cluster.fetch_ts()
        write(pump, prewrite(start), commit(start, cluster.fetch_ts()))
        pauses += time.monotonic() - began > 0.1
    fakes = sum(
        commit_ts == start_ts
        for commit_ts, start_ts, _ in reader(pump).pull(0, pump.service.build_info().max_commit_ts)
    )
    # One fake at the registration, at most one before the first transaction, and one for each pause of the machine.
    assert fakes <= 2 + pauses


def test_no_prewrite_is_accepted_before_the_registration_is_confirmed(
    build_pump: MakePump, cluster: MemoryCluster
) -> None:
    # S0-57
    cluster.confirms.clear()
    addr = f"127.0.0.1:{free_port()}"
    starting = threading.Thread(target=build_pump, kwargs={"addr": addr, "heartbeat_interval_s": 60.0})
    starting.start()
    channel = grpc.insecure_channel(addr, options=[("grpc.initial_reconnect_backoff_ms", 20)])
    grpc.channel_ready_future(channel).result(60)
    request = pump_pb2.WriteBinlogReq(clusterID=CLUSTER_ID, payload=prewrite(cluster.fetch_ts()).SerializeToString())
    client = pump_pb2_grpc.PumpStub(channel)
    try:
        for _ in range(20):
            with pytest.raises(grpc.RpcError, match="accepts no prewrites"):
                client.WriteBinlog(request, timeout=60)
        assert cluster.history == []
    finally:
        cluster.confirms.set()
        starting.join()
    assert client.WriteBinlog(request, timeout=60).errmsg == ""
    assert cluster.history == ["online"]
    channel.close()


def test_a_pump_has_a_watermark_when_it_is_registered(build_pump: MakePump, cluster: MemoryCluster) -> None:
    #
    before = cluster.fetch_ts()
    pump = build_pump(gen_binlog_interval_s=60.0)
    until(lambda: pump.service.build_info().max_commit_ts > before, "the fake of the registration")


class Consumer(cistern_pb2_grpc.CisternServicer):
    """A consumer that counts how often a pump announced itself."""

    def __init__(self) -> None:
        self.notified = 0

    def Notify(self, *_: object) -> cistern_pb2.NotifyResp:
        self.notified += 1
        return cistern_pb2.NotifyResp()


@contextlib.contextmanager
def consumer() -> Iterator[tuple[Consumer, str]]:
    server, servicer = grpc.server(futures.ThreadPoolExecutor(2)), Consumer()
    cistern_pb2_grpc.add_CisternServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, f"127.0.0.1:{port}"
    server.stop(0).wait()


def drainer(host: str, state: str = "online") -> NodeStatus:
    return NodeStatus("drainer1", host, state)


def test_a_new_pump_serves_only_after_each_online_consumer_answered(
    build_pump: MakePump, cluster: MemoryCluster
) -> None:
    # S0-57
    with consumer() as (servicer, host):
        cluster.consumers = [drainer(host)]
        pump = build_pump()
        assert (servicer.notified, cluster.nodes["pump1"].state) == (1, "online")
        pump.stop()
        build_pump()
        assert servicer.notified == 1  # it was paused, so it is registered


def test_a_pump_that_no_consumer_confirms_ends_offline_with_an_error(
    build_pump: MakePump, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # S0-57, R-05
    monkeypatch.setattr("binlake.pump_service.pump.membership._BACKOFF_S", 0.01)
    cluster.consumers = [drainer("127.0.0.1:1")]
    with pytest.raises(SourceUnavailable, match="drainer1"):
        build_pump()
    assert cluster.nodes["pump1"].state == "offline"
    cluster.consumers = [drainer("127.0.0.1:1", "paused")]  # waited for, not notified
    build_pump()


def test_a_stop_leaves_paused_with_the_last_watermark_and_everything_readable(
    build_pump: MakePump, cluster: MemoryCluster
) -> None:
    pump = build_pump()
    start = cluster.fetch_ts()
    write(pump, prewrite(start), commit(start, cluster.fetch_ts()))
    pump.stop()
    assert cluster.history[-2:] == ["pausing", "paused"]
    status = cluster.nodes["pump1"]
    assert (status.host, status.is_alive) == (pump.addr, False)
    again = build_pump()
    assert again.service.build_info().max_commit_ts >= status.max_commit_ts
    assert len(data(again, 1)) == 1


def test_a_pausing_pump_accepts_commits_and_rollbacks_but_no_prewrites(
    build_pump: MakePump, cluster: MemoryCluster
) -> None:
    pump = build_pump()
    first, second = cluster.fetch_ts(), cluster.fetch_ts()
    write(pump, prewrite(first), prewrite(second))
    pump.service.state = State.PAUSING
    assert "pausing" in refused(pump, prewrite(cluster.fetch_ts()))
    assert "pausing" in refused(pump, Binlog())  # an empty payload is a probe
    commit_ts = cluster.fetch_ts()
    write(pump, commit(first, commit_ts), rollback(second))
    assert data(pump, 1) == [commit_ts]
    pump.service.state = State.ONLINE
    write(pump, Binlog())  # TiDB's probe: accepted and ignored
    assert pump.service.build_info().unmatched_prewrites == 0


def test_a_pump_that_died_online_is_taken_over_by_the_same_node(build_pump: MakePump, cluster: MemoryCluster) -> None:
    cluster.nodes["pump1"] = NodeStatus("pump1", "127.0.0.1:9", "online", False, 0, None, 5, 5)
    pump = build_pump()
    assert cluster.nodes["pump1"].host == pump.addr


def test_heartbeats_carry_the_watermark(build_pump: MakePump, cluster: MemoryCluster) -> None:
    pump = build_pump()
    reached = pump.service.build_info().max_commit_ts
    until(lambda: cluster.nodes["pump1"].max_commit_ts > reached, "a heartbeat")
    assert abs(tso.extract_physical(cluster.nodes["pump1"].update_ts) - time.time() * 1000) < 60_000


def test_heartbeats_follow_the_clock_of_pd(build_pump: MakePump, cluster: MemoryCluster) -> None:
    # A recorded source leads PD's clock: pumps that started before it were shown as stale forever.
    cluster.clock_ms, cluster._last = 1000, 0
    build_pump()
    cluster.clock_ms = int(time.time() * 1000)
    until(lambda: not is_stale(cluster.nodes["pump1"], cluster.fetch_ts(), 2.0), "a heartbeat of PD's time")


def test_a_second_process_on_the_directory_fails_at_once(build_pump: MakePump) -> None:
    build_pump()
    with pytest.raises(Permanent, match="holds the data directory"):
        build_pump()


def test_a_taken_port_is_one_clear_error(build_pump: MakePump) -> None:
    pump = build_pump()
    with pytest.raises(Permanent, match="cannot listen"):
        build_pump("pump2", addr=pump.addr)


def test_another_cluster_or_a_clock_behind_the_data_is_refused(build_pump: MakePump, cluster: MemoryCluster) -> None:
    #
    build_pump().stop()
    cluster.id += 1
    with pytest.raises(ConfigError, match="another cluster"):
        build_pump()
    cluster.id -= 1
    cluster.clock_ms, cluster._last = 1000, 0
    with pytest.raises(Permanent, match="behind"):
        build_pump()


def test_an_unreachable_pd_is_one_clear_error_and_frees_the_directory(
    build_pump: MakePump, cluster: MemoryCluster
) -> None:
    cluster.down = True
    with pytest.raises(SourceUnavailable, match="PD does not answer"):
        build_pump()
    cluster.down = False
    build_pump()


class Source:
    """A status source with answers by start_ts."""

    def __init__(self) -> None:
        self.answers: dict[int, Status] = {}

    def fetch_transaction_status(self, start_ts: int, key: bytes) -> Status:
        assert key == f"k{start_ts}".encode()
        return self.answers.get(start_ts, Unknown("no proof"))


def test_orphans_wait_for_a_proof_and_the_reason_is_shown(build_pump: MakePump, cluster: MemoryCluster) -> None:
    # S0-49, R-07: unknown blocks, whatever the age; committed is emitted; rolled back is not.
    source = Source()
    pump = build_pump(source=source)
    lost, gone, silent = (cluster.fetch_ts() for _ in range(3))
    write(pump, prewrite(lost), prewrite(gone), prewrite(silent))
    commit_ts = cluster.fetch_ts()
    until(lambda: f"start_ts={lost}" in pump.service.build_info().last_error, "the head is named")
    assert "no proof" in pump.service.build_info().last_error
    assert pump.service.build_info().max_commit_ts < commit_ts
    source.answers = {lost: Committed(commit_ts), gone: RolledBack()}
    until(lambda: pump.service.build_info().oldest_unmatched_start_ts == silent, "two are resolved")
    source.answers[silent] = RolledBack()
    assert data(pump, 1) == [commit_ts]
    until(lambda: pump.service.build_info().last_error == "", "nothing waits")
    info = reader(pump).read_info()
    assert info.status_queries >= 4
    assert info.unmatched_prewrites == 0
    pump.stop()
    again = build_pump()  # the proofs were stored, so the source is not asked again
    assert data(again, 1) == [commit_ts]
    assert again.service.build_info().unmatched_prewrites == 0


@pytest.mark.long
def test_an_r_is_verified_where_there_is_a_source_to_ask(build_pump: MakePump, cluster: MemoryCluster) -> None:
    # TiDB says rolled back, its store says committed.
    source = Source()
    pump = build_pump(source=source)
    lied, true, silent = (cluster.fetch_ts() for _ in range(3))
    write(pump, *map(prewrite, (lied, true, silent)), *map(rollback, (lied, true, silent)))
    commit_ts = cluster.fetch_ts()
    until(lambda: f"start_ts={lied}" in pump.service.build_info().last_error, "the P waits, and the reason is shown")
    source.answers = {lied: Committed(commit_ts), true: RolledBack()}
    until(lambda: pump.service.build_info().oldest_unmatched_start_ts == silent, "two are proved")
    # Fakes between the P may show, but not the committed one, because a P before it in the log waits.
    assert pump.service.build_info().max_commit_ts < commit_ts
    source.answers[silent] = RolledBack()
    assert data(pump, 1) == [commit_ts]
    until(lambda: pump.service.build_info().last_error == "", "nothing waits")
    assert pump.resolver.counters.contradicted == 1


def test_collecting_is_held_back_by_a_registered_consumer_and_shown(
    build_pump: MakePump, cluster: MemoryCluster
) -> None:
    #
    position = cluster.fetch_ts()
    cluster.consumers = [NodeStatus("sync", "h", "paused", False, 0, None, position, 0)]
    pump = build_pump(gc_s=0.1, gc_interval_s=0.05)
    until(lambda: f"held back by sync (at {position})" in pump.service.build_info().last_error, "held back")
    assert pump.service.build_info().gc_ts < position
    cluster.consumers = []
    until(lambda: pump.service.build_info().gc_ts > position, "the collection continues")
    until(lambda: "gc" not in pump.service.build_info().last_error, "no problem is shown")
    with pytest.raises(BinlakeError, match="collected up to"):
        list(islice(reader(pump).pull(position), 1))


def test_a_temporary_pull_error_is_reported_as_such(build_pump: MakePump, monkeypatch: pytest.MonkeyPatch) -> None:
    # No file can be opened, or the index is closing: this is not a loss of data.
    pump = build_pump()
    write(pump, prewrite(10), commit(10, 11))

    def fail(*_: object) -> None:
        raise Transient("no open file is left")

    monkeypatch.setattr(pump._storage.index, "read_batch", fail)
    with stub(pump) as client, pytest.raises(grpc.RpcError) as caught:
        list(client.PullBinlogs(pump_pb2.PullBinlogReq(clusterID=CLUSTER_ID), timeout=60))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_info_identifies_the_pump(build_pump: MakePump) -> None:
    pump = build_pump()
    info = reader(pump).read_info()
    assert (info.cluster_id, info.node_id, info.state, info.gc_ts) == (CLUSTER_ID, "pump1", "online", 0)
    assert len(info.store_uuid) == 36


def test_a_node_keeps_the_name_stored_in_its_directory(build_pump: MakePump) -> None:
    pump = build_pump(node_id="")
    assert pump.node_id == pump.addr
    pump.stop()
    assert build_pump(node_id="other").node_id == pump.node_id
