"""The possible outcomes of a write, independent of any transport (tidb-binlog 2.8)."""

from __future__ import annotations

import pytest
from pump_cluster import MemoryCluster
from pump_helpers import MakePump, commit, prewrite, rollback, until
from support.pump_calls import write_binlog

from binlake.errors import BinlakeError, ConfigError, Transient, WireError
from binlake.pump_service.pump.server import PumpServer
from binlake.pump_service.pump.service import State
from binlake.wire.binlog_pb2 import Binlog

NOT_ONLINE = [State.STARTING, State.PAUSING, State.CLOSING, State.PAUSED, State.OFFLINE]


def outcome(pump: PumpServer, cluster_id: int, payload: bytes) -> str:
    """ "ok", "ignored", or the error's text."""
    try:
        stored = write_binlog(pump.service, cluster_id, payload)
        if stored is None:
            return "ignored"
        stored.result(60)
    except BinlakeError as error:
        return f"{type(error).__name__}: {error}"
    return "ok"


@pytest.mark.parametrize("state", NOT_ONLINE)
def test_unless_online_only_commits_and_rollbacks_are_stored(
    build_pump: MakePump, cluster: MemoryCluster, state: State
) -> None:
    # S0-29
    pump = build_pump()
    first, second = cluster.fetch_ts(), cluster.fetch_ts()
    assert outcome(pump, cluster.id, prewrite(first).SerializeToString()) == "ok"
    assert outcome(pump, cluster.id, prewrite(second).SerializeToString()) == "ok"
    pump.service.state = state
    for refused in (prewrite(cluster.fetch_ts()).SerializeToString(), b""):
        error = outcome(pump, cluster.id, refused)
        assert error.startswith("Transient")
        assert f"the pump is {state}" in error
    assert outcome(pump, cluster.id, commit(first, cluster.fetch_ts()).SerializeToString()) == "ok"
    assert outcome(pump, cluster.id, rollback(second).SerializeToString()) == "ok"
    pump.service.state = State.ONLINE


def test_a_probe_is_accepted_and_stores_nothing(build_pump: MakePump, cluster: MemoryCluster) -> None:
    # S0-40
    pump = build_pump(gen_binlog_interval_s=60.0)
    files = pump._config.data_dir / "value"
    before = sum(file.stat().st_size for file in files.iterdir())
    assert [outcome(pump, cluster.id, b"") for _ in range(100)] == ["ignored"] * 100
    assert sum(file.stat().st_size for file in files.iterdir()) == before


def test_each_error_has_the_right_class(build_pump: MakePump, cluster: MemoryCluster) -> None:
    pump = build_pump()
    with pytest.raises(ConfigError, match="mismatched cluster id"):
        write_binlog(pump.service, cluster.id + 1, prewrite(1).SerializeToString())
    with pytest.raises(WireError):
        write_binlog(pump.service, cluster.id, b"\xff\xff")
    with pytest.raises(WireError, match="commit_ts"):
        write_binlog(pump.service, cluster.id, Binlog(tp=1, start_ts=5).SerializeToString())


def test_below_the_free_space_limit_only_fakes_are_stored(build_pump: MakePump, cluster: MemoryCluster) -> None:  # U-30
    pump = build_pump(stop_write_at_available_space=1 << 60)
    for binlog in (prewrite(cluster.fetch_ts()), commit(5, 6), rollback(7)):
        with pytest.raises(Transient, match="stop-write-at-available-space"):
            write_binlog(pump.service, cluster.id, binlog.SerializeToString())
    until(lambda: pump.service.build_info().max_commit_ts > 0, "a fake")


def test_a_slow_write_is_logged(
    build_pump: MakePump, cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    pump = build_pump(slow_write_threshold_s=0.0)
    outcome(pump, cluster.id, prewrite(cluster.fetch_ts()).SerializeToString())
    until(lambda: "slow_write" in capsys.readouterr().out, "the slow write is logged after its batch")


def test_an_invalid_pull_is_refused(build_pump: MakePump, cluster: MemoryCluster) -> None:
    # tidb-binlog 2.9
    pump = build_pump()
    with pytest.raises(ConfigError, match="mismatched cluster id"):
        pump.service.check_pull(cluster.id + 1, 0)
    with pytest.raises(ConfigError, match="negative"):
        pump.service.check_pull(cluster.id, -1)
