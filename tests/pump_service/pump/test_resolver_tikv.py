"""An orphan P is resolved if TiKV can be asked, and never by age alone (S0-51, tidb-binlog 2.6, hazards R-07)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pump_helpers import commit, prewrite, rollback, settled, store, until
from support.fake_tikv import ROLLBACK, FakeTikv, Lock, Write
from support.pump_calls import write_binlog

from binlake import tso
from binlake.cluster.placement import PdClient
from binlake.cluster.pumpclient import PumpReader
from binlake.cluster.source import Absent, RolledBack, Status
from binlake.cluster.source.regions import RegionClient
from binlake.cluster.source.tikv import TikvStatus
from binlake.errors import SourceUnavailable
from binlake.pump_service.pd import PlacementDriver
from binlake.pump_service.pump.clients import NoStatusSource
from binlake.pump_service.pump.config import PumpConfig
from binlake.pump_service.pump.metrics import PumpMetrics
from binlake.pump_service.pump.outcomes import PrewriteVerdict, Resolver
from binlake.pump_service.pump.server import PumpServer
from binlake.pump_service.pump.storage import PumpStorage, StorageOptions
from binlake.wire import build

BEGIN_S = 1_000_000
START = tso.compose(BEGIN_S * 1000)
KEY = f"k{START}".encode()


def after(seconds: float) -> int:
    """A timestamp this long after START."""
    return tso.compose(int((BEGIN_S + seconds) * 1000))


class World:
    """A storage, a TiKV and the clock that they share."""

    def __init__(self, folder: Path) -> None:
        self.storage = PumpStorage(folder, StorageOptions(trust_rollbacks=False))
        self.tikv = FakeTikv(safe_point=START - 1)
        self.age_s = 1.0
        self.resolver = self.resolve()

    def resolve(self, source: object = None) -> Resolver:
        regions = RegionClient([f"http://{self.tikv.start()}"], timeout_s=20.0)
        return Resolver(
            self.storage,
            source or NoStatusSource(),
            clock=lambda: after(self.age_s),
            tikv=TikvStatus(regions, "p1", timeout_s=20.0),
        )

    def rounds(self, age_s: float) -> None:
        """Two rounds at this age: a P whose commit may be on the way is not asked about in the first."""
        self.age_s = age_s
        for _ in range(2):
            ends = self.resolver.counters.rolled_back + self.resolver.counters.committed
            self.resolver.resolve_waiting()
            if self.resolver.counters.rolled_back + self.resolver.counters.committed > ends:
                until(
                    lambda: not self.storage.count_unmatched()[0],
                    "the stored outcome is sorted, as after the second between rounds",
                )
        self.resolver.verify_rollbacks()

    def ended(self) -> bool:
        """Whether the P's outcome was stored; waits until stored records are sorted."""
        fake_ts = after(self.age_s)
        store(self.storage, build.build_fake(fake_ts))
        until(lambda: self.storage.watermark >= fake_ts or self.storage.count_unmatched()[0] > 0, "sorted")
        return self.storage.watermark >= fake_ts

    def close(self) -> None:
        self.resolver.close()
        self.tikv.stop()
        self.storage.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def test_an_orphan_without_any_record_is_rolled_back_in_tikv_after_the_timeout(world: World) -> None:
    store(world.storage, prewrite(START))
    until(lambda: world.storage.count_unmatched() == (1, START), "it waits")
    world.rounds(age_s=599)
    assert not world.ended()
    assert world.tikv.writes == {}, "a young transaction may still write its lock"
    assert "neither lock nor write" in world.resolver.blocked
    world.rounds(age_s=601)
    assert world.tikv.writes[KEY] == [Write(START, START, ROLLBACK)]
    until(world.ended, "its rollback is proved")
    assert [start for start, _, _ in settled(world.storage)] == [after(599), after(601)]
    assert world.resolver.counters.rolled_back == 1


def test_a_committed_orphan_gets_its_commit_ts(world: World) -> None:
    store(world.storage, prewrite(START))
    until(lambda: world.storage.count_unmatched() == (1, START), "it waits")
    world.tikv.writes[KEY] = [Write(START, START + 9)]
    world.rounds(age_s=3)
    until(world.ended, "its commit is known")
    assert next((start, ts) for start, ts, _ in settled(world.storage)) == (START, START + 9)


def test_a_live_lock_blocks_and_a_lock_with_a_dead_holder_is_rolled_back(world: World) -> None:
    store(world.storage, prewrite(START))
    until(lambda: world.storage.count_unmatched() == (1, START), "it waits")
    world.tikv.locks[KEY] = Lock(START, 3_600_000)  # a large transaction extends its lock
    world.rounds(age_s=1200)
    assert KEY in world.tikv.locks
    assert not world.ended()
    assert "ttl 3600000" in world.resolver.blocked
    world.tikv.locks[KEY] = Lock(START, 20_000)
    world.rounds(age_s=49)
    assert KEY in world.tikv.locks, "the lock has expired, but it may be extended late"
    world.rounds(age_s=51)  # kill -9 of TiDB: the lock is rolled back long before the timeout, as any reader would do
    until(world.ended, "rolled back")
    assert world.tikv.writes[KEY] == [Write(START, START, ROLLBACK)]


def test_a_rollback_is_proved_at_once_and_a_false_one_loses_nothing(world: World) -> None:
    lying = START + 100
    store(world.storage, prewrite(START), rollback(START), prewrite(lying), rollback(lying))
    until(lambda: len(world.storage.list_doubted_prewrites()) == 2, "both wait for a proof")
    world.tikv.writes[f"k{lying}".encode()] = [Write(lying, lying + 5)]
    world.age_s = 1
    world.resolver.verify_rollbacks()
    until(world.ended, "both are proved")
    assert next((start, ts) for start, ts, _ in settled(world.storage)) == (lying, lying + 5)
    assert world.resolver.counters.contradicted == 1
    assert world.tikv.writes[KEY] == [Write(START, START, ROLLBACK)]


def test_a_backlog_older_than_ten_minutes_is_proved_while_gc_has_not_passed_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = [START + step for step in range(0, 3000, 3)]
    for start in starts:
        world.storage.append(prewrite(start).SerializeToString())
        world.storage.append(rollback(start).SerializeToString())
    until(lambda: len(world.storage.list_doubted_prewrites()) == len(starts), "all wait for a proof")
    world.age_s = 4000
    written, end_all = list[int](), world.storage.end_all
    monkeypatch.setattr(world.storage, "end_all", lambda ends: written.append(len(ends)) or end_all(ends))
    world.resolver.verify_rollbacks()
    until(world.ended, "all are proved")
    assert world.resolver.counters.rolled_back == len(starts)
    assert world.tikv.services[b"p1"] == START - 1
    # Of 5.6 ms of CPU each all but 0.1 went into asking PD for the region, and a wait for the disk, one by one.
    assert world.tikv.located == 1
    assert len(world.tikv.asked) == len(starts)
    assert written == [len(starts)]


def test_a_transaction_older_than_gc_blocks_and_the_reason_is_shown(world: World) -> None:
    world.tikv.run_gc(START + 1)
    store(world.storage, prewrite(START))
    until(lambda: world.storage.count_unmatched() == (1, START), "it waits")
    world.rounds(age_s=700)
    assert not world.ended()
    assert "GC may have removed" in world.resolver.blocked
    world.rounds(age_s=700)  # the log is that old by now, so the P is overdue, and the text names a command
    assert "binlake txn resolve" in world.resolver.blocked
    assert world.tikv.writes == {}


def test_gc_is_held_at_the_oldest_waiting_transaction_and_released(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("binlake.pump_service.pump.clients._HOLD_S", 0.0)
    store(world.storage, prewrite(START))
    until(lambda: world.storage.count_unmatched() == (1, START), "it waits")
    world.rounds(age_s=3)
    world.tikv.run_gc(after(300))
    assert world.tikv.safe_point == START - 1
    store(world.storage, commit(START, START + 9))
    until(lambda: world.storage.count_unmatched() == (0, 0), "it ended")
    world.rounds(age_s=4)
    assert world.tikv.services == {}


def test_the_status_port_is_asked_when_tikv_does_not_answer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("binlake.cluster.source.tikv._PAUSES_S", (0.01,))

    class Port:
        asked = 0

        def fetch_transaction_status(self, start_ts: int, key: bytes) -> Status:
            assert (start_ts, key) == (START, KEY)
            self.asked += 1
            return RolledBack()

    port = Port()
    world.resolver.close()
    world.resolver = world.resolve(port)
    store(world.storage, prewrite(START))
    until(lambda: world.storage.count_unmatched() == (1, START), "it waits")
    world.tikv.addresses = dict.fromkeys(world.tikv.addresses, "127.0.0.1:1")
    world.rounds(age_s=3)
    until(world.ended, "the port answered")
    assert port.asked == 1


def test_without_a_clock_no_transaction_is_ended(world: World) -> None:
    def down() -> int:
        raise SourceUnavailable("PD does not answer")

    world.resolver._asking._clock = down
    store(world.storage, prewrite(START))
    until(lambda: world.storage.count_unmatched() == (1, START), "it waits")
    world.rounds(age_s=700)
    assert "PD does not answer" in world.resolver.blocked
    assert world.tikv.asked == []


def test_a_decision_by_command_asks_tikv_without_changing_it(world: World) -> None:
    # A forced outcome never contradicts what the source knows.
    store(world.storage, prewrite(START))
    until(lambda: world.storage.count_unmatched() == (1, START), "it waits")
    world.age_s = 700
    asking = world.resolver._asking
    assert isinstance(asking.fetch_transaction_status(START, KEY), Absent)
    assert world.tikv.writes == {}
    world.tikv.writes[KEY] = [Write(START, START + 9)]
    with pytest.raises(Exception, match="committed at"):
        PrewriteVerdict(world.storage, asking, PumpMetrics()).decide(START, 0)


def test_the_blocking_prewrite_is_shown_with_its_key_table_and_age(world: World) -> None:
    key = b"t" + (77 + (1 << 63)).to_bytes(8, "big") + b"_r" + bytes(8)
    store(world.storage, build.build_prewrite(START, key, b""), build.build_fake(after(42)), prewrite(START + 500))
    until(lambda: world.storage.count_unmatched()[0] == 2, "both wait")
    world.rounds(age_s=42)
    reason = world.resolver.blocked
    assert f"start_ts={START}" in reason
    assert f"key={key.hex()} (table 77)" in reason
    assert "42 s old" in reason
    assert "1 more" in reason


@pytest.mark.long
@pytest.mark.parametrize("asks", [True, False])
def test_a_pump_asks_the_tikv_of_its_cluster_without_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, asks: bool
) -> None:
    # No status port is configured: as for the original, PD's urls are enough.
    driver, tikv = PlacementDriver(tmp_path / "pd"), FakeTikv(safe_point=START)
    driver.start()
    address = tikv.start()
    monkeypatch.setattr(
        "binlake.pump_service.pump.clients.RegionClient", lambda _, tls: RegionClient([f"http://{address}"], 20.0, tls)
    )
    config = PumpConfig(
        pd_urls=(driver.url,),
        addr="127.0.0.1:0",
        data_dir=tmp_path / "pump",
        stop_write_at_available_space=0,
        resolve_interval_s=0.05,
        gen_binlog_interval_s=0.1,
        txn_timeout_s=1.0,
        ask_tikv=asks,
    )
    pump = PumpServer(config)
    pump.start()
    try:
        with contextlib.closing(PdClient([driver.url])) as pd:
            begin = pd.fetch_ts()
            cluster = pd.fetch_cluster_id()
        write = write_binlog(pump.service, cluster, prewrite(begin).SerializeToString())
        assert write is not None
        write.result(20)
        if asks:
            reader = PumpReader(pump.addr, cluster)
            until(lambda: reader.read_info().max_commit_ts > begin + tso.compose(1000), "TiKV ended the transaction")
            assert tikv.writes[f"k{begin}".encode()] == [Write(begin, begin, ROLLBACK)]
        else:
            until(lambda: "no status source" in pump.service.build_info().last_error, "no source is asked")
            assert tikv.asked == []
    finally:
        pump.stop()
        tikv.stop()
        driver.stop()
