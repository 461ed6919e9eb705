"""A replay into real components: an embedded PD with a led clock, two pumps, the pump client."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from small_capture import write_capture

from binlake.cluster.placement import ClockClient, EtcdClient, NodeRegistry, PdClient
from binlake.cluster.pumpclient import PumpClient, PumpReader
from binlake.cluster.source import TidbSource
from binlake.errors import BinlakeError, ConfigError
from binlake.pump_service.pd import PlacementDriver
from binlake.pump_service.pump.config import PumpConfig
from binlake.pump_service.pump.server import PumpServer
from binlake.testkit.captures.capture import Capture
from binlake.testkit.replay.recorded import Outcomes, build_status_server
from binlake.testkit.replay.replayer import ReplayClock, Replayer
from binlake.wire import binlog_pb2 as pb

pytestmark = pytest.mark.long

CAPTURES = Path(__file__).parents[2] / "captures"
P, C, R = pb.Prewrite, pb.Commit, pb.Rollback


@dataclass
class Parts:
    """A cluster to which nothing was written yet."""

    folder: Path
    stack: ExitStack
    pd: PlacementDriver
    clock: ReplayClock
    status_url: str = ""
    pumps: list[PumpServer] = field(default_factory=list)

    def pump(self, number: int) -> PumpServer:
        config = PumpConfig(
            pd_urls=(self.pd.url,),
            addr="127.0.0.1:0",
            data_dir=self.folder / f"pump-{number}",
            node_id=f"pump-{number}",
            status_urls=(self.status_url,) if self.status_url else (),
            gen_binlog_interval_s=0.05,
            heartbeat_interval_s=0.5,
            resolve_interval_s=0.1,
            stop_write_at_available_space=0,
        )
        server = PumpServer(config)
        server.start()
        self.stack.callback(server.stop)
        self.pumps.append(server)
        return server

    def client(self) -> PumpClient:
        etcd = self.stack.enter_context(closing(EtcdClient([self.pd.url])))
        return self.stack.enter_context(PumpClient(NodeRegistry(etcd), self.pd.cluster_id))

    def oracle(self) -> PdClient:
        return self.stack.enter_context(closing(PdClient([self.pd.url])))

    def pulled(self, pump: PumpServer, until_ts: int) -> list[int]:
        entities = PumpReader(pump.addr, self.pd.cluster_id).pull(0, until_ts)
        return [commit for commit, start, _ in entities if commit != start and commit <= until_ts]


class closing:
    def __init__(self, thing: EtcdClient | PdClient | ClockClient) -> None:
        self.thing = thing

    def __enter__(self):  # type: ignore[no-untyped-def]
        return self.thing

    def __exit__(self, *_: object) -> None:
        self.thing.close()


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    with ExitStack() as stack:
        pd = stack.enter_context(PlacementDriver(tmp_path / "pd", cluster_id=1, led_from=1))
        lead = stack.enter_context(closing(ClockClient([pd.url])))
        yield Parts(tmp_path, stack, pd, ReplayClock(lead))


class Watched:
    """The pump client. Around every C it checks that PD's time is below the C's commit_ts, which is not acked yet."""

    def __init__(self, client: PumpClient, oracle: PdClient) -> None:
        self.client = client
        self.oracle = oracle
        self.broken: list[tuple[int, int]] = []
        self.order: list[pb.Binlog] = []

    def write_prewrite(self, binlog: pb.Binlog) -> str:
        node_id = self.client.write_prewrite(binlog)
        self.order.append(binlog)
        return node_id

    def write_commit(self, binlog: pb.Binlog, node_id: str | None = None) -> str:
        self._check(binlog.commit_ts)
        node = self.client.write_commit(binlog, node_id)
        self._check(binlog.commit_ts)
        self.order.append(binlog)
        return node

    def write_rollback(self, binlog: pb.Binlog, node_id: str | None = None) -> str:
        return self.client.write_rollback(binlog, node_id)

    def _check(self, commit_ts: int) -> None:
        now = self.oracle.fetch_ts()
        if now >= commit_ts:
            self.broken.append((now, commit_ts))


def test_the_clock_never_passes_the_least_unacked_commit_ts(parts: Parts) -> None:  # R-09, DESIGN 5
    capture = Capture(CAPTURES / "shard")
    pumps = [parts.pump(1), parts.pump(2)]
    watched = Watched(parts.client(), parts.oracle())
    replayer = Replayer(capture, Outcomes.of(capture), watched, parts.clock)
    hammer = Hammer(parts.oracle())
    with hammer:
        result = replayer.run()
    assert watched.broken == []
    assert hammer.stamps == sorted(set(hammer.stamps)), "timestamps repeat or decrease"
    assert len(hammer.stamps) > 100
    assert result.binlogs == capture.meta["binlogs"]
    # Every transaction is stored, in order, each commit_ts once, and complete by the pumps' own watermarks.
    assert parts.oracle().fetch_ts() > max(max(s.start_ts, s.commit_ts) for s in replayer.schedule.steps)
    found = [parts.pulled(pump, result.last_ts) for pump in pumps]
    assert all(commits == sorted(set(commits)) for commits in found)
    assert sorted(found[0] + found[1]) == sorted({s.commit_ts for s in replayer.schedule.steps if s.commit_ts})
    assert min(len(commits) for commits in found) > result.transactions // 4, "round robin"
    infos = [PumpReader(pump.addr, 1).read_info() for pump in pumps]
    assert [info.early_commits for info in infos] == [0, 0]
    assert [info.unmatched_prewrites for info in infos] == [0, 0]


class Hammer:
    """Asks PD for timestamps all the time."""

    def __init__(self, oracle: PdClient) -> None:
        self.stamps: list[int] = []
        self._oracle = oracle
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.001):
            self.stamps.append(self._oracle.fetch_ts())


def test_payloads_are_sent_as_recorded(parts: Parts) -> None:
    capture = Capture(CAPTURES / "shard")
    parts.pump(1)
    watched = Watched(parts.client(), parts.oracle())
    Replayer(capture, Outcomes.of(capture), watched, parts.clock).run()
    sent = sorted(binlog.SerializeToString() for binlog in watched.order)
    assert sent == sorted(p for p in capture.read_binlogs() if pb.Binlog.FromString(p).tp != R)


def test_a_second_replay_into_the_same_cluster_is_refused_before_anything_is_written(parts: Parts) -> None:
    (parts.folder / "capture").mkdir()
    capture = write_capture(parts.folder / "capture", [(P, 1 << 30, 0), (C, 1 << 30, (1 << 30) + 5)])
    parts.pump(1)
    client = parts.client()
    Replayer(capture, Outcomes.of(capture), client, parts.clock).run()
    parts.oracle().fetch_ts()
    with closing(ClockClient([parts.pd.url])) as lead, pytest.raises(ConfigError, match="already"):
        Replayer(capture, Outcomes.of(capture), client, ReplayClock(lead)).run()


def test_orphans_and_doubles_are_resolved_by_the_captures_status_port(parts: Parts) -> None:
    # a P and a C sent twice, an orphan that committed, one that was rolled back.
    base = 1 << 40
    (parts.folder / "capture").mkdir()
    binlogs = [
        (P, base + 1, 0), (P, base + 1, 0), (P, base + 2, 0), (P, base + 3, 0), (C, base + 1, base + 9),
        (P, base + 10, 0), (C, base + 10, base + 12), (C, base + 10, base + 12), (P, base + 13, 0), (R, base + 13, 0),
    ]  # fmt: skip
    outcomes = [{"start_ts": str(base + 2), "commit_ts": str(base + 8)}, {"start_ts": str(base + 3)}]
    capture = write_capture(parts.folder / "capture", binlogs, outcomes=outcomes)
    known = Outcomes.of(capture)
    with build_status_server(capture, known, parts.clock.read_ts) as server:
        parts.status_url = server.url
        pumps = [parts.pump(1), parts.pump(2)]
        result = Replayer(capture, known, parts.client(), parts.clock).run()
        commits = {commit - base for pump in pumps for commit in parts.pulled(pump, result.last_ts)}
        assert commits == {8, 9, 12}
        assert list(TidbSource(parts.oracle(), server.url).fetch_ddl_jobs(0)) == []


class Failing:
    """A pump client whose pump fails after some writes."""

    def __init__(self, after: int) -> None:
        self.left = after

    def write_prewrite(self, binlog: pb.Binlog) -> str:
        self.left -= 1
        if self.left < 0:
            raise ConfigError("the pump does not answer", where={"start_ts": binlog.start_ts})
        return "pump-1"

    def write_commit(self, binlog: pb.Binlog, node_id: str | None = None) -> str:
        del binlog
        return node_id or ""

    write_rollback = write_commit


def test_a_failure_ends_the_replay_with_its_error_and_leaves_the_clock_held(parts: Parts) -> None:
    capture = Capture(CAPTURES / "shard")
    replayer = Replayer(capture, Outcomes.of(capture), Failing(300), parts.clock)
    with pytest.raises(BinlakeError, match="the pump does not answer"):
        replayer.run()
    assert parts.oracle().fetch_ts() < replayer.schedule.compute_bound()


def test_the_rate_limits_the_binlogs_per_second(parts: Parts) -> None:
    (parts.folder / "capture").mkdir()
    binlogs = [(P, n << 20, 0) for n in range(1, 21)]
    capture = write_capture(parts.folder / "capture", binlogs)
    began = time.monotonic()
    Replayer(capture, Outcomes.of(capture), Failing(100), parts.clock, rate=100).run()
    assert time.monotonic() - began >= 0.19
