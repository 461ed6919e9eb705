"""TiKV asked about transactions: kvproto's bytes, region errors, locks, GC (tidb-binlog 2.6, hazards R-07)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.certificates import Authority
from support.fake_tikv import CLUSTER_ID, ROLLBACK, FakeTikv, Lock, Write

from binlake import tso
from binlake.cluster.placement.channel import parse_urls
from binlake.cluster.source import Absent, Committed, Locked, RolledBack, Status, Unknown
from binlake.cluster.source.regions import RegionClient, encode_key
from binlake.cluster.source.tikv import How, Question, TikvStatus, is_expired
from binlake.wire import pd_pb2 as pd
from binlake.wire import tikv_pb2 as pb

START = 470614289451843620
NOW = START + tso.compose(600_001)
KEY = b"t\x80key"
VECTORS = dict(line.split() for line in Path(__file__).with_name("kvproto_vectors.txt").read_text().splitlines())
"""Made by kvproto of 2023-02-28, the version that the original pump is built with."""


def header() -> pd.RequestHeader:
    return pd.RequestHeader(cluster_id=CLUSTER_ID)


def context() -> pb.Context:
    return pb.Context(
        region_id=14, region_epoch=pb.RegionEpoch(conf_ver=5, version=61), peer=pb.Peer(id=17, store_id=4)
    )


def check(**more: bool) -> pb.CheckTxnStatusRequest:
    return pb.CheckTxnStatusRequest(
        context=context(),
        primary_key=KEY,
        lock_ts=START,
        caller_start_ts=START,
        current_ts=470614446738243620,
        **more,
    )


def test_requests_have_the_bytes_of_kvproto() -> None:
    made = {
        "check": check(rollback_if_not_exist=True),
        "check_young": check(),
        "get_region": pb.GetRegionRequest(header=header(), region_key=encode_key(KEY)),
        "get_store": pb.GetStoreRequest(header=header(), store_id=4),
        "get_safe_point": pb.GetGCSafePointRequest(header=header()),
        "hold": pb.UpdateServiceGCSafePointRequest(
            header=header(), service_id=b"binlake-pump-p1", ttl=86400, safe_point=START - 1
        ),
    }
    assert {name: one.SerializeToString().hex() for name, one in made.items()} == {name: VECTORS[name] for name in made}
    # Newer than that version: TiKV 7.1 on looks whether the lock is the primary one; older ones pass over it.
    assert check(verify_is_primary=True).SerializeToString().hex() == VECTORS["check_young"] + "4801"


def test_answers_are_read_as_kvproto_writes_them() -> None:
    def answer(name: str) -> pb.CheckTxnStatusResponse:
        return pb.CheckTxnStatusResponse.FromString(bytes.fromhex(VECTORS[name]))

    assert answer("committed").commit_version == 470614289491165188
    locked = answer("locked")
    assert (locked.lock_ttl, locked.lock_info.lock_version, locked.lock_info.use_async_commit) == (20003, START, True)
    actions = [answer(name).action for name in ("expired", "missing", "pessimistic", "nothing")]
    assert actions == [1, 2, 4, 5]
    assert answer("not_leader").region_error.not_leader.leader == pb.Peer(id=18, store_id=5)
    assert answer("epoch_not_match").region_error.epoch_not_match.current_regions[0].region_epoch.version == 62
    assert answer("busy").region_error.HasField("server_is_busy")
    assert answer("txn_not_found").error.txn_not_found.start_ts == START
    region = pb.GetRegionResponse.FromString(bytes.fromhex(VECTORS["region"]))
    assert (region.region.id, region.region.start_key, region.leader.store_id) == (14, b"a", 4)
    store = pb.GetStoreResponse.FromString(bytes.fromhex(VECTORS["store"]))
    assert store.store.address == "127.0.0.1:20160"
    assert pb.GetGCSafePointResponse.FromString(bytes.fromhex(VECTORS["safe_point"])).safe_point == 470614000000000000
    held = pb.UpdateServiceGCSafePointResponse.FromString(bytes.fromhex(VECTORS["held"]))
    assert (held.min_safe_point, held.service_id) == (470614000000000000, b"gc_worker")
    unready = pb.GetRegionResponse.FromString(bytes.fromhex(VECTORS["not_bootstrapped"]))
    assert unready.header.error.type == pd.NOT_BOOTSTRAPPED


@pytest.mark.parametrize(
    ("key", "encoded"),
    [
        (b"", "0000000000000000f7"),
        (b"1234567", "3132333435363700fe"),
        (b"12345678", "3132333435363738ff0000000000000000f7"),
        (b"123456789", "3132333435363738ff3900000000000000f8"),
    ],
)
def test_keys_are_encoded_as_tikv_orders_them(key: bytes, encoded: str) -> None:
    assert encode_key(key).hex() == encoded


@pytest.fixture
def tikv() -> Iterator[FakeTikv]:
    found = FakeTikv(safe_point=START - 1000)
    yield found
    found.stop()


@pytest.fixture
def connect(tikv: FakeTikv) -> Iterator[Callable[[], TikvStatus]]:
    made: list[TikvStatus] = []

    def connected() -> TikvStatus:
        regions = RegionClient([f"http://{tikv.start()}"], timeout_s=20.0)
        made.append(TikvStatus(regions, "binlake-pump-p1", timeout_s=20.0))
        return made[-1]

    yield connected
    for one in made:
        one.close()


def one(status: TikvStatus, how: How, start_ts: int = START, now: int = NOW, key: bytes = KEY) -> Status:
    return status.ask([Question(start_ts, key, how)], now)[0]


def test_every_way_of_asking_gives_the_outcome(tikv: FakeTikv, connect: Callable[[], TikvStatus]) -> None:
    status = connect()
    status.protect(START)
    for how in How:
        tikv.locks.clear()
        tikv.writes = {KEY: [Write(START + 900, START + 901), Write(START, START + 7), Write(START - 90, START - 80)]}
        assert one(status, how) == Committed(START + 7)
        tikv.writes = {KEY: [Write(START, START, ROLLBACK)]}
        assert one(status, how) == RolledBack()
        tikv.writes = {KEY: [Write(START - 50, START, overlapped=True)]}
        assert one(status, how) == RolledBack()
        tikv.writes = {KEY: [Write(START - 50, START)]}  # another transaction committed at our start_ts
        assert isinstance(one(status, how), RolledBack if how is How.END else Absent)
        tikv.writes = {}
        tikv.locks[KEY] = Lock(START, 700_000)
        assert one(status, how) == Locked(700_000)
        assert KEY in tikv.locks
        assert one(status, how, key=b"") == Unknown("its prewrite has no key to ask about")


def test_only_a_question_for_an_end_changes_anything(tikv: FakeTikv, connect: Callable[[], TikvStatus]) -> None:
    status = connect()
    status.protect(START)
    tikv.locks[KEY] = Lock(START, 3000)
    assert one(status, How.LOOK) == Locked(3000)
    assert is_expired(Locked(3000), START, NOW, 60_000)
    assert not is_expired(Locked(3000), START, START + tso.compose(60_000), 60_000)
    assert not is_expired(Locked(), START, NOW, 0)
    assert one(status, How.EXPIRE) == RolledBack()
    assert (tikv.locks, tikv.writes[KEY]) == ({}, [Write(START, START, ROLLBACK)])
    tikv.writes.clear()
    assert isinstance(one(status, How.LOOK), Absent)
    assert isinstance(one(status, How.EXPIRE), Absent)
    assert tikv.writes == {}
    assert one(status, How.END) == RolledBack()
    assert tikv.writes[KEY] == [Write(START, START, ROLLBACK)]


def test_a_lock_of_async_commit_and_one_that_is_not_the_primary_prove_nothing(
    tikv: FakeTikv, connect: Callable[[], TikvStatus]
) -> None:
    status = connect()
    status.protect(START)
    tikv.locks[KEY] = Lock(START, 3000, async_commit=True)
    assert "async commit" in str(one(status, How.END))
    tikv.locks[KEY] = Lock(START, 3000, primary=b"t\x80other")
    assert "not the primary" in str(one(status, How.END))
    assert KEY in tikv.locks


def test_where_gc_may_have_passed_absence_proves_nothing_and_leaves_no_record(
    tikv: FakeTikv, connect: Callable[[], TikvStatus]
) -> None:
    # the commit record was there and GC took it; a rollback record written now would be a lie told twice.
    status = connect()
    tikv.writes[KEY] = [Write(START, START + 7)]
    tikv.run_gc(START + 100)
    status.protect(START)
    for _ in range(2):
        found = one(status, How.END)
        assert isinstance(found, Unknown), found
        assert "GC" in found.reason
    assert tikv.writes[KEY] == []
    later = START + 200
    assert status.protects(later)  # what GC has not passed is held from then on
    assert one(status, How.END, later, key=b"t\x80later") == RolledBack()


def test_gc_waits_for_what_is_protected_and_no_longer(tikv: FakeTikv, connect: Callable[[], TikvStatus]) -> None:
    status = connect()
    status.protect(START)
    assert tikv.services == {b"binlake-pump-p1": START - 1}
    tikv.writes[KEY] = [Write(START, START + 7)]
    tikv.run_gc(START + 100)
    assert tikv.safe_point == START - 1
    assert one(status, How.END) == Committed(START + 7)
    status.protect(START + 50)
    assert tikv.services == {b"binlake-pump-p1": START + 49}
    status.protect(0)
    assert tikv.services == {}
    assert not status.protects(START + 50)


def test_region_errors_are_followed(tikv: FakeTikv, connect: Callable[[], TikvStatus]) -> None:
    status = connect()
    status.protect(START)
    keys = [b"t\x80a", b"t\x80b", b"t\x80y", b"t\x80z"]
    tikv.writes = {key: [Write(START, START + place)] for place, key in enumerate(keys, start=1)}
    questions = [Question(START, key, How.END) for key in keys]
    wanted = [Committed(START + place) for place in range(1, 5)]
    assert status.ask(questions, NOW) == wanted
    assert tikv.located == 1, "a region is looked for once"
    tikv.split(b"t\x80h")  # epoch not match, and PD is behind
    assert status.ask(questions, NOW) == wanted
    tikv.move(2)  # not leader, with a hint: PD is not asked
    located = tikv.located
    assert status.ask(questions, NOW) == wanted
    assert tikv.located == located
    tikv.busy = 5
    assert status.ask(questions, NOW) == wanted


def test_an_unreachable_tikv_is_reported_and_used_again_when_back(
    tikv: FakeTikv, connect: Callable[[], TikvStatus], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("binlake.cluster.source.tikv._PAUSES_S", (0.01,) * 3)
    status = connect()
    tikv.writes[KEY] = [Write(START, START + 7)]
    right, tikv.addresses[1] = tikv.addresses[1], "127.0.0.1:1"
    found = one(status, How.LOOK)
    assert "TiKV does not report it" in str(found)
    tikv.addresses[1] = right
    assert one(status, How.LOOK) == Committed(START + 7)
    tikv.busy = 1000
    assert "busy" in str(one(status, How.LOOK))


def test_tls_is_spoken_as_configured(tikv: FakeTikv, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, own = authority.tls("tikv"), authority.tls("pump")
    address = tikv.start(server).replace("127.0.0.1", "localhost")
    tikv.addresses = {store: one.replace("127.0.0.1", "localhost") for store, one in tikv.addresses.items()}
    tikv.writes[KEY] = [Write(START, START + 7)]
    status = TikvStatus(RegionClient([f"https://{address}"], 20.0, own), "p", tls=own, timeout_s=20.0)
    assert one(status, How.LOOK) == Committed(START + 7)
    status.close()
    assert parse_urls([f"https://{address}"]) == [(address, True)]


def test_a_pd_that_no_tikv_has_joined_has_none(tikv: FakeTikv) -> None:
    address = tikv.start()
    regions = RegionClient([f"http://{address}"], timeout_s=20.0)
    assert regions.has_tikv()
    tikv.bootstrapped = False
    assert not regions.has_tikv()
    regions.close()
