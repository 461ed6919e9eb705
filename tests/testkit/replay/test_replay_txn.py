"""A real TiDB's unusual transactions through three pumps: lost C, lost R, held P, P and C sent twice (R-07, R-08)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from binlake.cluster.placement import ClockClient, EtcdClient, NodeRegistry, PdClient
from binlake.cluster.pumpclient import PumpClient, PumpReader
from binlake.pump_service.pd import PlacementDriver
from binlake.pump_service.pump.config import PumpConfig
from binlake.pump_service.pump.server import PumpServer
from binlake.testkit.captures.capture import Capture
from binlake.testkit.replay.recorded import Outcomes, build_status_server
from binlake.testkit.replay.replayer import ReplayClock, Replayer
from binlake.wire import binlog_pb2 as pb

pytestmark = pytest.mark.long

TXN = Capture(Path(__file__).parents[2] / "captures" / "txn")
Truth = dict[int, tuple[int, bytes, bytes]]


def truth() -> Truth:
    """commit_ts -> (start_ts, value, query) of the committed transactions, by C or, for a lost C, by outcomes.json."""
    prewrites, commits = {}, {}
    for payload in TXN.read_binlogs():
        binlog = pb.Binlog.FromString(payload)
        if binlog.tp == pb.Prewrite:
            prewrites[binlog.start_ts] = (binlog.start_ts, binlog.prewrite_value, binlog.ddl_query)
        elif binlog.tp == pb.Commit:
            commits[binlog.start_ts] = binlog.commit_ts
    commits |= {int(o["start_ts"]): int(o["commit_ts"]) for o in TXN.read_outcomes() if o.get("commit_ts")}
    return {commit_ts: prewrites[start_ts] for start_ts, commit_ts in commits.items()}


def pulled(pump: PumpServer, cluster_id: int, until_ts: int) -> Truth:
    """The transactions that `pump` returns through `until_ts`, without fakes; strictly in order."""
    transactions, last = {}, 0
    for commit_ts, start_ts, payload in PumpReader(pump.addr, cluster_id).pull(0, until_ts):
        assert commit_ts > last
        last = commit_ts
        if commit_ts != start_ts and commit_ts <= until_ts:
            binlog = pb.Binlog.FromString(payload)
            transactions[commit_ts] = (start_ts, binlog.prewrite_value, binlog.ddl_query)
    return transactions


@pytest.mark.soak
def test_unusual_transactions_of_a_real_tidb_are_pulled_once_and_correctly(tmp_path: Path) -> None:
    kinds = Counter(outcome["kind"] for outcome in TXN.read_outcomes())
    assert kinds == {"orphan": 6, "orphan_rollback": 4, "held": 1, "resolved_by_reader": 1, "dup_p": 2, "dup_c": 1}
    outcomes = Outcomes.of(TXN)
    with ExitStack() as stack:
        pd = stack.enter_context(PlacementDriver(tmp_path / "pd", cluster_id=1, led_from=1))
        clock = ReplayClock(stack.enter_context(closing(ClockClient([pd.url]))))
        status = stack.enter_context(build_status_server(TXN, outcomes, clock.read_ts))
        pumps = [stack.enter_context(started(tmp_path / f"pump{n}", pd.url, status.url)) for n in range(3)]
        registry = NodeRegistry(stack.enter_context(closing(EtcdClient([pd.url]))))
        client = stack.enter_context(PumpClient(registry, 1))
        result = Replayer(TXN, outcomes, client, clock).run()
        stack.enter_context(closing(PdClient([pd.url]))).fetch_ts()
        parts = [pulled(pump, 1, result.last_ts) for pump in pumps]
        infos = [PumpReader(pump.addr, 1).read_info() for pump in pumps]
    expected = truth()
    assert {ts: one for part in parts for ts, one in part.items()} == expected
    # A P that was sent twice may be on two pumps: each returns it, with the same content, at one commit_ts.
    twice = Counter(itertools.chain.from_iterable(parts))
    doubled = {int(o["start_ts"]) for o in TXN.read_outcomes() if o["kind"] == "dup_p"}
    assert {expected[ts][0] for ts, count in twice.items() if count > 1} <= doubled
    assert all(len(part) > len(expected) / 4 for part in parts)
    assert [(info.late_commits, info.early_commits, info.unmatched_prewrites) for info in infos] == [(0, 0, 0)] * 3


@contextmanager
def started(folder: Path, pd_url: str, status_url: str) -> Iterator[PumpServer]:
    config = PumpConfig(
        pd_urls=(pd_url,), addr="127.0.0.1:0", data_dir=folder, node_id=folder.name, status_urls=(status_url,),
        gen_binlog_interval_s=0.05, heartbeat_interval_s=0.5, resolve_interval_s=0.1, stop_write_at_available_space=0,
    )  # fmt: skip
    server = PumpServer(config)
    server.start()
    yield server
    server.stop()
