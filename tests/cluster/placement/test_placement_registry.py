"""The registry: the original's keys and JSON, guarded writes, against the embedded PD and a real etcd."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from support.certificates import certificate, trust_another

from binlake.cluster.placement import EtcdClient, EtcdLock, NodeRegistry, NodeStatus
from binlake.errors import Fenced, LeaseHeld, Permanent, SourceUnavailable, WireError
from binlake.pump_service.pd import PlacementDriver
from binlake.rpc import Tls
from binlake.wire import etcd_pb2 as pb
from deploy.local.etcd import Etcd

RECORDED = Path(__file__).parents[2] / "fixtures" / "wire" / "etcd-registry.txt"


@pytest.fixture(params=["embedded", pytest.param("etcd", marks=pytest.mark.process)])
def etcd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EtcdClient]:
    if request.param == "etcd":
        client = EtcdClient([request.getfixturevalue("etcd_url")])
        client.delete(b"\0", b"\0")
        yield client
        client.close()
        return
    with PlacementDriver(tmp_path) as driver:
        client = EtcdClient([driver.url])
        yield client
        client.close()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["embedded", pytest.param("etcd", marks=pytest.mark.process)])
def test_server_with_tls_and_its_clients_check_each_other(kind: str, tmp_path: Path) -> None:
    # tidb-binlog 1.5
    tls = certificate(tmp_path)
    with Etcd(tls) if kind == "etcd" else PlacementDriver(tmp_path / "pd", tls=tls) as server:
        with closing(EtcdClient([server.url], tls=tls)) as etcd:
            NodeRegistry(etcd).put_pump(NodeStatus("p1", "h:1", "online"))
            assert [pump.node_id for pump in NodeRegistry(etcd).list_pumps()] == ["p1"]
        for files in (None, Tls(ca=tls.ca), trust_another(tls, tmp_path / "another")):
            with (
                closing(EtcdClient([server.url], timeout_s=0.5, tls=files)) as stranger,
                pytest.raises(SourceUnavailable),
            ):
                NodeRegistry(stranger).list_pumps()


def recorded() -> list[tuple[str, bytes]]:
    lines = [line for line in RECORDED.read_text().splitlines() if line and not line.startswith("#")]
    return [(lines[n].split()[0], lines[n + 1].strip().encode()) for n in range(0, len(lines), 2)]


def test_recorded_entries_are_read_and_written_byte_for_byte() -> None:
    entries = recorded()
    assert len(entries) >= 4
    for key, value in entries:
        assert NodeStatus.from_json(value, key).to_json() == value


def test_entries_are_created_replaced_and_listed_by_node(etcd: EtcdClient) -> None:
    registry = NodeRegistry(etcd)
    registry.put_pump(NodeStatus("p2", "h:2", "online", max_commit_ts=470614260760444929))
    registry.put_pump(NodeStatus("p1", "h:1", "online"))
    registry.put_pump(NodeStatus("p1", "h:1", "paused"))
    assert [(p.node_id, p.state, p.max_commit_ts) for p in registry.list_pumps()] == [
        ("p1", "paused", 0),
        ("p2", "online", 470614260760444929),
    ]
    assert registry.list_drainers() == []


def test_publishing_a_position_keeps_the_rest_of_the_entry(etcd: EtcdClient) -> None:
    registry = NodeRegistry(etcd)
    registry.publish_drainer("binlake-bank", 5)
    registry.publish_drainer("binlake-bank", 9)
    (drainer,) = registry.list_drainers()
    assert (drainer.node_id, drainer.state, drainer.max_commit_ts) == ("binlake-bank", "paused", 9)
    assert registry.pause_replication("binlake-bank") == drainer
    registry.publish_drainer("binlake-bank", 10)
    assert registry.list_drainers() == [replace(drainer, state="pausing", max_commit_ts=10, update_ts=10)]
    registry.set_drainer_state("binlake-bank", "offline")
    with pytest.raises(Permanent, match="its state is offline"):
        registry.pause_replication("binlake-bank")
    registry.publish_drainer("binlake-bank", 11)
    assert [one.state for one in registry.list_drainers()] == ["offline"]


def test_watch_of_pumps_has_no_gap_after_its_listing(etcd: EtcdClient) -> None:
    # S0-27, S0-38
    registry = NodeRegistry(etcd)
    registry.put_pump(NodeStatus("p1", "h:1", "online"))
    with closing(registry.watch_pumps()) as watch:
        assert [pump.node_id for pump in watch.pumps] == ["p1"]
        registry.put_pump(NodeStatus("p2", "h:2", "online", score=70, label={"zone": "a"}))
        registry.put_pump(NodeStatus("p1", "h:1", "paused"))
        registry.publish_drainer("binlake-bank", 5)  # not a pump: not reported
        etcd.delete(b"/tidb-binlog/v1/pumps/p2")
        etcd.put(b"/tidb-binlog/v1/pumps/p1", b"{")
        changes = iter(watch)
        assert next(changes) == ("p2", NodeStatus("p2", "h:2", "online", score=70, label={"zone": "a"}))
        assert next(changes) == ("p1", NodeStatus("p1", "h:1", "paused"))
        assert next(changes) == ("p2", None)
        with pytest.raises(WireError, match="pumps/p1"):
            next(changes)


def test_closed_watch_of_pumps_ends(etcd: EtcdClient) -> None:
    watch = NodeRegistry(etcd).watch_pumps()
    threading.Timer(0.05, watch.close).start()
    assert list(watch) == []


def test_corrupt_entry_is_named(etcd: EtcdClient) -> None:
    etcd.put(b"/tidb-binlog/v1/pumps/bad", b'{"nodeId":')
    with pytest.raises(WireError, match="key=/tidb-binlog/v1/pumps/bad"):
        NodeRegistry(etcd).list_pumps()


def test_guarded_put_fails_after_any_other_write(etcd: EtcdClient) -> None:
    assert etcd.put_if(b"k", b"1", mod_revision=0)
    assert not etcd.put_if(b"k", b"2", mod_revision=0)
    found = etcd.get(b"k")
    assert found is not None
    etcd.put(b"k", b"3")
    assert not etcd.put_if(b"k", b"4", mod_revision=found.mod_revision)


def test_revisions_and_versions_follow_etcd(etcd: EtcdClient) -> None:
    first = etcd.put(b"a", b"1")
    second = etcd.put(b"a", b"2")
    found = etcd.get(b"a")
    assert found is not None
    assert (found.create_revision, found.mod_revision, found.version) == (first, second, 2)
    assert second == first + 1
    assert etcd.delete(b"a") == 1
    etcd.put(b"a", b"3")
    again = etcd.get(b"a")
    assert again is not None
    assert (again.version, again.create_revision) == (1, second + 2)


def test_transaction_is_one_revision_and_runs_one_branch(etcd: EtcdClient) -> None:
    etcd.put(b"x", b"1")
    holds = pb.Compare(result=pb.Compare.GREATER, target=pb.Compare.VERSION, key=b"x", version=0)
    puts = [pb.RequestOp(request_put=pb.PutRequest(key=key, value=b"v")) for key in (b"y", b"z")]
    answer = etcd.run_transaction([holds], puts, [pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=b"x"))])
    assert answer.succeeded
    revisions = {etcd.get(key).mod_revision for key in (b"y", b"z")}  # type: ignore[union-attr]
    assert revisions == {answer.header.revision}
    fails = pb.Compare(result=pb.Compare.EQUAL, target=pb.Compare.VALUE, key=b"x", value=b"other")
    assert not etcd.run_transaction(
        [fails], puts, [pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=b"x"))]
    ).succeeded
    assert etcd.get(b"x") is None


def test_watch_from_a_past_revision_misses_nothing(etcd: EtcdClient) -> None:
    _, revision = etcd.read_prefix(b"w/")
    etcd.put(b"w/1", b"a")
    etcd.put(b"other", b"b")
    watch = etcd.watch(b"w/", revision + 1)
    etcd.delete(b"w/1")
    found = []
    for at, event in watch:
        found.append((at - revision, event.type, event.kv.key))
        if len(found) == 2:
            watch.cancel()
            break
    assert found == [(1, pb.Event.PUT, b"w/1"), (3, pb.Event.DELETE, b"w/1")]


def test_revoked_lease_deletes_its_keys(etcd: EtcdClient) -> None:
    lease = etcd.grant_lease(60)
    etcd.put(b"leased", b"1", lease=lease)
    assert etcd.keep_lease_alive(lease) == 60
    etcd.revoke_lease(lease)
    assert etcd.get(b"leased") is None
    assert etcd.keep_lease_alive(lease) <= 0


@pytest.mark.long
def test_lease_without_renewal_expires(etcd: EtcdClient) -> None:
    etcd.put(b"short", b"1", lease=etcd.grant_lease(2))
    deadline = time.monotonic() + 60
    while etcd.get(b"short") is not None:
        assert time.monotonic() < deadline, "the lease never ended"
        time.sleep(0.1)


def test_lock_excludes_others_and_names_its_holder(etcd: EtcdClient) -> None:
    second = EtcdLock(etcd, "lake", "host:2", wait_s=0.3)
    with EtcdLock(etcd, "lake", "host:1"), pytest.raises(LeaseHeld, match="host:1"), second:
        pass
    with EtcdLock(etcd, "lake", "host:2", wait_s=0.3):
        pass


def test_lock_excludes_concurrent_threads(etcd: EtcdClient) -> None:
    inside, most = [0], [0]

    def work(name: str) -> None:
        with EtcdLock(etcd, "busy", name, wait_s=120):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.02)
            inside[0] -= 1

    threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] == 1


def test_unreachable_etcd_is_named() -> None:
    with pytest.raises(SourceUnavailable, match=r"pd-urls=http://127\.0\.0\.1:1"):
        NodeRegistry(EtcdClient(["http://127.0.0.1:1"], timeout_s=0.3)).list_pumps()


def test_transaction_that_writes_a_key_twice_is_refused(etcd: EtcdClient) -> None:
    puts = [pb.RequestOp(request_put=pb.PutRequest(key=b"k", value=value)) for value in (b"1", b"2")]
    with pytest.raises(Permanent, match="duplicate key"):
        etcd.run_transaction([], puts)
    assert etcd.get(b"k") is None


def test_missing_key_has_no_value_to_compare(etcd: EtcdClient) -> None:
    differs = pb.Compare(result=pb.Compare.NOT_EQUAL, target=pb.Compare.VALUE, key=b"none", value=b"x")
    assert not etcd.run_transaction([differs], []).succeeded


def test_ranges_read_the_past_and_filter_by_revision(etcd: EtcdClient) -> None:
    first = etcd.put(b"r/1", b"old")
    etcd.put(b"r/1", b"new")
    last = etcd.put(b"r/2", b"x")
    (past,) = etcd.read_range(pb.RangeRequest(key=b"r/", range_end=b"r0", revision=first)).kvs
    assert (past.value, past.version) == (b"old", 1)
    newest = etcd.read_range(pb.RangeRequest(key=b"r/", range_end=b"r0", min_mod_revision=last)).kvs
    assert [kv.key for kv in newest] == [b"r/2"]
    with pytest.raises(Permanent, match="future revision"):
        etcd.read_range(pb.RangeRequest(key=b"r/1", revision=last + 100))


def test_concurrent_changes_of_one_entry_are_not_lost(etcd: EtcdClient) -> None:
    registry = NodeRegistry(etcd)
    registry.put_drainer(NodeStatus("d", "h:1", "online", label={"a": "<b>"}))
    workers = [threading.Thread(target=registry.publish_drainer, args=("d", ts)) for ts in range(1, 6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    (drainer,) = registry.list_drainers()
    assert (drainer.state, drainer.host, drainer.label) == ("online", "h:1", {"a": "<b>"})
    found = etcd.get(b"/tidb-binlog/v1/drainers/d")
    assert found is not None
    assert found.version == 6
    assert b'"label":{"a":"\\u003cb\\u003e"}' in found.value, "as Go's encoder writes it"


def check_for(seconds: float, lock: EtcdLock) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        lock.check()
        time.sleep(0.05)


@pytest.mark.long
def test_holder_learns_that_its_lease_expired(etcd: EtcdClient) -> None:
    with EtcdLock(etcd, "lost", "host:1", ttl_s=6) as lock:
        lock.check()
        held = etcd.get(b"/binlake/v1/locks/lost")
        assert held is not None
        etcd.revoke_lease(held.lease)
        with pytest.raises(Fenced, match="lost"):
            check_for(60, lock)


@pytest.mark.long
def test_waiting_longer_than_the_lease_gets_the_lock(etcd: EtcdClient) -> None:
    taken = threading.Event()

    def wait_for_it() -> None:
        with EtcdLock(etcd, "slow", "host:2", ttl_s=2, wait_s=120):
            taken.set()

    with EtcdLock(etcd, "slow", "host:1"):
        waiter = threading.Thread(target=wait_for_it)
        waiter.start()
        assert not taken.wait(4.5), "held by host:1"
    assert taken.wait(120)
    waiter.join()
