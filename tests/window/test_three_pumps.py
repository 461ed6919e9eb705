"""The article's three-pump example as a race of real pumps: unless members are listed after the TSO, 8 is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from binlake import tso
from binlake.cluster.placement import ClockClient, EtcdClient, NodeRegistry, NodeStatus, PdClient
from binlake.cluster.pumpclient import PumpClient, PumpReader
from binlake.pump_service.pd import PlacementDriver
from binlake.pump_service.pump.config import PumpConfig
from binlake.pump_service.pump.server import PumpServer
from binlake.spark_jobs.stages.plan import MeasuredClock, _propose
from binlake.window.membership import Probe, gather_members
from binlake.window.plan import WindowPlan, propose_window
from binlake.wire import build


def ts(position: float) -> int:
    """The TSO of a position in the article."""
    return tso.compose(int(position * 1000))


class Only:
    """A watcher that knows one pump, so that all writes go to it."""

    def __init__(self, registry: NodeRegistry, node_id: str) -> None:
        self._registry, self._node_id = registry, node_id
        self._ended = threading.Event()

    def watch_pumps(self) -> Only:
        return self

    @property
    def pumps(self) -> Sequence[NodeStatus]:
        return [pump for pump in self._registry.list_pumps() if pump.node_id == self._node_id]

    def __iter__(self) -> Iterator[tuple[str, NodeStatus | None]]:
        self._ended.wait()
        return iter(())

    def close(self) -> None:
        self._ended.set()


@dataclass
class Race:
    """A PD with a manual clock, and pumps; `landed`: everything that windows landed so far, `lo`: the next one's
    start.
    """

    folder: Path
    stack: ExitStack
    driver: PlacementDriver
    lo: int = 0
    landed: list[int] = field(default_factory=list)
    clients: dict[str, PumpClient] = field(default_factory=dict)

    def __post_init__(self) -> None:
        urls = [self.driver.url]
        self.clock = self.stack.enter_context(closing(ClockClient(urls)))
        self.pd = self.stack.enter_context(closing(PdClient(urls)))
        self.registry = NodeRegistry(self.stack.enter_context(closing(EtcdClient(urls))))

    def join(self, name: str) -> None:
        # The test itself writes fakes, because the article's example depends on each pump's watermark.
        config = PumpConfig(
            pd_urls=(self.driver.url,), addr="127.0.0.1:0", data_dir=self.folder / name, node_id=name,
            gen_binlog_interval_s=3600, stop_write_at_available_space=0,
        )  # fmt: skip
        server = PumpServer(config)
        server.start()
        self.stack.callback(server.stop)
        self.clients[name] = self.stack.enter_context(PumpClient(Only(self.registry, name), self.driver.cluster_id))

    def write(self, name: str, position: int) -> None:
        """Write a transaction as TiDB does: P acknowledged, then the commit_ts from the clock, then C (hazards
        R-09).
        """
        prewrite = build.build_prewrite(ts(position - 0.5), str(position).encode(), b"x")
        self.clients[name].write_prewrite(prewrite)
        self.clock.lead(ts(position))
        assert self.pd.fetch_ts() < ts(position)
        self.clients[name].write_commit(build.build_commit(prewrite, ts(position)))
        self._indexed(name, ts(position))

    def fake(self, name: str, position: float) -> None:
        self.clock.lead(ts(position) + 1)
        self.clients[name].write_rollback(build.build_fake(ts(position)), name)
        self._indexed(name, ts(position))

    def _indexed(self, name: str, commit_ts: int) -> None:
        """Wait until an acknowledged write shows in the watermark, because the schedule is one of watermarks."""
        (host,) = [pump.host for pump in self.registry.list_pumps() if pump.node_id == name]
        deadline = time.monotonic() + 60
        while self.probe(host).max_commit_ts < commit_ts:
            assert time.monotonic() < deadline, f"the watermark of {name} stays below {commit_ts}"
            time.sleep(0.005)

    def probe(self, host: str) -> Probe:
        info = PumpReader(host, self.driver.cluster_id).read_info()
        return Probe(info.store_uuid, info.max_commit_ts, info.gc_ts)

    def land(self, plan: WindowPlan) -> list[int]:
        """Pull the planned window from its members; return the positions in commit order."""
        found: list[int] = []
        for member in plan.members:
            reader = PumpReader(member.host, self.driver.cluster_id)
            found += [c for c, s, _ in reader.pull(plan.lo, plan.hi) if c != s and c <= plan.hi]
        self.lo = plan.hi
        self.landed += [tso.extract_physical(commit) // 1000 for commit in sorted(found)]
        return [tso.extract_physical(commit) // 1000 for commit in sorted(found)]


Planner = Callable[[Race, Callable[[], None], int | None], WindowPlan]


def tso_then_members(race: Race, between: Callable[[], None], stop: int | None = None) -> WindowPlan:
    """The window protocol (DESIGN 3.3)."""
    now = race.pd.fetch_ts()
    between()
    members = gather_members(race.registry.list_pumps(), {}, race.lo, race.probe)
    return propose_window(lo=race.lo, tso=now, members=members, stop_points=() if stop is None else (stop,))


def members_then_tso(race: Race, between: Callable[[], None], stop: int | None = None) -> WindowPlan:
    """The mutant: the members are listed before the TSO that limits the window is fetched."""
    pumps = race.registry.list_pumps()
    between()
    members = gather_members(pumps, {}, race.lo, race.probe)
    return propose_window(
        lo=race.lo, tso=race.pd.fetch_ts(), members=members, stop_points=() if stop is None else (stop,)
    )


def the_stage(race: Race, between: Callable[[], None], stop: int | None = None) -> WindowPlan:
    """The steps of the stage `plan`; `between` runs right after its first request, whatever that is."""
    events = [between]

    def then(answer: Callable[..., object]) -> Callable[..., object]:
        def asked(*arguments: int) -> object:
            found = answer(*arguments)
            for event in events[:1]:
                events.clear()
                event()
            return found

        return asked

    cluster = SimpleNamespace(
        pd=SimpleNamespace(fetch_ts=then(race.pd.fetch_ts)),
        registry=SimpleNamespace(list_pumps=then(race.registry.list_pumps)),
        probe=race.probe,
    )
    stops = () if stop is None else (stop,)
    ctx = SimpleNamespace(
        members=SimpleNamespace(read_all=dict),
        replication=SimpleNamespace(window=SimpleNamespace(max_seconds=3600), list_stop_points=lambda: stops),
        stop_ts=None,
    )
    return _propose(ctx, cluster, MeasuredClock(cluster.pd), race.lo, None)  # type: ignore[arg-type]


@pytest.fixture
def race(tmp_path: Path) -> Iterator[Race]:
    with ExitStack() as stack:
        driver = stack.enter_context(PlacementDriver(tmp_path / "pd", cluster_id=1, led_from=1))
        race = Race(tmp_path, stack, driver)
        for name in ("pump1", "pump2"):
            race.join(name)
        for position in range(1, 8):
            race.write("pump1" if position % 2 else "pump2", position)
        race.fake("pump2", 7)
        race.clock.lead(ts(7.2))
        yield race


def play(race: Race, plan: Planner) -> list[list[int]]:
    """The example: up to 7; pump3 joins while the next window is planned; the rest. Returns what each window landed."""
    windows = [race.land(plan(race, lambda: None, ts(7)))]

    def pump3_joins() -> None:
        race.clock.lead(ts(7.4))
        race.join("pump3")
        for name, position in (("pump3", 8), ("pump1", 9), ("pump2", 10), ("pump3", 12)):
            race.write(name, position)

    for between in (pump3_joins, lambda: None):
        found = plan(race, between, None)
        if found.state == "ready":
            windows.append(race.land(found))
    for name in ("pump1", "pump2", "pump3"):
        race.fake(name, 12.5)
    race.clock.lead(ts(20))
    until = time.monotonic() + 60
    while race.lo < ts(12) and time.monotonic() < until:
        found = plan(race, lambda: None, None)
        if found.state == "ready":
            windows.append(race.land(found))
    return [window for window in windows if window]


@pytest.mark.long
@pytest.mark.parametrize("planner", [tso_then_members, the_stage])
def test_nothing_is_lost_when_a_pump_joins_while_a_window_is_planned(race: Race, planner: Planner) -> None:  # S0-58
    windows = play(race, planner)
    assert windows == [[1, 2, 3, 4, 5, 6, 7], [8, 9], [10, 12]]
    assert race.landed == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12]


def test_schedule_exposes_a_planner_that_lists_members_before_the_tso(race: Race) -> None:  # S0-58, mutation
    play(race, members_then_tso)
    assert 8 not in race.landed, "the schedule must be one that loses 8 when the rule is broken"
    assert [position for position in race.landed if position != 8] == [1, 2, 3, 4, 5, 6, 7, 9, 10, 12]
