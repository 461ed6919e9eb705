"""The three-pump example in every interleaving: in any order of steps, pump 3's 8 is landed once and in its position.

The planning functions and the pump's sorter are the real ones. Only network and disk are replaced, so that each step of
each process can come before or after each step of the others. Deliberately broken rules show that the search finds a
loss.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from binlake.cluster.node import NodeStatus
from binlake.pump_service.pump.record import Pointer
from binlake.pump_service.pump.sorter import EntryKind, Sorter, SorterEntry
from binlake.window.membership import Probe, gather_members
from binlake.window.plan import WindowPlan, propose_window

pytestmark = pytest.mark.long

AT = Pointer(0, 0)
LANDED = 70  # the position up to which pumps 1 and 2 are already landed; 1 to 7 of the article


class World(NamedTuple):
    """The shared state, and the progress of each process. `logs`: (kind, start, commit) in log order, by pump."""

    clock: int = LANDED
    logs: tuple[tuple[tuple[str, int, int], ...], ...] = ((), (), ())
    registered: tuple[int, ...] = (0, 1)
    counters: tuple[int, ...] = ()
    local: tuple[tuple[int, ...], ...] = ()
    tso: int = 0
    listed: tuple[int, ...] = ()
    probed: tuple[tuple[int, int], ...] = ()
    lo: int = LANDED
    landed: tuple[int, ...] = ()

    def tick(self) -> tuple[World, int]:
        """A timestamp of the TSO."""
        return self._replace(clock=self.clock + 1), self.clock + 1

    def log(self, pump: int, kind: str, start: int, commit: int) -> World:
        logs = list(self.logs)
        logs[pump] = (*logs[pump], (kind, start, commit))
        return self._replace(logs=tuple(logs))


Step = Callable[[World, int], World]
"""One atomic step of the process with this number."""


def keep(world: World, process: int, value: int) -> World:
    local = list(world.local)
    local[process] = (*local[process], value)
    return world._replace(local=tuple(local))


def fetch(world: World, process: int) -> World:
    world, ts = world.tick()
    return keep(world, process, ts)


def register(pump: int) -> Step:
    return lambda world, _: world._replace(registered=(*world.registered, pump))


def prewrite(pump: int) -> Step:
    return lambda world, process: world.log(pump, "P", world.local[process][0], 0)


def commit(pump: int) -> Step:
    return lambda world, process: world.log(pump, "C", *world.local[process][:2])


def fake(pump: int) -> Step:
    return lambda world, process: world.log(pump, "F", *[world.local[process][-1]] * 2)


def transaction(pump: int) -> list[Step]:
    """Steps of a transaction as in TiDB: start_ts, P acknowledged, commit_ts, C."""
    return [fetch, prewrite(pump), fetch, commit(pump)]


def watermark(world: World, pump: int) -> int:
    """The pump's reported watermark: the real sorter over its log."""
    return _watermark(world.logs[pump])


@functools.cache
def _watermark(log: tuple[tuple[str, int, int], ...]) -> int:
    kinds = {"P": EntryKind.PREWRITE, "C": EntryKind.COMMIT, "F": EntryKind.FAKE}
    sorter = Sorter()
    for kind, start, ts in log:
        sorter.push(SorterEntry(kinds[kind], start, ts, AT))
    return sorter.max_ts


def list_tso(world: World, _: int) -> World:
    world, ts = world.tick()
    return world._replace(tso=ts)


def list_members(world: World, _: int) -> World:
    return world._replace(listed=world.registered)


def probe(nth: int) -> Step:
    """Ask the n-th listed member for its watermark; a separate step, because the others continue meanwhile."""

    def step(world: World, _: int) -> World:
        if nth >= len(world.listed):
            return world
        pump = world.listed[nth]
        return world._replace(probed=(*world.probed, (pump, watermark(world, pump))))

    return step


def plan(world: World) -> WindowPlan:
    """Run the real planning functions on what was fetched, listed and probed."""
    return _plan(world.lo, world.tso, world.listed, world.probed)


@functools.cache
def _plan(lo: int, tso: int, listed: tuple[int, ...], probed: tuple[tuple[int, int], ...]) -> WindowPlan:
    seen = dict(probed)
    pumps = [NodeStatus(f"pump{pump}", str(pump), "online") for pump in listed]
    members = gather_members(pumps, {}, lo, lambda host: Probe(max_commit_ts=seen[int(host)]))
    return propose_window(lo=lo, tso=tso, members=members)


def land(world: World, _: int) -> World:
    """Pull the planned window from its members; the next plan starts without any knowledge."""
    found = plan(world)
    fresh = world._replace(tso=0, listed=(), probed=())
    if found.state != "ready":
        return fresh
    pulled = sorted(ts for pump in world.listed for ts in list_commits(world, pump) if found.lo < ts <= found.hi)
    return fresh._replace(lo=found.hi, landed=(*world.landed, *pulled))


def list_commits(world: World, pump: int) -> list[int]:
    """commit_ts of the transactions that a pull yields now."""
    limit = watermark(world, pump)
    return [ts for kind, _, ts in world.logs[pump] if kind == "C" and ts <= limit]


PLANNER = [list_tso, list_members, probe(0), probe(1), probe(2), land]
MEMBERS_FIRST = [list_members, list_tso, probe(0), probe(1), probe(2), land]
MEMBERS_AND_WATERMARKS_FIRST = [list_members, probe(0), probe(1), probe(2), list_tso, land]
PUMP_3 = [register(2), *transaction(2)]
REGISTERS_LATE = [fetch, prewrite(2), fetch, register(2), commit(2)]
PREFETCHES = [register(2), fetch, fetch, prewrite(2), commit(2)]
PUMP_1 = [fetch, fake(0), fetch, fake(0)]
PUMP_3_FAKES = [fetch, fake(2)]
PUMP_2 = [fetch, fake(1)]


def interleavings(processes: list[list[Step]]) -> Iterator[World]:
    """The world at the end of every interleaving; known states are not followed again."""
    begin = World(counters=(0,) * len(processes), local=((),) * len(processes))
    begin = begin.log(0, "F", LANDED, LANDED).log(1, "F", LANDED, LANDED)
    met, stack = {begin}, [begin]
    while stack:
        world = stack.pop()
        ended = True
        for process, steps in enumerate(processes):
            at = world.counters[process]
            if at == len(steps):
                continue
            ended = False
            counters = list(world.counters)
            counters[process] = at + 1
            following = steps[at](world._replace(counters=tuple(counters)), process)
            if following not in met:
                met.add(following)
                stack.append(following)
        if ended:
            yield world


def finish(world: World) -> World:
    """Let every pump report a later fake, and plan windows until everything is landed."""
    for pump in world.registered:
        world, ts = world.tick()
        world = world.log(pump, "F", ts, ts)
    for _ in range(2):
        for step in PLANNER:
            world = step(world, 0)
    return world


def has_lost(world: World) -> bool:
    """Whether a committed transaction is missing, duplicated, or landed out of order."""
    world = finish(world)
    committed = sorted(ts for log in world.logs for kind, _, ts in log if kind == "C")
    return list(world.landed) != committed


@pytest.mark.parametrize(
    "others",
    [
        pytest.param([PUMP_3, PUMP_1, PUMP_2], id="a pump joins while two are idle"),
        pytest.param([PUMP_3, transaction(0), PUMP_2], id="9 is written to pump 1 meanwhile"),
        pytest.param([PUMP_3, transaction(0), transaction(1)], id="9 and 10 are written meanwhile"),
        pytest.param(
            [PUMP_3, PUMP_3_FAKES, [fetch, fake(0)], PUMP_2],
            id="pump 3 writes fakes of its own",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_no_interleaving_loses_8(others: list[list[Step]]) -> None:  # S0-58
    ends = list(interleavings([PLANNER, *others]))
    assert len(ends) > 100
    assert not any(map(has_lost, ends))
    assert any(world.lo > LANDED for world in ends), "windows must be landed while pump 3 joins"


def test_two_consecutive_plans_lose_nothing() -> None:  # S0-58
    ends = list(interleavings([[*PLANNER, *PLANNER], PUMP_3, PUMP_2]))
    assert not any(map(has_lost, ends))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("planner", "pump_3"),
    [
        pytest.param(MEMBERS_FIRST, PUMP_3, id="members are listed before the TSO"),
        pytest.param(MEMBERS_AND_WATERMARKS_FIRST, PUMP_3, id="members and watermarks before the TSO"),
        pytest.param(PLANNER, REGISTERS_LATE, id="a pump takes a P before its registration is confirmed"),
        pytest.param(PLANNER, PREFETCHES, id="commit_ts fetched before the ack of P"),
    ],
)
def test_each_broken_rule_loses_8_in_some_interleaving(planner: list[Step], pump_3: list[Step]) -> None:
    # S0-58, mutation; S0-57, R-09
    assert any(map(has_lost, interleavings([PUMP_2, [fetch, fake(0)], PUMP_3_FAKES, pump_3, planner])))
