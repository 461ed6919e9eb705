"""A pump never stores a timestamp that PD has not issued: one such C would raise the watermark permanently."""

from __future__ import annotations

import threading

import pytest
from pump_cluster import MemoryCluster
from pump_helpers import MakePump, commit, prewrite, rollback, until
from support.grpcio_pump import GrpcioPumpServer
from support.pump_calls import write_binlog

from binlake import tso
from binlake.cluster.source import Committed, Status
from binlake.errors import BinlakeError, Permanent, SourceUnavailable, Transient
from binlake.pump_service.pump.future_timestamps import Ceiling
from binlake.pump_service.pump.server import PumpServer
from binlake.wire import build
from binlake.wire.binlog_pb2 import Binlog

SECOND = tso.compose(1000)


def outcome(pump: PumpServer, cluster: MemoryCluster, binlog: Binlog) -> str:
    """ "ok", or the error's text."""
    try:
        stored = write_binlog(pump.service, cluster.id, binlog.SerializeToString())
        assert stored is not None
        stored.result(60)
    except BinlakeError as error:
        return f"{type(error).__name__}: {error}"
    return "ok"


@pytest.fixture(params=[PumpServer, GrpcioPumpServer], ids=["lean", "grpcio"])
def rpc(request: pytest.FixtureRequest) -> type[PumpServer]:
    return request.param


def test_a_binlog_from_the_future_is_refused_and_does_not_raise_the_watermark(
    build_pump: MakePump, cluster: MemoryCluster
) -> None:
    pump = build_pump()
    start = cluster.fetch_ts()
    assert outcome(pump, cluster, prewrite(start)) == "ok"
    far = cluster.fetch_ts() * 10
    hour = cluster.fetch_ts() + 3600 * SECOND
    for binlog in (
        commit(start, far),
        commit(start, hour),
        build.build_fake(hour),
        build.build_fake(far),
        prewrite(hour),
        rollback(hour),
    ):
        assert "the timestamp is in the future: PD has not issued it" in outcome(pump, cluster, binlog)
    assert pump.service.build_info().max_commit_ts < start
    assert outcome(pump, cluster, commit(start, cluster.fetch_ts())) == "ok"
    until(lambda: pump.service.build_info().max_commit_ts > start, "the watermark continues to move")
    assert pump._storage.refused_future == 6
    pump.stop()
    assert build_pump().service.state == "online", "the restarted pump moves its watermark"


def test_a_commit_ts_one_digit_too_long_is_refused_by_txn_resolve(build_pump: MakePump, cluster: MemoryCluster) -> None:
    pump = build_pump()
    start = cluster.fetch_ts()
    assert outcome(pump, cluster, prewrite(start)) == "ok"
    until(lambda: bool(pump._storage.list_waiting_prewrites()), "the P waits")
    with pytest.raises(Permanent, match="is in the future"):
        pump.pages._verdict.decide(start, cluster.fetch_ts() * 10)
    assert pump._storage.list_waiting_prewrites(), "the P still waits"


def test_a_commit_from_the_future_reported_by_the_source_is_not_believed(
    build_pump: MakePump, cluster: MemoryCluster
) -> None:
    class Wrong:
        def fetch_transaction_status(self, start_ts: int, key: bytes) -> Status:
            del key
            return Committed(start_ts * 10)

    pump = build_pump(source=Wrong())
    start = cluster.fetch_ts()
    assert outcome(pump, cluster, prewrite(start)) == "ok"
    until(lambda: "is in the future" in str(pump.service.problems), "the pump shows why the P still blocks")
    assert pump.service.build_info().max_commit_ts < start


class _Pd:
    def __init__(self) -> None:
        self.ts, self.asked, self.down = tso.compose(1_795_000_000_000), 0, False
        self.open = threading.Event()
        self.open.set()

    def __call__(self) -> int:
        assert self.open.wait(60)
        self.asked += 1
        if self.down:
            raise SourceUnavailable("PD does not answer")
        return self.ts


def verdict(ceiling: Ceiling, ts: int) -> BinlakeError | None:
    if ceiling.admits(ts):
        return None
    answered = threading.Event()
    verdicts: list[BinlakeError | None] = []
    ceiling.ask(ts, lambda error: (verdicts.append(error), answered.set()))
    assert answered.wait(60)
    return verdicts[0]


def test_ordinary_writes_cost_no_call_to_pd() -> None:
    pd = _Pd()
    ceiling = Ceiling(pd, 10)
    ceiling.fetch_ts()
    assert all(ceiling.admits(pd.ts + n) for n in range(10_000))
    assert pd.asked == 1


def test_the_clock_is_renewed_in_the_background_before_a_write_must_wait() -> None:
    pd = _Pd()
    ceiling = Ceiling(pd, 10)
    ceiling.fetch_ts()
    pd.ts += 8 * SECOND
    assert ceiling.admits(pd.ts)
    until(lambda: ceiling.compute_highest_allowed() >= pd.ts + 10 * SECOND, "the clock was renewed")
    assert ceiling.admits(pd.ts + 9 * SECOND)


def test_a_timestamp_above_the_known_ones_is_checked_against_a_fresh_one() -> None:
    pd = _Pd()
    ceiling = Ceiling(pd, 10)
    ceiling.fetch_ts()
    pd.ts += 3600 * SECOND
    assert not ceiling.admits(pd.ts)
    assert verdict(ceiling, pd.ts) is None
    assert isinstance(verdict(ceiling, pd.ts + 11 * SECOND), Permanent)
    assert ceiling.refused == 1


def test_while_pd_is_unreachable_its_clock_is_assumed_to_advance_in_real_time() -> None:
    pd, now = _Pd(), [0.0]
    ceiling = Ceiling(pd, 10, lambda: now[0])
    known = ceiling.fetch_ts()
    pd.down, now[0] = True, 100.0
    assert verdict(ceiling, known + 105 * SECOND) is None
    assert isinstance(verdict(ceiling, known + 111 * SECOND), Transient)
    pd.down = False
    pd.ts = known + 100 * SECOND
    assert verdict(ceiling, known + 105 * SECOND) is None
    assert isinstance(verdict(ceiling, known + 111 * SECOND), Permanent)


def test_writes_that_wait_for_pd_are_bounded() -> None:
    pd = _Pd()
    pd.open.clear()
    ceiling = Ceiling(pd, 10)
    refused = 0
    for _ in range(10_000):
        try:
            ceiling.ask(1, lambda _: None)
        except Transient as error:
            refused += "too many writes wait" in str(error)
    pd.open.set()
    # 4,096 about which PD is being asked, and as many waiting for the next request.
    assert refused >= 10_000 - 2 * 4096
